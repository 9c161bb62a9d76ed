// The kernels with NEON, and the choice of the kernels on ARM.
#include "encoders/kernels.h"

#ifdef CPU_NEON
#include <cstdint>
#include <cstring>

#include "cpu/arm.h"
#include "encoders/bfloat16.h"

namespace encoders {

extern const Kernels kScalarKernels;

namespace neon {
namespace {

#define OP __attribute__((always_inline)) inline
#define ENTRY

constexpr int kRows = 6;
constexpr int kBlocks = 1;

using Operand = float;

#include "cpu/lanes_neon.inc"

// Loads the first n values, followed by zeros.
OP Lanes LoadSome(const float* from, int n) {
  float some[kLanes] = {};
  std::memcpy(some, from, static_cast<size_t>(n) * sizeof(float));
  return Load(some);
}

OP void StoreSome(float* to, const float* from, int n) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

OP float32x4_t UpperHalf(uint32x4_t words) {
  return vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xFFFF0000u)));
}

OP float32x4_t LowerHalf(uint32x4_t words) {
  return vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
}

OP Lanes LoadBf16(const uint16_t* from) {
  Lanes result;
  UNROLL for (int i = 0; i < 4; ++i) {
    result.value[i] = LowerHalf(vmovl_u16(vld1_u16(from + 4 * i)));
  }
  return result;
}

OP Lanes Relu(Lanes a) {  // NaN remains
  const float32x4_t zero = vdupq_n_f32(0.0f);
  UNROLL for (int i = 0; i < 4; ++i) {
    a.value[i] = vbslq_f32(vcgtq_f32(zero, a.value[i]), zero, a.value[i]);
  }
  return a;
}

OP float32x4_t Where(uint32x4_t mask, float32x4_t a) {
  return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}

OP Lanes KeepActive(Lanes a, const uint16_t* active) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const uint32x4_t words = vmovl_u16(vld1_u16(active + 4 * i));
    a.value[i] = Where(vtstq_u32(words, words), a.value[i]);
  }
  return a;
}

OP Lanes KeepPositive(Lanes a, const Lanes& output) {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  UNROLL for (int i = 0; i < 4; ++i) {
    a.value[i] = Where(vmvnq_u32(vcleq_f32(output.value[i], zero)), a.value[i]);
  }
  return a;
}

OP Lanes Centred(const uint8_t* pixels) {
  Lanes result;
  const uint8x16_t bytes = vld1q_u8(pixels);
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(bytes)),
                                vmovl_u8(vget_high_u8(bytes))};
  UNROLL for (int i = 0; i < 4; ++i) {
    const uint32x4_t words =
        vmovl_u16(i % 2 == 0 ? vget_low_u16(halves[i / 2])
                             : vget_high_u16(halves[i / 2]));
    const float32x4_t values = vcvtq_f32_s32(
        vsubq_s32(vreinterpretq_s32_u32(words), vdupq_n_s32(144)));
    result.value[i] = vmulq_n_f32(values, 1.0f / 64.0f);
  }
  return result;
}

// Rounded values in the lower halves of words.
OP uint32x4_t Rounded(float32x4_t values) {
  const uint32x4_t bits = vreinterpretq_u32_f32(values);
  const uint32x4_t size = vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF));
  const uint32x4_t upper = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
  const uint32x4_t near =
      vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16);
  const uint32x4_t nan = vorrq_u32(upper, vdupq_n_u32(0x40));
  const uint32x4_t is_nan = vcgtq_u32(size, vdupq_n_u32(0x7F800000));
  const uint32x4_t is_tiny = vcltq_u32(size, vdupq_n_u32(kTinyBits));
  return vbicq_u32(vbslq_u32(is_nan, nan, near), is_tiny);
}

OP void StoreRounded(uint16_t* to, const Lanes& a) {
  UNROLL for (int i = 0; i < 4; ++i) {
    vst1_u16(to + 4 * i, vmovn_u32(Rounded(a.value[i])));
  }
}

OP void StoreRoundedPairs(float* to, const Lanes& a, const Lanes& b) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const uint32x4_t second = vshlq_n_u32(Rounded(b.value[i]), 16);
    vst1q_f32(to + 4 * i,
              vreinterpretq_f32_u32(vorrq_u32(Rounded(a.value[i]), second)));
  }
}

OP Operand ToOperand(uint16_t bits) { return FromBf16(bits); }

OP void StoreExact(Operand* to, const Lanes& a) { Store(to, a); }

OP void StoreExactPairs(Operand* to, const Lanes& a, const Lanes& b) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const float32x4x2_t pairs = {{a.value[i], b.value[i]}};
    vst2q_f32(to + 8 * i, pairs);
  }
}

OP void StorePacked(const void* pairs, float* to) {
  UNROLL for (int i = 0; i < 4; ++i) {
    const uint32x4_t words =
        vld1q_u32(static_cast<const uint32_t*>(pairs) + 4 * i);
    vst1q_f32(to + 4 * i, UpperHalf(words));
    vst1q_f32(to + kLanes + 4 * i, LowerHalf(words));
  }
}

OP void StorePackedPairs(const uint16_t* first, const uint16_t* second,
                         float* to) {
  Store(to, LoadBf16(second));
  Store(to + kLanes, LoadBf16(first));
}

template <int R, int L>
OP void AddHalf(const Operand* const (&x)[R], int64_t at, const float* weights,
                Lanes (&sums)[R * L][1]) {
  const Lanes right = Load(weights);
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int l = 0; l < L; ++l) {
      const float left = x[r][at + 2 * l];
      Lanes& sum = sums[r * L + l][0];
      UNROLL for (int i = 0; i < 4; ++i) {
        sum.value[i] = vfmaq_n_f32(sum.value[i], right.value[i], left);
      }
    }
  }
}

template <int R, int L, int C>
OP void AddProducts(const Operand* const (&x)[R], int64_t at,
                    const float* weights, int64_t, Lanes (&sums)[R * L][C]) {
  static_assert(C == 1);
  AddHalf<R, L>(x, at + 1, weights, sums);
  AddHalf<R, L>(x, at, weights + kLanes, sums);
}

#include "encoders/kernels.inc"

#undef OP
#undef ENTRY

}  // namespace
}  // namespace neon

const Kernels& KernelsFor(Path path) {
  return path == Path::kNeon ? neon::kTable : kScalarKernels;
}

}  // namespace encoders

#endif  // CPU_NEON
