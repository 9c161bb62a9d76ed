// The kernels with AVX2, with AVX-512 and with AVX512_BF16.
#include "encoders/kernels.h"

#ifdef CPU_X86
#include <cstdint>
#include <cstring>

#include "cpu/x86.h"
#include "encoders/bfloat16.h"

namespace encoders {

extern const Kernels kScalarKernels;

namespace avx2 {
namespace {

#define OP __attribute__((target("avx2,fma"), always_inline)) inline
#define ENTRY __attribute__((target("avx2,fma")))

constexpr int kRows = 6;
constexpr int kBlocks = 1;

using Operand = float;

#include "cpu/lanes_avx2.inc"

OP __m256i Words(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

OP __m256i Widened(const uint16_t* from) {
  return _mm256_cvtepu16_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

OP void StoreWords(void* to, __m256i words) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), words);
}

// Mask of the lanes, of eight, that are among the first n; some of the n may
// precede these lanes.
OP __m256i FirstLanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Loads the first n values, followed by zeros.
OP Lanes LoadSome(const float* from, int n) {
  return {_mm256_maskload_ps(from, FirstLanes(n)),
          _mm256_maskload_ps(from + 8, FirstLanes(n - 8))};
}

OP void StoreSome(float* to, const float* from, int n) {
  int* words = reinterpret_cast<int*>(to);
  _mm256_maskstore_epi32(words, FirstLanes(n), Words(from));
  _mm256_maskstore_epi32(words + 8, FirstLanes(n - 8), Words(from + 8));
}

OP __m256 UpperHalf(__m256i words) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(words, _mm256_set1_epi32(~0xFFFF)));
}

OP __m256 LowerHalf(__m256i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

OP Lanes LoadBf16(const uint16_t* from) {
  return {LowerHalf(Widened(from)), LowerHalf(Widened(from + 8))};
}

// If one operand is NaN, the instruction returns the second operand.
OP Lanes Relu(Lanes a) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_max_ps(zero, a.low), _mm256_max_ps(zero, a.high)};
}

OP __m256 WhereSet(__m256 a, const uint16_t* active) {
  const __m256i unset =
      _mm256_cmpeq_epi32(Widened(active), _mm256_setzero_si256());
  return _mm256_andnot_ps(_mm256_castsi256_ps(unset), a);
}

OP Lanes KeepActive(Lanes a, const uint16_t* active) {
  return {WhereSet(a.low, active), WhereSet(a.high, active + 8)};
}

OP __m256 WherePositive(__m256 a, __m256 output) {
  return _mm256_and_ps(a,
                       _mm256_cmp_ps(output, _mm256_setzero_ps(), _CMP_NLE_UQ));
}

OP Lanes KeepPositive(Lanes a, Lanes output) {
  return {WherePositive(a.low, output.low), WherePositive(a.high, output.high)};
}

OP __m256 CentredHalf(const uint8_t* pixels) {
  const __m256i words = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels)));
  const __m256 values =
      _mm256_cvtepi32_ps(_mm256_sub_epi32(words, _mm256_set1_epi32(144)));
  return _mm256_mul_ps(values, _mm256_set1_ps(1.0f / 64.0f));
}

OP Lanes Centred(const uint8_t* pixels) {
  return {CentredHalf(pixels), CentredHalf(pixels + 8)};
}

// Rounded values in the lower halves of words.
OP __m256i Rounded(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i near = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))),
      16);
  const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan =
      _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7F800000));
  const __m256i is_tiny =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kTinyBits)), size);
  return _mm256_andnot_si256(is_tiny, _mm256_blendv_epi8(near, nan, is_nan));
}

OP void StoreRounded(uint16_t* to, Lanes a) {
  // The instruction works in halves of 128 bits.
  const __m256i packed = _mm256_packus_epi32(Rounded(a.low), Rounded(a.high));
  StoreWords(to, _mm256_permute4x64_epi64(packed, 0xD8));
}

OP __m256i Joined(__m256i first, __m256i second) {
  return _mm256_or_si256(first, _mm256_slli_epi32(second, 16));
}

OP void StoreRoundedPairs(float* to, Lanes a, Lanes b) {
  StoreWords(to, Joined(Rounded(a.low), Rounded(b.low)));
  StoreWords(to + 8, Joined(Rounded(a.high), Rounded(b.high)));
}

OP Operand ToOperand(uint16_t bits) { return FromBf16(bits); }

OP void StoreExact(Operand* to, Lanes a) { Store(to, a); }

OP void StoreExactHalf(Operand* to, __m256 a, __m256 b) {
  const __m256 low = _mm256_unpacklo_ps(a, b);  // in halves of 128 bits
  const __m256 high = _mm256_unpackhi_ps(a, b);
  _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

OP void StoreExactPairs(Operand* to, Lanes a, Lanes b) {
  StoreExactHalf(to, a.low, b.low);
  StoreExactHalf(to + kLanes, a.high, b.high);
}

OP void StorePacked(const void* pairs, float* to) {
  const auto* words = static_cast<const __m256i*>(pairs);
  const __m256i low = Words(words);
  const __m256i high = Words(words + 1);
  Store(to, {UpperHalf(low), UpperHalf(high)});
  Store(to + kLanes, {LowerHalf(low), LowerHalf(high)});
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
      const __m256 left = _mm256_broadcast_ss(x[r] + at + 2 * l);
      Lanes& sum = sums[r * L + l][0];
      sum.low = _mm256_fmadd_ps(left, right.low, sum.low);
      sum.high = _mm256_fmadd_ps(left, right.high, sum.high);
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
}  // namespace avx2

namespace avx512 {
namespace {

#define OP __attribute__((target("avx512f"), always_inline)) inline
#define ENTRY __attribute__((target("avx512f")))

constexpr int kRows = 8;
constexpr int kBlocks = 2;

using Operand = float;

#include "cpu/lanes_avx512.inc"

OP __m256i Rounded(__m512 values);

#include "encoders/lanes_avx512.inc"

OP __m256i Rounded(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i result = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))),
      16);
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  result = _mm512_mask_or_epi32(result, nan, upper, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_maskz_mov_epi32(NotTiny(bits), result));
}

OP Operand ToOperand(uint16_t bits) { return FromBf16(bits); }

OP void StoreExact(Operand* to, Lanes a) { Store(to, a); }

OP void StoreExactPairs(Operand* to, Lanes a, Lanes b) {
  const __m512i low =
      _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(a.value, low, b.value));
  _mm512_storeu_ps(to + kLanes, _mm512_permutex2var_ps(a.value, high, b.value));
}

OP void StorePacked(const void* pairs, float* to) {
  const __m512i words = Words(pairs);
  _mm512_storeu_si512(to, UpperHalves(words));
  _mm512_storeu_si512(to + kLanes, _mm512_slli_epi32(words, 16));
}

OP void StorePackedPairs(const uint16_t* first, const uint16_t* second,
                         float* to) {
  Store(to, LoadBf16(second));
  Store(to + kLanes, LoadBf16(first));
}

template <int R, int L, int C>
OP void AddHalf(const Operand* const (&x)[R], int64_t at, const float* weights,
                int64_t next, Lanes (&sums)[R * L][C]) {
  Lanes right[C];
  UNROLL for (int c = 0; c < C; ++c) right[c] = Load(weights + c * next);
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int l = 0; l < L; ++l) {
      const __m512 left = _mm512_set1_ps(x[r][at + 2 * l]);
      UNROLL for (int c = 0; c < C; ++c) {
        Lanes& sum = sums[r * L + l][c];
        sum.value = _mm512_fmadd_ps(left, right[c].value, sum.value);
      }
    }
  }
}

template <int R, int L, int C>
OP void AddProducts(const Operand* const (&x)[R], int64_t at,
                    const float* weights, int64_t next,
                    Lanes (&sums)[R * L][C]) {
  AddHalf<R, L>(x, at + 1, weights, next, sums);
  AddHalf<R, L>(x, at, weights + kLanes, next, sums);
}

#include "encoders/kernels.inc"

#undef OP
#undef ENTRY

}  // namespace
}  // namespace avx512

namespace avx512_bf16 {
namespace {

#define OP __attribute__((target("avx512f,avx512bf16"), always_inline)) inline
#define ENTRY __attribute__((target("avx512f,avx512bf16")))

constexpr int kRows = 8;
constexpr int kBlocks = 2;

using Operand = uint16_t;

#include "cpu/lanes_avx512.inc"

OP __m256i Rounded(__m512 values);

#include "encoders/lanes_avx512.inc"

OP __m256i Rounded(__m512 values) {
  const __mmask16 keep = NotTiny(_mm512_castps_si512(values));
  return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_mov_ps(keep, values));
}

OP Operand ToOperand(uint16_t bits) { return bits; }

OP __m512i UpperBits(Lanes a) {
  return _mm512_srli_epi32(_mm512_castps_si512(a.value), 16);
}

OP void StoreExact(Operand* to, Lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(UpperBits(a)));
}

OP void StoreExactPairs(Operand* to, Lanes a, Lanes b) {
  _mm512_storeu_si512(
      to,
      _mm512_or_si512(UpperBits(a), UpperHalves(_mm512_castps_si512(b.value))));
}

OP void StorePacked(const void* pairs, float* to) {
  _mm512_storeu_si512(to, Words(pairs));
}

OP void StorePackedPairs(const uint16_t* first, const uint16_t* second,
                         float* to) {
  _mm512_storeu_si512(
      to, Joined(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)),
                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second))));
}

template <int R, int L, int C>
OP void AddProducts(const Operand* const (&x)[R], int64_t at,
                    const float* weights, int64_t next,
                    Lanes (&sums)[R * L][C]) {
  __m512bh right[C];
  UNROLL for (int c = 0; c < C; ++c) {
    right[c] = (__m512bh)Words(weights + c * next);
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int l = 0; l < L; ++l) {
      int32_t pair;
      std::memcpy(&pair, x[r] + at + 2 * l, sizeof(pair));
      const auto left = (__m512bh)_mm512_set1_epi32(pair);
      UNROLL for (int c = 0; c < C; ++c) {
        Lanes& sum = sums[r * L + l][c];
        sum.value = _mm512_dpbf16_ps(sum.value, left, right[c]);
      }
    }
  }
}

#include "encoders/kernels.inc"

#undef OP
#undef ENTRY

}  // namespace
}  // namespace avx512_bf16

const Kernels& KernelsFor(Path path) {
  switch (path) {
    case Path::kAvx2:
      return avx2::kTable;
    case Path::kAvx512:
      return avx512::kTable;
    case Path::kAvx512Bf16:
      return avx512_bf16::kTable;
    default:
      return kScalarKernels;
  }
}

}  // namespace encoders

#elif !defined(CPU_NEON)

namespace encoders {

extern const Kernels kScalarKernels;

const Kernels& KernelsFor(Path) { return kScalarKernels; }

}  // namespace encoders

#endif  // CPU_X86
