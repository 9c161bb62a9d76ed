// The frame maker with any size, kind and picture. Every code path of this
// machine must write the same bytes, and no bytes outside the frame.
#include "preprocess/frame.h"

#include "fuzz.h"

namespace {

using preprocess::Path;

/// One of a few pictures, with some pixels changed.
std::vector<uint8_t> Picture(fuzz::Input& input) {
  static const std::vector<std::vector<uint8_t>> pictures = [] {
    std::vector<std::vector<uint8_t>> all(6);
    uint32_t state = 1;
    for (size_t kind = 0; kind < all.size(); ++kind) {
      for (int i = 0; i < preprocess::kSourcePixels; ++i) {
        if (i % (1 << 2 * kind) == 0) state = state * 1664525u + 1013904223u;
        all[kind].push_back(state >> 26);
      }
    }
    return all;
  }();
  std::vector<uint8_t> picture = pictures[input.Below(6)];
  for (uint32_t changes = input.Below(5); changes > 0; --changes) {
    picture[input.Take<uint16_t>() % picture.size()] = input.Below(64);
  }
  return picture;
}

int Side(fuzz::Input& input) {
  switch (input.Below(8)) {
    case 0:
      return static_cast<int>(input.Number());
    case 1:
      return static_cast<int>(input.Take<uint16_t>() % 1100);
    default:
      return 1 + static_cast<int>(input.Below(256));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  preprocess::FrameSpec spec;
  spec.height = Side(input);
  spec.width = Side(input);
  spec.gray = !input.Once(4);
  spec.area = !input.Once(4);
  spec.hud = static_cast<preprocess::Hud>(input.Below(3));
  const std::vector<uint8_t> now = Picture(input);
  const bool has_previous = input.Flag();
  const std::vector<uint8_t> previous = Picture(input);

  std::vector<uint8_t> expected;
  for (const Path path : preprocess::kPaths) {
    if (!cpu::Supports(path)) continue;
    std::unique_ptr<preprocess::FrameMaker> maker;
    if (fuzz::Refused([&] {
          maker = std::make_unique<preprocess::FrameMaker>(spec, path);
        })) {
      fuzz::Require(expected.empty(), "all paths refuse the same");
      continue;
    }
    std::vector<uint8_t> frame(maker->frame_bytes(), 0xA5);
    maker->Make(now.data(), has_previous ? previous.data() : nullptr,
                frame.data());
    if (path == Path::kScalar) expected = frame;
    fuzz::Require(frame == expected, "all paths write the same frame");
  }
  return 0;
}
