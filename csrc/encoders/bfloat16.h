// bfloat16 as its bits: the upper half of a float32.
//
// Values smaller than kTiny become 0, and the significand of a bfloat16 has 8
// bits. So every product of two values is a multiple of 2^-124 and exact in
// float32, and a sum of products is never denormal. Hence separate
// multiplications and additions, fused ones, and instructions that treat
// denormal numbers as 0, such as VDPBF16PS, give equal results.
#pragma once

#include <bit>
#include <cstdint>

namespace encoders {

inline constexpr uint32_t kTinyBits = (127u - 55u) << 23;  // 2^-55
/// A bias is not a product: below this value it becomes 0; larger ones are
/// multiples of 2^-123.
inline constexpr float kTinyBias = 0x1p-100f;

/// Rounds to the nearest value, ties to even; NaN remains NaN.
inline uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t size = bits & 0x7FFFFFFFu;
  const uint32_t near = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  const uint32_t result = size > 0x7F800000u ? nan : near;
  return static_cast<uint16_t>(size < kTinyBits ? 0u : result);
}

inline float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Rounds two values into a 32-bit word; the first is the lower half.
inline uint32_t RoundPair(float first, float second) {
  return RoundToBf16(first) |
         (static_cast<uint32_t>(RoundToBf16(second)) << 16);
}

inline float FlushBias(float value) {
  return value < kTinyBias && value > -kTinyBias ? 0.0f : value;
}

}  // namespace encoders
