// The checks of a FrameSpec, the plan of its resize, and the nearest neighbour.
// The area resize itself is in area_scalar.cc and area_x86.cc.
#include "preprocess/frame.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "nes/palette.h"

namespace preprocess {

namespace {

constexpr int kMaxSide = 1024;
// So that 255 times it fits the signed 16 bits of a sum down the columns.
constexpr int kMaxRowUnits = 128;

void Check(bool good, const std::string& message) {
  if (!good) throw std::invalid_argument(message);
}

}  // namespace

std::optional<Hud> HudFromName(std::string_view name) {
  if (name == "keep") return Hud::kKeep;
  if (name == "mask") return Hud::kMask;
  if (name == "crop") return Hud::kCrop;
  return std::nullopt;
}

AxisWeights::AxisWeights(int in, int out) {
  const int divisor = std::gcd(in, out);
  in_units = in / divisor;
  out_units = out / divisor;
  first.resize(out);
  for (int i = 0; i < out; ++i) {
    first[i] = i * in_units / out_units;
    const int last = ((i + 1) * in_units - 1) / out_units;
    taps = std::max(taps, last - first[i] + 1);
  }
  weights.assign(static_cast<size_t>(out) * taps, 0);
  for (int i = 0; i < out; ++i) {
    for (int tap = 0; tap < taps; ++tap) {
      const int source = first[i] + tap;
      const int begin = std::max(source * out_units, i * in_units);
      const int end = std::min((source + 1) * out_units, (i + 1) * in_units);
      if (end > begin) {
        weights[i * taps + tap] = static_cast<uint16_t>(end - begin);
      }
    }
  }
}

FrameMaker::FrameMaker(const FrameSpec& spec, Path path) : spec_(spec) {
  const int height = spec.height;
  const int width = spec.width;
  Check(height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide,
        "a frame of " + std::to_string(height) + " x " + std::to_string(width) +
            " pixels is outside 1 to 1024; choose img_height and img_width "
            "in it, such as 84");
  Check(Supports(path), std::string("this CPU has no ") + Name(path));
  if (spec.hud == Hud::kCrop) top_ = kHudRows;
  if (spec.hud == Hud::kMask) black_rows_ = kHudRows;
  const int in_height = kSourceHeight - top_;

  for (int i = 0; i < 64; ++i) {
    if (spec.gray) luts_[0][i] = nes::kLuma[i];
    for (int c = 0; c < 3 && !spec.gray; ++c) {
      luts_[c][i] = nes::kPalette[i][c];
    }
  }
  if (!spec.area) {
    for (int i = 0; i < height; ++i) {
      nearest_rows_.push_back(top_ + i * in_height / height);
    }
    for (int i = 0; i < width; ++i) {
      nearest_columns_.push_back(i * kSourceWidth / width);
    }
    return;
  }
  Check(height <= in_height && width <= kSourceWidth,
        "area resize only shrinks: " + std::to_string(height) + " x " +
            std::to_string(width) + " was asked of a picture of " +
            std::to_string(in_height) + " x " + std::to_string(kSourceWidth) +
            "; choose a smaller img_height and img_width, or "
            "use_inter_area_resize=False (nearest neighbour)");
  rows_ = AxisWeights(in_height, height);
  columns_ = AxisWeights(kSourceWidth, width);
  const uint32_t divisor = rows_.in_units * columns_.in_units;
  half_ = divisor / 2;
  magic_ = ((uint64_t{1} << kMagicBits) + divisor - 1) / divisor;
  PlanFast(path);
}

// The vector paths multiply bytes by signed bytes into signed 16-bit sums;
// heights that share no large factor with the source stay on the scalar path.
void FrameMaker::PlanFast(Path path) {
  uint32_t divisor = rows_.in_units * columns_.in_units;
  const uint32_t largest = 255 * divisor + half_;
  while (divisor % 2 == 0) {
    divisor /= 2;
    ++shift_;
  }
  const uint32_t one = 1u << kMagic32Bits;
  magic32_ = (one + divisor - 1) / divisor;
  const uint64_t excess = uint64_t{magic32_} * divisor - one;
  const uint64_t reach = largest >> shift_;
  const bool divides = excess * reach < one && reach * magic32_ <= UINT32_MAX;

  if (!divides || rows_.in_units > kMaxRowUnits) return;

  pairs_ = (rows_.taps + 1) / 2;
  for (int i = 0; i < spec_.height; ++i) {
    for (int pair = 0; pair < pairs_; ++pair) {
      const int tap = 2 * pair;
      const uint16_t* weights = &rows_.weights[i * rows_.taps];
      const uint16_t low = weights[tap];
      const uint16_t high = tap + 1 < rows_.taps ? weights[tap + 1] : 0;
      row_pairs_.push_back(static_cast<uint16_t>(low | high << 8));
    }
  }
  const bool fits = PlanColumns();
  if (path == Path::kAvx512 && !fits) path = Path::kAvx2;
  path_ = path;
}

// Lays out the row weights for 8 output columns and 4 taps at a time. Returns
// whether the sums under each 8 columns fit the window of the AVX-512 path.
bool FrameMaker::PlanColumns() {
  groups_ = (spec_.width + kGroup - 1) / kGroup;
  passes_ = (columns_.taps + kTaps - 1) / kTaps;
  bool fits = passes_ == 1;
  for (int group = 0; group < groups_; ++group) {
    const int begin = group * kGroup;
    const int end = std::min(begin + kGroup, spec_.width);
    window_.push_back(columns_.first[begin]);
    for (int k = 0; k < passes_ * kGroup * kTaps; ++k) {
      const int i = begin + k / kTaps % kGroup;
      const int tap = k / (kGroup * kTaps) * kTaps + k % kTaps;
      int weight = 0;
      int index = 0;
      if (i < end && tap < columns_.taps) {
        weight = columns_.weights[i * columns_.taps + tap];
        if (weight > 0) index = columns_.first[i] + tap - window_.back();
      }
      fits = fits && index < kWindow;
      window_index_.push_back(static_cast<uint16_t>(index));
      window_weight_.push_back(static_cast<int16_t>(weight));
    }
  }
  return fits;
}

void FrameMaker::Make(const uint8_t* indices, const uint8_t* previous,
                      uint8_t* out) const noexcept {
  const size_t plane = static_cast<size_t>(spec_.height) * spec_.width;
  for (int c = 0; c < channels(); ++c) {
    Plane(luts_[c].data(), indices, previous, out + c * plane);
  }
}

void FrameMaker::Plane(const uint8_t* lut, const uint8_t* indices,
                       const uint8_t* previous, uint8_t* out) const noexcept {
  if (!spec_.area) return Nearest(lut, indices, previous, out);
  switch (path_) {
    case Path::kAvx512:
      return AreaAvx512(lut, indices, previous, out);
    case Path::kAvx2:
      return AreaAvx2(lut, indices, previous, out);
    case Path::kScalar:
      return AreaScalar(lut, indices, previous, out);
  }
}

void FrameMaker::Nearest(const uint8_t* lut, const uint8_t* indices,
                         const uint8_t* previous, uint8_t* out) const noexcept {
  for (const int row : nearest_rows_) {
    const uint8_t* line = indices + row * kSourceWidth;
    const uint8_t* before = previous ? previous + row * kSourceWidth : line;
    for (const int column : nearest_columns_) {
      const uint8_t value =
          std::max(lut[line[column] & 63], lut[before[column] & 63]);
      *out++ = row < black_rows_ ? 0 : value;
    }
  }
}

}  // namespace preprocess
