// The vector paths of preprocessing against the portable one, on buffers of
// exactly their size: under AddressSanitizer a read or write beside one shows.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>

#include "preprocess/frame.h"

namespace {

using preprocess::FrameMaker;
using preprocess::FrameSpec;
using preprocess::Hud;
using preprocess::Path;

// Not a vector: it may keep more room than it was asked for.
std::unique_ptr<uint8_t[]> RandomPicture(std::mt19937* random) {
  auto picture = std::make_unique<uint8_t[]>(preprocess::kSourcePixels);
  for (int i = 0; i < preprocess::kSourcePixels; ++i) {
    picture[i] = static_cast<uint8_t>((*random)() & 63);
  }
  return picture;
}

void ExpectEqualPaths(const FrameSpec& spec, const uint8_t* now,
                      const uint8_t* before) {
  const FrameMaker scalar(spec, Path::kScalar);
  const size_t bytes = scalar.frame_bytes();
  const auto want = std::make_unique<uint8_t[]>(bytes);
  scalar.Make(now, before, want.get());
  for (const Path path : preprocess::kPaths) {
    if (!cpu::Supports(path)) continue;
    const auto got = std::make_unique<uint8_t[]>(bytes);
    const FrameMaker maker(spec, path);
    maker.Make(now, before, got.get());
    EXPECT_EQ(std::memcmp(got.get(), want.get(), bytes), 0)
        << cpu::Name(maker.path()) << ", " << spec.height << " x "
        << spec.width;
  }
}

TEST(FrameMakerTest, PathsAgreeForEveryWidthAndHeight) {
  std::mt19937 random(1);
  const auto now = RandomPicture(&random);
  const auto before = RandomPicture(&random);
  for (int width = 1; width <= preprocess::kSourceWidth; ++width) {
    ExpectEqualPaths({.height = 20, .width = width}, now.get(), nullptr);
  }
  for (int height = 1; height <= preprocess::kSourceHeight; ++height) {
    ExpectEqualPaths({.height = height, .width = 9}, now.get(), before.get());
  }
}

TEST(FrameMakerTest, PathsAgreeForColoursAndBothTreatmentsOfTheStatusBar) {
  std::mt19937 random(2);
  const auto now = RandomPicture(&random);
  const auto before = RandomPicture(&random);
  for (const Hud hud : {Hud::kKeep, Hud::kMask, Hud::kCrop}) {
    for (const bool gray : {true, false}) {
      for (const int side : {1, 7, 84, 96, 128, 208}) {
        const FrameSpec spec{
            .height = side, .width = side, .gray = gray, .hud = hud};
        ExpectEqualPaths(spec, now.get(), before.get());
      }
    }
  }
}

TEST(FrameMakerTest, NearestNeighbourStaysInThePicture) {
  std::mt19937 random(3);
  const auto now = RandomPicture(&random);
  for (const int side : {1, 83, 240, 256, 1024}) {
    const FrameMaker maker(
        {.height = side, .width = side, .area = false, .hud = Hud::kCrop});
    const auto frame = std::make_unique<uint8_t[]>(maker.frame_bytes());
    maker.Make(now.get(), nullptr, frame.get());
  }
}

}  // namespace
