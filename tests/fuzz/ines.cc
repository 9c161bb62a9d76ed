// The iNES parser with headers of any kind and images cut anywhere. Accepted
// images are powered on and run for a frame.
#include <array>

#include "fuzz.h"
#include "nes/console.h"

namespace {

/// Random bytes with a piece of the input in each page.
void Fill(fuzz::Input& input, std::span<uint8_t> body) {
  uint32_t state = input.Take<uint32_t>() | 1;
  const auto pattern = input.Bytes(64);
  for (size_t i = 0; i < body.size(); i += sizeof(state)) {
    state = state * 1664525u + 1013904223u;
    const uint32_t word = state ^ state >> 15;
    std::memcpy(body.data() + i, &word,
                std::min(sizeof(word), body.size() - i));
  }
  for (size_t i = 0; !pattern.empty() && i < body.size(); i += 256) {
    std::memcpy(body.data() + i, pattern.data(),
                std::min(pattern.size(), body.size() - i));
  }
  // The vectors, which decide where the program begins.
  const auto vectors = input.Bytes(6);
  if (body.size() >= 16384 && !vectors.empty()) {
    std::memcpy(body.data() + 16378, vectors.data(), vectors.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto mend = input.Take<uint8_t>();  // parts to be set right
  auto header = input.Take<std::array<uint8_t, 16>>();
  if (mend & 1) std::memcpy(header.data(), "NES\x1A", 4);
  if (mend & 2) header[6] &= 0x0F, header[7] &= 0x0C, header[8] &= 0xF0;
  if (mend & 4) header[4] = 1 + (header[4] & 1);
  if (mend & 8) header[5] &= 1;
  size_t body = input.Below(64);
  if (mend & 16) {
    body += size_t{512} * (header[6] >> 2 & 1) + size_t{16384} * header[4] +
            size_t{8192} * header[5];
  }
  if (input.Once(8)) body = body > 32 ? body - 32 : 0;
  std::vector<uint8_t> image(16 + body);
  std::memcpy(image.data(), header.data(), 16);
  // A separate short allocation, so that a read beyond the end is detected.
  if (!(mend & 1)) image.resize(input.Below(16 + 1));
  if (image.size() > 16) Fill(input, std::span(image).subspan(16));

  std::shared_ptr<const nes::Cartridge> cartridge;
  if (fuzz::Refused([&] { cartridge = nes::Cartridge::Parse(image); })) {
    return 0;
  }
  nes::Console console(cartridge);
  static std::vector<uint8_t> pixels(nes::kScreenPixels);
  console.RunFrame(input.Take<uint8_t>(),
                   input.Flag() ? pixels.data() : nullptr);
  return 0;
}
