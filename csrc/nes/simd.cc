// The portable, the AVX2 and the NEON version of the renderer's inner loop.
#include "nes/simd.h"

#if defined(CPU_X86)
#include <immintrin.h>
#elif defined(CPU_NEON)
#include <arm_neon.h>
#endif

namespace nes::simd {

void DrawTilesPortable(const uint8_t* tiles,
                       const uint16_t offsets[kTilesInLine],
                       const uint8_t colours[16], uint8_t* const out[4]) {
  for (int i = 0; i < kTilesInLine; ++i) {
    const uint8_t* tile = tiles + offsets[i];
    for (int r = 0; r < 4; ++r) {
      for (int x = 0; x < 8; ++x) {
        out[r][i * 8 + x] = colours[tile[r * 8 + x]];
      }
    }
  }
}

namespace {

#if defined(CPU_X86)

__attribute__((target("avx2"))) void DrawTilesAvx2(
    const uint8_t* tiles, const uint16_t offsets[kTilesInLine],
    const uint8_t colours[16], uint8_t* const out[4]) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(colours)));
  const auto tile = [&](int i) __attribute__((target("avx2"))) {
    return _mm256_shuffle_epi8(
        table, _mm256_loadu_si256(
                   reinterpret_cast<const __m256i*>(tiles + offsets[i])));
  };
  uint8_t* const to[4] = {out[0], out[1], out[2], out[3]};
  const auto store = [&](int r, int i,
                         __m256i bytes) __attribute__((target("avx2"))) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[r] + i * 8), bytes);
  };
  // Four tiles of four lines each become four lines of four tiles.
  for (int i = 0; i < kTilesInLine - 1; i += 4) {
    const __m256i a = tile(i), b = tile(i + 1);
    const __m256i c = tile(i + 2), d = tile(i + 3);
    const __m256i even_ab = _mm256_unpacklo_epi64(a, b);
    const __m256i even_cd = _mm256_unpacklo_epi64(c, d);
    const __m256i odd_ab = _mm256_unpackhi_epi64(a, b);
    const __m256i odd_cd = _mm256_unpackhi_epi64(c, d);
    store(0, i, _mm256_permute2x128_si256(even_ab, even_cd, 0x20));
    store(1, i, _mm256_permute2x128_si256(odd_ab, odd_cd, 0x20));
    store(2, i, _mm256_permute2x128_si256(even_ab, even_cd, 0x31));
    store(3, i, _mm256_permute2x128_si256(odd_ab, odd_cd, 0x31));
  }
  constexpr int kLast = kTilesInLine - 1;
  const __m256i last = tile(kLast);
  const __m128i low = _mm256_castsi256_si128(last);
  const __m128i high = _mm256_extracti128_si256(last, 1);
  const auto store8 = [&](int r, __m128i bytes) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to[r] + kLast * 8), bytes);
  };
  store8(0, low);
  store8(1, _mm_unpackhi_epi64(low, low));
  store8(2, high);
  store8(3, _mm_unpackhi_epi64(high, high));
}

#elif defined(CPU_NEON)

void DrawTilesNeon(const uint8_t* tiles, const uint16_t offsets[kTilesInLine],
                   const uint8_t colours[16], uint8_t* const out[4]) {
  const uint8x16_t table = vld1q_u8(colours);
  uint8_t* const to[4] = {out[0], out[1], out[2], out[3]};
  for (int i = 0; i < kTilesInLine; ++i) {
    const uint8_t* tile = tiles + offsets[i];
    const uint8x16_t first = vqtbl1q_u8(table, vld1q_u8(tile));
    const uint8x16_t second = vqtbl1q_u8(table, vld1q_u8(tile + 16));
    vst1_u8(to[0] + i * 8, vget_low_u8(first));
    vst1_u8(to[1] + i * 8, vget_high_u8(first));
    vst1_u8(to[2] + i * 8, vget_low_u8(second));
    vst1_u8(to[3] + i * 8, vget_high_u8(second));
  }
}

#endif

auto* ChosenDrawTiles() {
#if defined(CPU_X86)
  if (cpu::Best(kPaths) == cpu::Path::kAvx2) return &DrawTilesAvx2;
#elif defined(CPU_NEON)
  if (cpu::Best(kPaths) == cpu::Path::kNeon) return &DrawTilesNeon;
#endif
  return &DrawTilesPortable;
}

}  // namespace

void DrawTiles(const uint8_t* tiles, const uint16_t offsets[kTilesInLine],
               const uint8_t colours[16], uint8_t* const out[4]) {
  static auto* const draw = ChosenDrawTiles();
  draw(tiles, offsets, colours, out);
}

}  // namespace nes::simd
