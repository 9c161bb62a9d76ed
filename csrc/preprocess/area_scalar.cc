// Area resize in portable code: what the vector paths must equal.
#include <algorithm>

#include "preprocess/frame.h"

namespace preprocess {

namespace {

// One source row as brightness; the brighter of two pictures if there are two.
void BrightRow(const uint8_t* lut, const uint8_t* indices,
               const uint8_t* previous, int row, uint8_t* out) {
  const uint8_t* line = indices + row * kSourceWidth;
  for (int x = 0; x < kSourceWidth; ++x) out[x] = lut[line[x] & 63];
  if (previous == nullptr) return;
  line = previous + row * kSourceWidth;
  for (int x = 0; x < kSourceWidth; ++x) {
    out[x] = std::max(out[x], lut[line[x] & 63]);
  }
}

}  // namespace

void FrameMaker::AreaScalar(const uint8_t* lut, const uint8_t* indices,
                            const uint8_t* previous,
                            uint8_t* out) const noexcept {
  uint8_t bright[kSourceWidth];
  int bright_row = -1;  // two output rows often share a source row
  for (int i = 0; i < spec_.height; ++i) {
    uint16_t sums[kSourceWidth] = {};
    for (int tap = 0; tap < rows_.taps; ++tap) {
      const uint16_t weight = rows_.weights[i * rows_.taps + tap];
      const int row = top_ + rows_.first[i] + tap;
      if (weight == 0 || row < black_rows_) continue;
      if (row != bright_row) {
        BrightRow(lut, indices, previous, row, bright);
        bright_row = row;
      }
      for (int x = 0; x < kSourceWidth; ++x) {
        sums[x] = static_cast<uint16_t>(sums[x] + bright[x] * weight);
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
}

}  // namespace preprocess
