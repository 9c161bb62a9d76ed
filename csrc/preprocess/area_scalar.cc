// One row of an area resize in portable code. The vector paths must give equal
// results.
#include <algorithm>

#include "preprocess/frame.h"

namespace preprocess {

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

}  // namespace preprocess
