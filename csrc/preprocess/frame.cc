// Palette indices to frames: the portable code, and beside it AVX2 and AVX-512
// versions with equal results that are chosen at run time.
#include "preprocess/frame.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "nes/palette.h"

#if defined(__x86_64__) && defined(__GNUC__)  // GCC and Clang
#define PREPROCESS_X86 1
#include <immintrin.h>
#endif

namespace preprocess {

namespace {

constexpr int kMaxSide = 1024;
constexpr int kMagicBits = 40;    // of magic_
constexpr int kMagic32Bits = 24;  // of magic32_
constexpr int kGroup = 8;         // output columns that share a window
constexpr int kWindow = 32;       // source columns in one
constexpr int kTaps = 4;          // source columns of one output at a time
// So that 255 times it fits the signed 16 bits of a sum down the columns.
constexpr int kMostRowUnits = 128;
// Slack for loads that begin near the end of a row of sums.
constexpr int kRowSlack = 32;

void Check(bool good, const std::string& message) {
  if (!good) throw std::invalid_argument(message);
}

}  // namespace

bool Supports(Path path) {
#ifdef PREPROCESS_X86
  switch (path) {
    case Path::kScalar:
      return true;
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2");
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return path == Path::kScalar;
}

Path BestPath() {
  if (Supports(Path::kAvx512)) return Path::kAvx512;
  if (Supports(Path::kAvx2)) return Path::kAvx2;
  return Path::kScalar;
}

const char* Name(Path path) {
  switch (path) {
    case Path::kAvx2:
      return "avx2";
    case Path::kAvx512:
      return "avx512";
    case Path::kScalar:
      break;
  }
  return "scalar";
}

AxisWeights::AxisWeights(int in, int out) {
  const int divisor = std::gcd(in, out);
  in_units = in / divisor;
  out_units = out / divisor;
  first.resize(out);
  for (int i = 0; i < out; ++i) {
    first[i] = i * in_units / out_units;
    const int last = ((i + 1) * in_units - 1) / out_units;
    taps = std::max(taps, last - first[i] + 1);
  }
  weights.assign(static_cast<size_t>(out) * taps, 0);
  for (int i = 0; i < out; ++i) {
    for (int tap = 0; tap < taps; ++tap) {
      const int source = first[i] + tap;
      const int begin = std::max(source * out_units, i * in_units);
      const int end = std::min((source + 1) * out_units, (i + 1) * in_units);
      if (end > begin) {
        weights[i * taps + tap] = static_cast<uint16_t>(end - begin);
      }
    }
  }
}

FrameMaker::FrameMaker(const FrameSpec& spec, Path path) : spec_(spec) {
  const int height = spec.height;
  const int width = spec.width;
  Check(height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide,
        "a frame of " + std::to_string(height) + " x " + std::to_string(width) +
            " pixels is outside 1 to 1024; choose img_height and img_width "
            "in it, such as 84");
  Check(Supports(path), std::string("this CPU has no ") + Name(path));
  if (spec.hud == Hud::kCrop) top_ = kHudRows;
  if (spec.hud == Hud::kMask) black_rows_ = kHudRows;
  const int in_height = kSourceHeight - top_;

  for (int i = 0; i < 64; ++i) {
    if (spec.gray) luts_[0][i] = nes::kLuma[i];
    for (int c = 0; c < 3 && !spec.gray; ++c) {
      luts_[c][i] = nes::kPalette[i][c];
    }
  }
  if (!spec.area) {
    for (int i = 0; i < height; ++i) {
      nearest_rows_.push_back(top_ + i * in_height / height);
    }
    for (int i = 0; i < width; ++i) {
      nearest_columns_.push_back(i * kSourceWidth / width);
    }
    return;
  }
  Check(height <= in_height && width <= kSourceWidth,
        "area resize only shrinks: " + std::to_string(height) + " x " +
            std::to_string(width) + " was asked of a picture of " +
            std::to_string(in_height) + " x " + std::to_string(kSourceWidth) +
            "; choose a smaller img_height and img_width, or "
            "use_inter_area_resize=False (nearest neighbour)");
  rows_ = AxisWeights(in_height, height);
  columns_ = AxisWeights(kSourceWidth, width);
  const uint32_t divisor = rows_.in_units * columns_.in_units;
  half_ = divisor / 2;
  magic_ = ((uint64_t{1} << kMagicBits) + divisor - 1) / divisor;
  PlanFast(path);
}

// The vector paths multiply bytes by signed bytes into signed 16-bit sums;
// heights that share no large factor with the source stay on the scalar path.
void FrameMaker::PlanFast(Path path) {
  uint32_t divisor = rows_.in_units * columns_.in_units;
  const uint32_t largest = 255 * divisor + half_;
  while (divisor % 2 == 0) {
    divisor /= 2;
    ++shift_;
  }
  const uint32_t one = 1u << kMagic32Bits;
  magic32_ = (one + divisor - 1) / divisor;
  const uint64_t excess = uint64_t{magic32_} * divisor - one;
  const uint64_t reach = largest >> shift_;
  const bool divides = excess * reach < one && reach * magic32_ <= UINT32_MAX;

  if (!divides || rows_.in_units > kMostRowUnits) return;

  pairs_ = (rows_.taps + 1) / 2;
  for (int i = 0; i < spec_.height; ++i) {
    for (int pair = 0; pair < pairs_; ++pair) {
      const int tap = 2 * pair;
      const uint16_t* weights = &rows_.weights[i * rows_.taps];
      const uint16_t low = weights[tap];
      const uint16_t high = tap + 1 < rows_.taps ? weights[tap + 1] : 0;
      row_pairs_.push_back(static_cast<uint16_t>(low | high << 8));
    }
  }
  const bool fits = PlanColumns();
  if (path == Path::kAvx512 && !fits) path = Path::kAvx2;
  path_ = path;
}

// Lays out the row weights for 8 output columns and 4 taps at a time. Returns
// whether the sums under each 8 columns fit the window of the AVX-512 path.
bool FrameMaker::PlanColumns() {
  groups_ = (spec_.width + kGroup - 1) / kGroup;
  passes_ = (columns_.taps + kTaps - 1) / kTaps;
  bool fits = passes_ == 1;
  for (int group = 0; group < groups_; ++group) {
    const int begin = group * kGroup;
    const int end = std::min(begin + kGroup, spec_.width);
    window_.push_back(columns_.first[begin]);
    for (int k = 0; k < passes_ * kGroup * kTaps; ++k) {
      const int i = begin + k / kTaps % kGroup;
      const int tap = k / (kGroup * kTaps) * kTaps + k % kTaps;
      int weight = 0;
      int index = 0;
      if (i < end && tap < columns_.taps) {
        weight = columns_.weights[i * columns_.taps + tap];
        if (weight > 0) index = columns_.first[i] + tap - window_.back();
      }
      fits = fits && index < kWindow;
      window_index_.push_back(static_cast<uint16_t>(index));
      window_weight_.push_back(static_cast<int16_t>(weight));
    }
  }
  return fits;
}

void FrameMaker::Make(const uint8_t* indices, const uint8_t* previous,
                      uint8_t* out) const noexcept {
  const size_t plane = static_cast<size_t>(spec_.height) * spec_.width;
  for (int c = 0; c < channels(); ++c) {
    Plane(luts_[c].data(), indices, previous, out + c * plane);
  }
}

void FrameMaker::Plane(const uint8_t* lut, const uint8_t* indices,
                       const uint8_t* previous, uint8_t* out) const noexcept {
  if (!spec_.area) return Nearest(lut, indices, previous, out);
  switch (path_) {
    case Path::kAvx512:
      return AreaAvx512(lut, indices, previous, out);
    case Path::kAvx2:
      return AreaAvx2(lut, indices, previous, out);
    case Path::kScalar:
      return AreaScalar(lut, indices, previous, out);
  }
}

void FrameMaker::Nearest(const uint8_t* lut, const uint8_t* indices,
                         const uint8_t* previous, uint8_t* out) const noexcept {
  for (const int row : nearest_rows_) {
    const uint8_t* line = indices + row * kSourceWidth;
    const uint8_t* before = previous ? previous + row * kSourceWidth : line;
    for (const int column : nearest_columns_) {
      const uint8_t value =
          std::max(lut[line[column] & 63], lut[before[column] & 63]);
      *out++ = row < black_rows_ ? 0 : value;
    }
  }
}

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

#ifdef PREPROCESS_X86

// GCC 12 takes the deliberately undefined sources inside its own AVX-512
// headers for our uninitialised variables (GCC bug 105593).
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace {

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

void FrameStack::FillWithNewest() {
  const int newest = oldest_ == 0 ? frames_ - 1 : oldest_ - 1;
  const uint8_t* source = data_.data() + newest * frame_bytes_;
  for (int i = 0; i < frames_; ++i) {
    if (i == newest) continue;
    std::memcpy(data_.data() + i * frame_bytes_, source, frame_bytes_);
  }
}

void FrameStack::CopyTo(uint8_t* out) const {
  const size_t head = oldest_ * frame_bytes_;
  std::memcpy(out, data_.data() + head, data_.size() - head);
  std::memcpy(out + data_.size() - head, data_.data(), head);
}

void FrameStack::CopyFrom(const uint8_t* in) {
  oldest_ = 0;
  std::memcpy(data_.data(), in, data_.size());
}

}  // namespace preprocess
