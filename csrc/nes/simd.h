// The one inner loop of the renderer that vector instructions speed up, with
// the portable twin that defines it. Which one runs is chosen once per process
// by what the CPU offers; all give the same bytes.
#pragma once

#include <cstdint>

namespace nes::simd {

/// Tiles side by side in a line, enough for any fine scroll.
constexpr int kTilesInLine = 33;

/// Four lines of 33 decoded tiles (cartridge.h): of tile i the 4 x 8 bytes at
/// tiles + offsets[i], each of them a palette entry below 16. Line r is written
/// to out[r], 264 bytes of colours[entry].
void DrawTiles(const uint8_t* tiles, const uint16_t offsets[kTilesInLine],
               const uint8_t colours[16], uint8_t* const out[4]);
void DrawTilesPortable(const uint8_t* tiles,
                       const uint16_t offsets[kTilesInLine],
                       const uint8_t colours[16], uint8_t* const out[4]);

/// "avx2", "neon" or "portable": the version that DrawTiles uses here.
const char* Path();

}  // namespace nes::simd
