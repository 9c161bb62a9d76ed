// The portable and the AVX2 version of the renderer's inner loop.
#include "nes/simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define NES_HAVE_AVX2 1
#endif

namespace nes::simd {

void MapColoursPortable(const uint8_t* palette_entries,
                        const uint8_t colours[32], uint8_t* out) {
  for (int x = 0; x < 256; ++x) out[x] = colours[palette_entries[x]];
}

#ifdef NES_HAVE_AVX2

namespace {

__attribute__((target("avx2"))) void MapColoursAvx2(
    const uint8_t* palette_entries, const uint8_t colours[32], uint8_t* out) {
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(colours)));
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(colours + 16)));
  for (int x = 0; x < 256; x += 32) {
    const __m256i entry = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(palette_entries + x));
    // Bit 4 of an entry, moved to bit 7, selects the sprite half.
    const __m256i sprite = _mm256_slli_epi16(entry, 3);
    const __m256i colour =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(low, entry),
                           _mm256_shuffle_epi8(high, entry), sprite);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), colour);
  }
}

const bool kUseAvx2 = __builtin_cpu_supports("avx2");

}  // namespace

void MapColours(const uint8_t* palette_entries, const uint8_t colours[32],
                uint8_t* out) {
  if (kUseAvx2) {
    MapColoursAvx2(palette_entries, colours, out);
  } else {
    MapColoursPortable(palette_entries, colours, out);
  }
}

const char* Path() { return kUseAvx2 ? "avx2" : "portable"; }

#else

void MapColours(const uint8_t* palette_entries, const uint8_t colours[32],
                uint8_t* out) {
  MapColoursPortable(palette_entries, colours, out);
}

const char* Path() { return "portable"; }

#endif

}  // namespace nes::simd
