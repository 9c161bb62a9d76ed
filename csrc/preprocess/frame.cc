// The checks of a FrameSpec, the plan of its resize, and the nearest neighbour.
// Vector code of the area resize is in area_x86.cc and area_neon.cc.
#include "preprocess/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "nes/palette.h"

namespace preprocess {

namespace {

constexpr int kMaxSide = 1024;
// 255 times this value fits the signed 16 bits of a sum down the columns.
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
            " pixels is outside 1 to 1024; choose img_height and img_width in "
            "this range, such as 84");
  Check(Supports(path), std::string("this CPU does not support ") + Name(path));
  if (spec.hud == Hud::kCrop) top_ = kHudRows;
  if (spec.hud == Hud::kMask) black_rows_ = kHudRows;
  const int in_height = kSourceHeight - top_;

  for (int i = 0; i < 64; ++i) {
    if (spec.gray) luts_[0][i] = nes::kLuma[i];
    for (int c = 0; c < 3 && !spec.gray; ++c) {
      luts_[c][i] = nes::kPalette[i][c];
    }
  }
  lookup_path_ = path;
  if (!spec.area) {
    for (int i = 0; i < height; ++i) {
      nearest_rows_.push_back(top_ + i * in_height / height);
    }
    for (int i = 0; i < width; ++i) {
      nearest_columns_.push_back(i * kSourceWidth / width);
    }
    FindNeededLines();
    return;
  }
  Check(height <= in_height && width <= kSourceWidth,
        "area resize only shrinks: " + std::to_string(height) + " x " +
            std::to_string(width) + " was asked for, from a picture of " +
            std::to_string(in_height) + " x " + std::to_string(kSourceWidth) +
            "; choose a smaller img_height and img_width, or "
            "use_inter_area_resize=False (nearest neighbour)");
  rows_ = AxisWeights(in_height, height);
  columns_ = AxisWeights(kSourceWidth, width);
  const uint32_t divisor = rows_.in_units * columns_.in_units;
  half_ = divisor / 2;
  magic_ = ((uint64_t{1} << kMagicBits) + divisor - 1) / divisor;
  FindNeededLines();
  PlanFast(path);
}

// Finds the lines that a frame needs, and how long each line is needed.
void FrameMaker::FindNeededLines() {
  int most = 1;
  for (int i = 0; i < spec_.height; ++i) {
    int begin, end;
    if (spec_.area) {
      begin = top_ + rows_.first[i];
      end = top_ + ((i + 1) * rows_.in_units - 1) / rows_.out_units + 1;
    } else {
      begin = nearest_rows_[i];
      end = begin + 1;
    }
    most = std::max(most, end - begin);
    lines_under_.push_back({std::clamp(black_rows_, begin, end), end});
  }
  most += kLinesAtOnce + 8;
  lines_kept_ =
      most > kMostLinesKept / 2
          ? kMostLinesKept
          : static_cast<int>(std::bit_ceil(static_cast<unsigned>(most)));
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
  if (path == Path::kAvx512Vbmi && !fits) path = Path::kAvx2;
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
  if (passes_ == 1) PlanPairs();
  return fits;
}

// The AVX2 path loads 8 sums for two outputs. The sums of pairs 0 and 2 of a
// group are in one register, those of pairs 1 and 3 in another.
void FrameMaker::PlanPairs() {
  constexpr int kPairs = kGroup / 2;
  constexpr int kOrder[kPairs] = {0, 2, 1, 3};
  for (int k = 0; k < groups_ * kPairs; ++k) {
    const int group = k / kPairs, begin = group * kGroup;
    const int i = begin + 2 * kOrder[k % kPairs];
    const int from = columns_.first[std::min(i, spec_.width - 1)];
    pair_first_.push_back(from);
    for (int t = 0; t < 2 * kTaps; ++t) {
      const int at = (i + t / kTaps - begin) * kTaps + t % kTaps;
      const int16_t weight = window_weight_[group * kGroup * kTaps + at];
      const int index =
          weight == 0 ? 0 : columns_.first[i + t / kTaps] + t % kTaps - from;
      if (index >= kPairWindow) {
        pair_first_.clear();
        return;
      }
      pair_shuffle_.push_back(static_cast<uint8_t>(2 * index));
      pair_shuffle_.push_back(static_cast<uint8_t>(2 * index + 1));
      pair_weight_.push_back(weight);
    }
  }
}

void FrameMaker::Make(const uint8_t* indices, const uint8_t* previous,
                      uint8_t* out) const noexcept {
  alignas(64) uint8_t memory[kMostLinesKept * kLineStride];  // few are used
  const auto mask = static_cast<unsigned>(lines_kept_) - 1;
  std::memset(memory, 0, (mask + 1) * size_t{kLineStride});
  const Lines plane{memory, 0, mask};
  bool needed[kSourceHeight] = {};
  for (const Range& lines : lines_under_) {
    std::fill(needed + lines.begin, needed + lines.end, true);
  }
  for (int c = 0; c < channels(); ++c) {
    int row = 0;
    for (int y = 0; y < kSourceHeight; ++y) {
      if (needed[y]) {
        const int at = y * kSourceWidth;
        BrightLine(luts_[c].data(), indices + at,
                   previous == nullptr ? nullptr : previous + at,
                   memory + (static_cast<unsigned>(y) & mask) * kLineStride);
      }
      if ((y + 1) % kLinesAtOnce != 0) continue;
      const int end = RowsBefore(row, y + 1);
      MakePlaneRows(row, end, plane, out);
      row = end;
    }
    out += static_cast<size_t>(spec_.height) * spec_.width;
  }
}

int FrameMaker::RowsBefore(int row, int end) const {
  while (row < spec_.height && lines_under_[row].end <= end) ++row;
  return row;
}

void FrameMaker::MakeRows(int row, int end, const Lines& lines,
                          uint8_t* out) const noexcept {
  Lines plane = lines;
  for (int c = 0; c < channels(); ++c) {
    MakePlaneRows(row, end, plane, out);
    plane.first += lines.plane_bytes;
    out += static_cast<size_t>(spec_.height) * spec_.width;
  }
}

void FrameMaker::CopyRows(int row, int end, const uint8_t* from,
                          uint8_t* out) const noexcept {
  if (from == out) return;
  const auto width = static_cast<size_t>(spec_.width);
  size_t at = static_cast<size_t>(row) * width;
  for (int c = 0; c < channels(); ++c) {
    std::memcpy(out + at, from + at, static_cast<size_t>(end - row) * width);
    at += static_cast<size_t>(spec_.height) * width;
  }
}

void FrameMaker::MakePlaneRows(int row, int end, const Lines& plane,
                               uint8_t* out) const noexcept {
  out += static_cast<size_t>(row) * spec_.width;
  while (row < end) {
    const int next = std::min(end, row + kRowsAtOnce);
    if (!spec_.area) {
      for (int i = row; i < next; ++i) {
        NearestRow(i, plane, out + (i - row) * spec_.width);
      }
    } else {
      AreaRows(row, next, plane, out);
    }
    out += (next - row) * spec_.width;
    row = next;
  }
}

void FrameMaker::AreaRows(int row, int end, const Lines& plane,
                          uint8_t* out) const noexcept {
  switch (path_) {
#if defined(CPU_X86)
    case Path::kAvx512Vbmi:
      return AreaRowsAvx512(row, end, plane, out);
    case Path::kAvx2:
      return AreaRowsAvx2(row, end, plane, out);
#elif defined(CPU_NEON)
    case Path::kNeon:
      return AreaRowsNeon(row, end, plane, out);
#endif
    default:
      for (; row < end; ++row, out += spec_.width) {
        AreaRowScalar(row, plane, out);
      }
  }
}

// Portable code; the vector paths give equal results.
void FrameMaker::BrightLineScalar(const uint8_t* lut, const uint8_t* indices,
                                  const uint8_t* previous,
                                  uint8_t* out) noexcept {
  for (int x = 0; x < kSourceWidth; ++x) out[x] = lut[indices[x] & 63];
  if (previous == nullptr) return;
  for (int x = 0; x < kSourceWidth; ++x) {
    out[x] = std::max(out[x], lut[previous[x] & 63]);
  }
}

void FrameMaker::AreaRowScalar(int row, const Lines& plane,
                               uint8_t* out) const noexcept {
  uint16_t sums[kSourceWidth] = {};
  for (int tap = 0; tap < rows_.taps; ++tap) {
    const uint16_t weight = rows_.weights[row * rows_.taps + tap];
    const int y = top_ + rows_.first[row] + tap;
    if (weight == 0 || y < black_rows_) continue;
    const uint8_t* line = LineUnder(plane, y);
    for (int x = 0; x < kSourceWidth; ++x) {
      sums[x] = static_cast<uint16_t>(sums[x] + line[x] * weight);
    }
  }
  for (int j = 0; j < spec_.width; ++j) {
    uint32_t sum = half_;
    const uint16_t* weights = &columns_.weights[j * columns_.taps];
    const int first = columns_.first[j];
    const int count = std::min(columns_.taps, kSourceWidth - first);
    for (int tap = 0; tap < count; ++tap) {
      sum += uint32_t{sums[first + tap]} * weights[tap];
    }
    *out++ = static_cast<uint8_t>(sum * magic_ >> kMagicBits);
  }
}

void FrameMaker::BrightLine(const uint8_t* lut, const uint8_t* indices,
                            const uint8_t* previous,
                            uint8_t* out) const noexcept {
  switch (lookup_path_) {
#if defined(CPU_X86)
    case Path::kAvx512Vbmi:
      return BrightLineAvx512(lut, indices, previous, out);
    case Path::kAvx2:
      return BrightLineAvx2(lut, indices, previous, out);
#elif defined(CPU_NEON)
    case Path::kNeon:
      return BrightLineNeon(lut, indices, previous, out);
#endif
    default:
      return BrightLineScalar(lut, indices, previous, out);
  }
}

void FrameMaker::NearestRow(int row, const Lines& plane,
                            uint8_t* out) const noexcept {
  const uint8_t* line = LineUnder(plane, nearest_rows_[row]);
  for (const int column : nearest_columns_) *out++ = line[column];
}

}  // namespace preprocess
