// bfloat16 as its bits: the upper half of a float32.
//
// What is smaller than kTiny becomes 0, and bfloat16 has 8 bits, so that every
// product of two is a multiple of 2^-124 and exact in float32, and no sum of
// products is denormal unless it is 0. Hence it makes no difference whether
// one multiplies and adds, has both in one instruction, or has an instruction
// that takes denormal numbers for 0, as VDPBF16PS does.
#pragma once

#include <bit>
#include <cstdint>

namespace encoders {

inline constexpr uint32_t kTinyBits = (127u - 55u) << 23;  // 2^-55
/// A bias is no product: below this it is 0, and above a multiple of 2^-123.
inline constexpr float kTinyBias = 0x1p-100f;

/// To the nearest, of two to the even one; NaN remains NaN.
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

/// Two of them as a 32-bit word; the first is the lower half.
inline uint32_t RoundPair(float first, float second) {
  return RoundToBf16(first) |
         (static_cast<uint32_t>(RoundToBf16(second)) << 16);
}

inline float FlushBias(float value) {
  return value < kTinyBias && value > -kTinyBias ? 0.0f : value;
}

}  // namespace encoders
