// Shared by the files with code for x86: intrinsics, loops that the compiler
// unrolls, and transposes. Include it only in those .cc files, inside CPU_X86.
#pragma once

#include <immintrin.h>

#include <cstdint>

// GCC 12 takes the deliberately undefined sources inside its own AVX-512
// headers for our uninitialised variables (GCC bug 105593).
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace cpu {

/// to[l * to_stride + i] = from[i * from_stride + l] for 8 rows i of 8 words:
/// pairs of words, of doublewords, then 128-bit halves.
__attribute__((target("avx2"), always_inline)) inline void TransposeQuarter(
    const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m256 a[8];
  __m256 b[8];
  UNROLL for (int i = 0; i < 8; ++i) {
    a[i] = _mm256_loadu_ps(from + i * from_stride);
  }
  UNROLL for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride,
                     _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride,
                     _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

/// The same for 16 rows of 16 words.
__attribute__((target("avx2"), always_inline)) inline void TransposeAvx2(
    const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 16; j += 8) {
      TransposeQuarter(from + i * from_stride + j, from_stride,
                       to + j * to_stride + i, to_stride);
    }
  }
}

/// The same, for pairs of words, of doublewords, then 128-bit quarters.
__attribute__((target("avx512f"), always_inline)) inline void TransposeAvx512(
    const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m512 a[16];
  __m512 b[16];
  UNROLL for (int i = 0; i < 16; ++i) {
    a[i] = _mm512_loadu_ps(from + i * from_stride);
  }
  UNROLL for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  UNROLL for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
  // Quarter q of a[4g + j] is column 4q + j of rows 4g to 4g + 3.
  UNROLL for (int j = 0; j < 4; ++j) {
    const __m512 low01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x44);
    const __m512 high01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xEE);
    const __m512 low23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x44);
    const __m512 high23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xEE);
    b[j] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    b[4 + j] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
    b[8 + j] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    b[12 + j] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
  UNROLL for (int i = 0; i < 16; ++i) {
    _mm512_storeu_ps(to + i * to_stride, b[i]);
  }
}

}  // namespace cpu
