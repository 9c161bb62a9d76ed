// One row of an area resize with AVX2 and with AVX-512; frame.h describes the
// plan.
#include "preprocess/frame.h"

#ifdef CPU_X86
#include <algorithm>
#include <cstring>

#include "cpu/x86.h"
#endif

namespace preprocess {

#ifdef CPU_X86

namespace {

// Slack for loads that begin near the end of a row of sums.
constexpr int kRowSlack = 32;
constexpr int kSumsStride = kSourceWidth + kRowSlack;

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

#define PREPROCESS_AVX2 __attribute__((target("avx2")))

PREPROCESS_AVX2 void FrameMaker::BrightLineAvx2(const uint8_t* lut,
                                                const uint8_t* indices,
                                                const uint8_t* previous,
                                                uint8_t* out) noexcept {
  __m256i table[4];
  for (int i = 0; i < 4; ++i) {
    table[i] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(lut + 16 * i)));
  }
  for (int x = 0; x < kSourceWidth; x += 32) {
    const auto load = [&](const uint8_t* line) PREPROCESS_AVX2 {
      return Lookup(table, _mm256_loadu_si256(
                               reinterpret_cast<const __m256i*>(line + x)));
    };
    __m256i bright = load(indices);
    if (previous != nullptr) bright = _mm256_max_epu8(bright, load(previous));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), bright);
  }
}

PREPROCESS_AVX2 void FrameMaker::AreaRowsAvx2(int row, int end,
                                              const Lines& plane,
                                              uint8_t* out) const noexcept {
  alignas(32) uint16_t all_sums[kRowsAtOnce][kSumsStride];
  for (int i = row; i < end; ++i) SumLinesAvx2(i, plane, all_sums[i - row]);
  for (int i = row; i < end; ++i, out += spec_.width) {
    SumColumnsAvx2(all_sums[i - row], out);
  }
}

// Computes the sums down the columns, 16 bits each, for one row.
PREPROCESS_AVX2 void FrameMaker::SumLinesAvx2(int row, const Lines& plane,
                                              uint16_t* sums) const noexcept {
  std::memset(sums + kSourceWidth, 0, kRowSlack * sizeof(sums[0]));
  const int top = top_ + rows_.first[row];
  // Two pairs of lines cover most frames; further pairs are added to the sums.
  for (int pair = 0; pair < pairs_; pair += 2) {
    const uint8_t* line[4];
    for (int k = 0; k < 4; ++k) line[k] = LineUnder(plane, top + 2 * pair + k);
    const uint16_t* weights = &row_pairs_[row * pairs_ + pair];
    const __m256i weight_ab =
        _mm256_set1_epi16(static_cast<int16_t>(weights[0]));
    const __m256i weight_cd = _mm256_set1_epi16(
        static_cast<int16_t>(pair + 1 < pairs_ ? weights[1] : 0));
    for (int x = 0; x < kSourceWidth; x += 32) {
      const auto load = [&](int k) PREPROCESS_AVX2 {
        return _mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(line[k] + x));
      };
      const __m256i a = load(0), b = load(1), c = load(2), d = load(3);
      const __m256i low = _mm256_add_epi16(
          _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), weight_ab),
          _mm256_maddubs_epi16(_mm256_unpacklo_epi8(c, d), weight_cd));
      const __m256i high = _mm256_add_epi16(
          _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), weight_ab),
          _mm256_maddubs_epi16(_mm256_unpackhi_epi8(c, d), weight_cd));
      __m256i left = _mm256_permute2x128_si256(low, high, 0x20);
      __m256i right = _mm256_permute2x128_si256(low, high, 0x31);
      __m256i* to = reinterpret_cast<__m256i*>(sums + x);
      if (pair > 0) {
        left = _mm256_add_epi16(left, _mm256_load_si256(to));
        right = _mm256_add_epi16(right, _mm256_load_si256(to + 1));
      }
      _mm256_store_si256(to, left);
      _mm256_store_si256(to + 1, right);
    }
  }
}

// Computes the sums along one row and divides them.
PREPROCESS_AVX2 void FrameMaker::SumColumnsAvx2(const uint16_t* sums,
                                                uint8_t* out) const noexcept {
  const __m256i half = _mm256_set1_epi32(static_cast<int>(half_));
  const __m256i magic = _mm256_set1_epi32(static_cast<int>(magic32_));
  const __m128i shift = _mm_cvtsi32_si128(shift_);
  const int width = spec_.width, passes = passes_;
  // Eight sums to eight bytes in the low half.
  const auto divide = [&](__m256i sum) PREPROCESS_AVX2 {
    sum = _mm256_srl_epi32(_mm256_add_epi32(sum, half), shift);
    sum = _mm256_srli_epi32(_mm256_mullo_epi32(sum, magic), kMagic32Bits);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(sum),
                                           _mm256_extracti128_si256(sum, 1));
    return _mm_packus_epi16(words, words);
  };
  const auto store = [&](int begin, __m128i eight) PREPROCESS_AVX2 {
    if (begin + kGroup <= width) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + begin), eight);
    } else {
      int64_t tail = _mm_cvtsi128_si64(eight);
      int i = begin;
      if ((width - i) & 4) {
        std::memcpy(out + i, &tail, 4);
        i += 4, tail >>= 32;
      }
      for (; i < width; ++i, tail >>= 8) out[i] = static_cast<uint8_t>(tail);
    }
  };
  if (!pair_first_.empty()) {
    const int* first = pair_first_.data();
    const uint8_t* shuffle = pair_shuffle_.data();
    const int16_t* weight = pair_weight_.data();
    // The taps of two outputs are among 8 sums: 128 bits.
    const auto two_pairs = [&](int k) PREPROCESS_AVX2 {
      const auto load = [&](int pair) PREPROCESS_AVX2 {
        return _mm_loadu_si128(
            reinterpret_cast<const __m128i*>(sums + first[pair]));
      };
      const __m256i order = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(shuffle + 32 * k));
      return _mm256_madd_epi16(
          _mm256_shuffle_epi8(_mm256_set_m128i(load(2 * k + 1), load(2 * k)),
                              order),
          _mm256_loadu_si256(
              reinterpret_cast<const __m256i*>(weight + 16 * k)));
    };
    for (int begin = 0; begin < width; begin += kGroup) {
      store(begin, divide(_mm256_hadd_epi32(two_pairs(0), two_pairs(1))));
      first += kGroup / 2;
      shuffle += 64;
      weight += 32;
    }
    return;
  }
  const int16_t* weight = window_weight_.data();
  for (int begin = 0; begin < width; begin += kGroup) {
    const int* first = &columns_.first[begin];
    const int last = std::min(kGroup, width - begin) - 1;
    __m256i sum = _mm256_setzero_si256();
    for (int pass = 0; pass < passes; ++pass) {
      // The 4 sums under one output are neighbours: 64 bits each.
      const auto taps = [&](int j) {
        int64_t four;
        std::memcpy(&four, sums + first[std::min(j, last)] + pass * kTaps,
                    sizeof(four));
        return four;
      };
      const __m256i* weights = reinterpret_cast<const __m256i*>(weight);
      const __m256i a = _mm256_madd_epi16(
          _mm256_setr_epi64x(taps(0), taps(1), taps(2), taps(3)),
          _mm256_loadu_si256(weights));
      const __m256i b = _mm256_madd_epi16(
          _mm256_setr_epi64x(taps(4), taps(5), taps(6), taps(7)),
          _mm256_loadu_si256(weights + 1));
      // The horizontal add leaves outputs 0 1 4 5 2 3 6 7.
      sum = _mm256_add_epi32(
          sum, _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xD8));
      weight += kGroup * kTaps;
    }
    store(begin, divide(sum));
  }
}

#define PREPROCESS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

PREPROCESS_AVX512 void FrameMaker::BrightLineAvx512(const uint8_t* lut,
                                                    const uint8_t* indices,
                                                    const uint8_t* previous,
                                                    uint8_t* out) noexcept {
  const __m512i table = _mm512_loadu_si512(lut);
  for (int x = 0; x < kSourceWidth; x += 64) {
    __m512i bright =
        _mm512_permutexvar_epi8(_mm512_loadu_si512(indices + x), table);
    if (previous != nullptr) {
      bright = _mm512_max_epu8(
          bright,
          _mm512_permutexvar_epi8(_mm512_loadu_si512(previous + x), table));
    }
    _mm512_storeu_si512(out + x, bright);
  }
}

PREPROCESS_AVX512 void FrameMaker::AreaRowsAvx512(int row, int end,
                                                  const Lines& plane,
                                                  uint8_t* out) const noexcept {
  const __m512i half = _mm512_set1_epi32(static_cast<int>(half_));
  const __m512i magic = _mm512_set1_epi32(static_cast<int>(magic32_));
  const __m128i shift = _mm_cvtsi32_si128(shift_);
  // Undo the 128-bit lanes of the byte interleave; pick even and odd sums.
  const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                         22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  alignas(64) uint16_t all_sums[kRowsAtOnce * kSumsStride];
  for (int i = row; i < end; ++i) {
    uint16_t* const sums = all_sums + (i - row) * kSumsStride;
    std::memset(sums + kSourceWidth, 0, kRowSlack * sizeof(sums[0]));
    const int top = top_ + rows_.first[i];
    constexpr int kChunks = kSourceWidth / 64;
    __m512i low[kChunks], high[kChunks];
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      low[chunk] = high[chunk] = _mm512_setzero_si512();
    }
    for (int pair = 0; pair < pairs_; ++pair) {
      const __m512i weight = _mm512_set1_epi16(
          static_cast<int16_t>(row_pairs_[i * pairs_ + pair]));
      const uint8_t* const upper = LineUnder(plane, top + 2 * pair);
      const uint8_t* const lower = LineUnder(plane, top + 2 * pair + 1);
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const __m512i a = _mm512_loadu_si512(upper + chunk * 64);
        const __m512i b = _mm512_loadu_si512(lower + chunk * 64);
        low[chunk] = _mm512_add_epi16(
            low[chunk],
            _mm512_maddubs_epi16(_mm512_unpacklo_epi8(a, b), weight));
        high[chunk] = _mm512_add_epi16(
            high[chunk],
            _mm512_maddubs_epi16(_mm512_unpackhi_epi8(a, b), weight));
      }
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint16_t* const to = sums + chunk * 64;
      _mm512_store_si512(
          to, _mm512_permutex2var_epi64(low[chunk], first_half, high[chunk]));
      _mm512_store_si512(to + 32, _mm512_permutex2var_epi64(
                                      low[chunk], second_half, high[chunk]));
    }
  }
  // What two groups need is loaded once for all rows.
  for (int group = 0; group < groups_; group += 2) {
    const int other = std::min(group + 1, groups_ - 1);
    const uint16_t* const from_a = all_sums + window_[group];
    const uint16_t* const from_b = all_sums + window_[other];
    const __m512i index_a = _mm512_loadu_si512(&window_index_[group * kWindow]);
    const __m512i index_b = _mm512_loadu_si512(&window_index_[other * kWindow]);
    const __m512i weight_a =
        _mm512_loadu_si512(&window_weight_[group * kWindow]);
    const __m512i weight_b =
        _mm512_loadu_si512(&window_weight_[other * kWindow]);
    const int count = std::min(2 * kGroup, spec_.width - group * kGroup);
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    for (int i = 0; i < end - row; ++i) {
      const __m512i a = _mm512_madd_epi16(
          _mm512_permutexvar_epi16(
              index_a, _mm512_loadu_si512(from_a + i * kSumsStride)),
          weight_a);
      const __m512i b = _mm512_madd_epi16(
          _mm512_permutexvar_epi16(
              index_b, _mm512_loadu_si512(from_b + i * kSumsStride)),
          weight_b);
      __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                                     _mm512_permutex2var_epi32(a, odd, b));
      sum = _mm512_srl_epi32(_mm512_add_epi32(sum, half), shift);
      sum = _mm512_srli_epi32(_mm512_mullo_epi32(sum, magic), kMagic32Bits);
      _mm_mask_storeu_epi8(out + i * spec_.width + group * kGroup, mask,
                           _mm512_cvtepi32_epi8(sum));
    }
  }
}

#undef PREPROCESS_AVX2
#undef PREPROCESS_AVX512

#endif  // CPU_X86

}  // namespace preprocess
