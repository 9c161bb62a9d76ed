// Area resize with AVX2 and with AVX-512; frame.h says what the plan holds.
#include "preprocess/frame.h"

#ifdef PREPROCESS_X86
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#endif

namespace preprocess {

#ifdef PREPROCESS_X86

// GCC 12 takes the deliberately undefined sources inside its own AVX-512
// headers for our uninitialised variables (GCC bug 105593).
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace {

// Slack for loads that begin near the end of a row of sums.
constexpr int kRowSlack = 32;

// A 64-byte table lookup: four 16-byte shuffles, chosen by bits 4 and 5.
__attribute__((target("avx2"), always_inline)) inline __m256i Lookup(
    const __m256i table[4], __m256i index) {
  const __m256i low = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[0], index),
                                         _mm256_shuffle_epi8(table[1], index),
                                         _mm256_slli_epi16(index, 3));
  const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[2], index),
                                          _mm256_shuffle_epi8(table[3], index),
                                          _mm256_slli_epi16(index, 3));
  return _mm256_blendv_epi8(low, high, _mm256_slli_epi16(index, 2));
}

}  // namespace

__attribute__((target("avx2"))) void FrameMaker::AreaAvx2(
    const uint8_t* lut, const uint8_t* indices, const uint8_t* previous,
    uint8_t* out) const noexcept {
  __m256i table[4];
  for (int i = 0; i < 4; ++i) {
    table[i] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(lut + 16 * i)));
  }
  const __m256i half = _mm256_set1_epi32(static_cast<int>(half_));
  const __m256i magic = _mm256_set1_epi32(static_cast<int>(magic32_));
  const __m128i shift = _mm_cvtsi32_si128(shift_);
  alignas(32) uint16_t sums[kSourceWidth + kRowSlack] = {};
  alignas(32) uint8_t tail[kGroup];
  const auto bright = [&](int row, int x) __attribute__((target("avx2"))) {
    if (row < black_rows_ || row >= kSourceHeight) {
      return _mm256_setzero_si256();
    }
    const auto load = [&](const uint8_t* base) __attribute__((target("avx2"))) {
      return Lookup(table, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
                               base + row * kSourceWidth + x)));
    };
    const __m256i now = load(indices);
    return previous ? _mm256_max_epu8(now, load(previous)) : now;
  };

  for (int i = 0; i < spec_.height; ++i) {
    const int top = top_ + rows_.first[i];
    for (int x = 0; x < kSourceWidth; x += 32) {
      __m256i low = _mm256_setzero_si256();
      __m256i high = low;
      for (int pair = 0; pair < pairs_; ++pair) {
        const __m256i weight = _mm256_set1_epi16(
            static_cast<int16_t>(row_pairs_[i * pairs_ + pair]));
        const __m256i a = bright(top + 2 * pair, x);
        const __m256i b = bright(top + 2 * pair + 1, x);
        low = _mm256_add_epi16(
            low, _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), weight));
        high = _mm256_add_epi16(
            high, _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), weight));
      }
      __m256i* to = reinterpret_cast<__m256i*>(sums + x);
      _mm256_store_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_store_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (int group = 0; group < groups_; ++group) {
      const int begin = group * kGroup;
      const int count = std::min(kGroup, spec_.width - begin);
      __m256i sum = half;
      for (int pass = 0; pass < passes_; ++pass) {
        // The 4 sums under one output are neighbours: 64 bits each.
        const auto taps = [&](int j) {
          int64_t four;
          std::memcpy(&four,
                      sums + columns_.first[begin + std::min(j, count - 1)] +
                          pass * kTaps,
                      sizeof(four));
          return four;
        };
        const __m256i* weights = reinterpret_cast<const __m256i*>(
            &window_weight_[(group * passes_ + pass) * kGroup * kTaps]);
        const __m256i a = _mm256_madd_epi16(
            _mm256_setr_epi64x(taps(0), taps(1), taps(2), taps(3)),
            _mm256_loadu_si256(weights));
        const __m256i b = _mm256_madd_epi16(
            _mm256_setr_epi64x(taps(4), taps(5), taps(6), taps(7)),
            _mm256_loadu_si256(weights + 1));
        // The horizontal add leaves outputs 0 1 4 5 2 3 6 7.
        sum = _mm256_add_epi32(
            sum, _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8));
      }
      sum = _mm256_srl_epi32(sum, shift);
      sum = _mm256_srli_epi32(_mm256_mullo_epi32(sum, magic), kMagic32Bits);
      const __m256i words = _mm256_packus_epi32(sum, sum);
      const __m256i bytes = _mm256_packus_epi16(words, words);
      const uint32_t four_low = _mm256_extract_epi32(bytes, 0);
      const uint32_t four_high = _mm256_extract_epi32(bytes, 4);
      std::memcpy(tail, &four_low, 4);
      std::memcpy(tail + 4, &four_high, 4);
      std::memcpy(out + begin, tail, count);
    }
    out += spec_.width;
  }
}

#define PREPROCESS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

PREPROCESS_AVX512 void FrameMaker::AreaAvx512(const uint8_t* lut,
                                              const uint8_t* indices,
                                              const uint8_t* previous,
                                              uint8_t* out) const noexcept {
  const __m512i table = _mm512_loadu_si512(lut);
  const __m512i half = _mm512_set1_epi32(static_cast<int>(half_));
  const __m512i magic = _mm512_set1_epi32(static_cast<int>(magic32_));
  const __m128i shift = _mm_cvtsi32_si128(shift_);
  // Undo the 128-bit lanes of the byte interleave; pick even and odd sums.
  const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                         22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  alignas(64) uint16_t sums[kSourceWidth + kRowSlack] = {};
  const auto bright = [&](int row, int x) PREPROCESS_AVX512 {
    if (row < black_rows_ || row >= kSourceHeight) {
      return _mm512_setzero_si512();
    }
    const int at = row * kSourceWidth + x;
    const __m512i now =
        _mm512_permutexvar_epi8(_mm512_loadu_si512(indices + at), table);
    if (previous == nullptr) return now;
    return _mm512_max_epu8(
        now, _mm512_permutexvar_epi8(_mm512_loadu_si512(previous + at), table));
  };
  const auto two_sums = [&](int group) PREPROCESS_AVX512 {
    const __m512i taps = _mm512_permutexvar_epi16(
        _mm512_loadu_si512(&window_index_[group * kWindow]),
        _mm512_loadu_si512(sums + window_[group]));
    return _mm512_madd_epi16(
        taps, _mm512_loadu_si512(&window_weight_[group * kWindow]));
  };

  for (int i = 0; i < spec_.height; ++i) {
    const int top = top_ + rows_.first[i];
    for (int x = 0; x < kSourceWidth; x += 64) {
      __m512i low = _mm512_setzero_si512();
      __m512i high = low;
      for (int pair = 0; pair < pairs_; ++pair) {
        const __m512i weight = _mm512_set1_epi16(
            static_cast<int16_t>(row_pairs_[i * pairs_ + pair]));
        const __m512i a = bright(top + 2 * pair, x);
        const __m512i b = bright(top + 2 * pair + 1, x);
        low = _mm512_add_epi16(
            low, _mm512_maddubs_epi16(_mm512_unpacklo_epi8(a, b), weight));
        high = _mm512_add_epi16(
            high, _mm512_maddubs_epi16(_mm512_unpackhi_epi8(a, b), weight));
      }
      _mm512_store_si512(sums + x,
                         _mm512_permutex2var_epi64(low, first_half, high));
      _mm512_store_si512(sums + x + 32,
                         _mm512_permutex2var_epi64(low, second_half, high));
    }
    for (int group = 0; group < groups_; group += 2) {
      const __m512i a = two_sums(group);
      const __m512i b = group + 1 < groups_ ? two_sums(group + 1) : a;
      __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                                     _mm512_permutex2var_epi32(a, odd, b));
      sum = _mm512_srl_epi32(_mm512_add_epi32(sum, half), shift);
      sum = _mm512_srli_epi32(_mm512_mullo_epi32(sum, magic), kMagic32Bits);
      const int count = std::min(2 * kGroup, spec_.width - group * kGroup);
      _mm_mask_storeu_epi8(out + group * kGroup,
                           static_cast<__mmask16>((1u << count) - 1),
                           _mm512_cvtepi32_epi8(sum));
    }
    out += spec_.width;
  }
}

#undef PREPROCESS_AVX512
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

#else

void FrameMaker::AreaAvx2(const uint8_t* lut, const uint8_t* indices,
                          const uint8_t* previous,
                          uint8_t* out) const noexcept {
  AreaScalar(lut, indices, previous, out);
}

void FrameMaker::AreaAvx512(const uint8_t* lut, const uint8_t* indices,
                            const uint8_t* previous,
                            uint8_t* out) const noexcept {
  AreaScalar(lut, indices, previous, out);
}

#endif  // PREPROCESS_X86

}  // namespace preprocess
