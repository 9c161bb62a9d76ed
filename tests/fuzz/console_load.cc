// Console::Load: edited saves of three kinds of cartridge. A refused save must
// leave the console unchanged; an accepted save is saved again and run for a
// frame or two.
#include "fuzz.h"
#include "nes/console.h"

namespace {

/// CHR RAM instead of ROM, and a program that writes to both extra memories:
/// LDA #$FF; STA $6000; STA $2007; JMP self.
std::shared_ptr<const nes::Cartridge> RamCartridge() {
  std::vector<uint8_t> image(16 + 16384);
  std::memcpy(image.data(), "NES\x1A\x01\x00", 6);
  uint8_t* const prg = image.data() + 16;
  const uint8_t code[] = {0xA9, 0xFF, 0x8D, 0x00, 0x60, 0x8D,
                          0x07, 0x20, 0x4C, 0x08, 0x80, 0x40};
  std::memcpy(prg, code, sizeof(code));
  const uint8_t vectors[] = {0x0B, 0x80, 0x00, 0x80, 0x0B, 0x80};
  std::memcpy(prg + 0x3FFA, vectors, sizeof(vectors));
  return nes::Cartridge::Parse(image);
}

/// A program of random bytes.
std::shared_ptr<const nes::Cartridge> WildCartridge() {
  std::vector<uint8_t> image(16 + 32768 + 8192);
  uint32_t state = 1;
  for (uint8_t& byte : image) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
    if ((byte & 0x1F) == 0x12 || (byte & 0x9F) == 0x02) byte = 0xEA;  // JAM
  }
  std::memcpy(image.data(), "NES\x1A\x02\x01\0\0\0\0\0\0\0\0\0", 16);
  return nes::Cartridge::Parse(image);
}

struct Saved {
  explicit Saved(std::shared_ptr<const nes::Cartridge> cartridge,
                 nes::Timing timing = nes::Timing::kConsole)
      : console(std::move(cartridge), timing) {
    for (int frame = 0; frame < 9; ++frame) {
      console.RunFrame(static_cast<uint8_t>(frame * 31), nullptr);
      if (frame % 4 == 0) blobs.push_back(Save());
    }
  }
  std::vector<std::byte> Save() const {
    std::vector<std::byte> blob(console.SaveBytes());
    console.Save(blob.data());
    return blob;
  }

  nes::Console console;
  std::vector<std::vector<std::byte>> blobs;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Saved kinds[] = {Saved(fuzz::StandIn()), Saved(RamCartridge()),
                          Saved(WildCartridge()),
                          Saved(fuzz::StandIn(), nes::Timing::kNesPy),
                          Saved(WildCartridge(), nes::Timing::kNesPy)};
  static std::vector<uint8_t> pixels(nes::kScreenPixels);
  fuzz::Input input(data, size);
  Saved& saved = kinds[input.Below(std::size(kinds))];
  std::vector<std::byte> blob =
      saved.blobs[input.Below(static_cast<uint32_t>(saved.blobs.size()))];
  // Mostly after magic, version and the ROM's hash.
  const size_t from = input.Once(8) ? 0 : 16;
  fuzz::Edit(input, blob, from);
  if (input.Once(8)) blob.resize(input.Below(2) ? blob.size() + 1 : 20);

  // From the same state for every input.
  const std::vector<std::byte>& before = saved.blobs.back();
  saved.console.Load(before);
  if (fuzz::Refused([&] { saved.console.Load(blob); })) {
    fuzz::Require(saved.Save() == before, "a refused save changes nothing");
    return 0;
  }
  fuzz::Require(saved.Save() == blob, "what was loaded is saved again");
  for (uint32_t frames = 1 + input.Below(2); frames > 0; --frames) {
    saved.console.RunFrame(input.Take<uint8_t>(),
                           input.Flag() ? pixels.data() : nullptr);
  }
  return 0;
}
