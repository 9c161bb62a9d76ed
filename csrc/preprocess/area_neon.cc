// One row of an area resize with NEON; frame.h describes the plan.
#include "preprocess/frame.h"

#ifdef CPU_NEON
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

namespace preprocess {

namespace {

// Slack for loads that begin near the end of a row of sums.
constexpr int kRowSlack = 32;

uint8x16_t Lookup(const uint8x16x4_t& table, const uint8_t* indices) {
  return vqtbl4q_u8(table, vandq_u8(vld1q_u8(indices), vdupq_n_u8(63)));
}

}  // namespace

void FrameMaker::BrightLineNeon(const uint8_t* lut, const uint8_t* indices,
                                const uint8_t* previous,
                                uint8_t* out) noexcept {
  uint8x16x4_t table;
  for (int i = 0; i < 4; ++i) table.val[i] = vld1q_u8(lut + 16 * i);
  for (int x = 0; x < kSourceWidth; x += 16) {
    uint8x16_t bright = Lookup(table, indices + x);
    if (previous != nullptr) {
      bright = vmaxq_u8(bright, Lookup(table, previous + x));
    }
    vst1q_u8(out + x, bright);
  }
}

void FrameMaker::AreaRowsNeon(int row, int end, const Lines& plane,
                              uint8_t* out) const noexcept {
  for (; row < end; ++row, out += spec_.width) AreaRowNeon(row, plane, out);
}

void FrameMaker::AreaRowNeon(int row, const Lines& plane,
                             uint8_t* out) const noexcept {
  uint16_t sums[kSourceWidth + kRowSlack];
  std::memset(sums + kSourceWidth, 0, kRowSlack * sizeof(sums[0]));
  const int top = top_ + rows_.first[row];
  for (int tap = 0; tap < rows_.taps; ++tap) {
    const uint8x8_t weight =
        vdup_n_u8(static_cast<uint8_t>(rows_.weights[row * rows_.taps + tap]));
    const uint8_t* line = LineUnder(plane, top + tap);
    for (int x = 0; x < kSourceWidth; x += 16) {
      const uint8x16_t pixels = vld1q_u8(line + x);
      const uint8x8_t low = vget_low_u8(pixels), high = vget_high_u8(pixels);
      if (tap == 0) {
        vst1q_u16(sums + x, vmull_u8(low, weight));
        vst1q_u16(sums + x + 8, vmull_u8(high, weight));
      } else {
        vst1q_u16(sums + x, vmlal_u8(vld1q_u16(sums + x), low, weight));
        vst1q_u16(sums + x + 8,
                  vmlal_u8(vld1q_u16(sums + x + 8), high, weight));
      }
    }
  }
  const int32x4_t shift = vdupq_n_s32(-shift_);
  for (int group = 0; group < groups_; ++group) {
    const int begin = group * kGroup;
    const int count = std::min(kGroup, spec_.width - begin);
    const int* first = &columns_.first[begin];
    uint16x4_t quotients[2];
    for (int four = 0; four < 2; ++four) {
      uint32x4_t sum = vdupq_n_u32(half_);
      for (int pass = 0; pass < passes_; ++pass) {
        const int16_t* weights =
            &window_weight_[((group * passes_ + pass) * kGroup + four * 4) *
                            kTaps];
        // Multiplies the 4 sums under one output by their weights.
        const auto products = [&](int j) {
          const int at =
              first[std::min(four * 4 + j, count - 1)] + pass * kTaps;
          return vmull_u16(vld1_u16(sums + at),
                           vreinterpret_u16_s16(vld1_s16(weights + j * kTaps)));
        };
        sum = vaddq_u32(sum, vpaddq_u32(vpaddq_u32(products(0), products(1)),
                                        vpaddq_u32(products(2), products(3))));
      }
      sum = vmulq_n_u32(vshlq_u32(sum, shift), magic32_);
      quotients[four] = vmovn_u32(vshrq_n_u32(sum, kMagic32Bits));
    }
    const uint8x8_t eight = vmovn_u16(vcombine_u16(quotients[0], quotients[1]));
    if (count == kGroup) {
      vst1_u8(out + begin, eight);
    } else {
      uint8_t tail[kGroup];
      vst1_u8(tail, eight);
      std::memcpy(out + begin, tail, static_cast<size_t>(count));
    }
  }
}

}  // namespace preprocess

#endif  // CPU_NEON
