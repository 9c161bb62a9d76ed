// Functions for viewers: the picture of the last frame in colour, and a step
// that keeps all of its frames and the RAM behind its info.
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "mario/env.h"
#include "nes/palette.h"

namespace mario {

pool::Outcome Env::StepForViewer(int32_t action, Scratch& scratch,
                                 uint8_t* info_ram, std::vector<uint8_t>* film,
                                 bool skip_waits) {
  StepProgress step{.buttons = shared_->buttons()[action]};
  step.drawn.watched = true;
  while (!step.is_over) {
    RunFrameToWatch(&step, film != nullptr || IsObserved(step), scratch);
    if (film != nullptr) {
      const std::vector<uint8_t>& picture = scratch.pixels[game_.frames() & 1];
      film->insert(film->end(), picture.begin(), picture.end());
    }
    const auto keep_ram = [&] {
      std::memcpy(info_ram, game_.console().ram(), nes::kRamBytes);
    };
    if (step.is_over) keep_ram();
    if (skip_waits && SkipWaitsOfStep(&step)) keep_ram();
  }
  return FinishStep(step, scratch);
}

void Env::RunFrameToWatch(StepProgress* step, bool draw, Scratch& scratch) {
  const uint64_t number = game_.frames() + 1;
  uint8_t* pixels = nullptr;
  if (draw) {
    pixels = scratch.pixels[number & 1].data();
    step->drawn.number[number & 1] = number;
  }
  game_.RunFrame(ButtonsOfFrame(step->buttons), pixels);
  CountFrameOfStep(step);
}

void Env::MakeFramesWatched(const DrawnFrames& drawn, Scratch& scratch) {
  const int count = shared_->observation().pictures();
  const uint8_t* pictures[2] = {nullptr, nullptr};
  for (int age = 0; age < count; ++age) {
    const uint64_t number = game_.frames() - age;
    uint8_t* pixels = scratch.pixels[number & 1].data();
    if (number == 0 || drawn.number[number & 1] != number) {
      Redraw(game_.record(age), &scratch.redraw_console, pixels);
    }
    pictures[age] = pixels;
  }
  scratch.pictures.MakeOf(pictures[0], pictures[1], &observation_);
}

void Env::Render(pool::Scratch& lent, uint8_t* rgb) const {
  auto& scratch = static_cast<Scratch&>(lent);
  uint8_t* pixels = scratch.pixels[0].data();
  Redraw(game_.record(0), &scratch.redraw_console, pixels);
  ToRgb(pixels, nes::kScreenPixels, rgb);
}

void Env::ToRgb(const uint8_t* pixels, size_t count, uint8_t* rgb) {
  // Writing four bytes is faster than writing three: the next pixel overwrites
  // the fourth byte. The last pixel is written separately.
  struct Padded {
    uint8_t bytes[4];
  };
  static const auto kColours = [] {
    std::array<Padded, 64> colours{};
    for (size_t i = 0; i < colours.size(); ++i) {
      std::memcpy(colours[i].bytes, nes::kPalette[i].data(), 3);
    }
    return colours;
  }();
  if (count == 0) return;
  for (size_t i = 0; i + 1 < count; ++i) {
    std::memcpy(rgb + 3 * i, kColours[pixels[i] & 63].bytes, 4);
  }
  std::memcpy(rgb + 3 * (count - 1), kColours[pixels[count - 1] & 63].bytes, 3);
}

}  // namespace mario
