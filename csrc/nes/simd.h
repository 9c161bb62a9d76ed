// The only inner loop of the renderer with vector instructions, and the
// portable version that defines its result. The version is chosen once per
// process by the features of the CPU; all versions give the same bytes.
#pragma once

#include <cstdint>

#include "cpu/path.h"

namespace nes::simd {

/// Those with separate code.
inline constexpr cpu::Path kPaths[] = {cpu::Path::kScalar, cpu::Path::kNeon,
                                       cpu::Path::kAvx2};

/// Tiles in a line, enough for any fine scroll.
constexpr int kTilesInLine = 33;

/// Draws four lines of 33 decoded tiles (cartridge.h). The 4 x 8 bytes of tile
/// i are at tiles + offsets[i]; each byte is a palette entry below 16. Line r
/// is written to out[r], 264 bytes of colours[entry].
void DrawTiles(const uint8_t* tiles, const uint16_t offsets[kTilesInLine],
               const uint8_t colours[16], uint8_t* const out[4]);
void DrawTilesPortable(const uint8_t* tiles,
                       const uint16_t offsets[kTilesInLine],
                       const uint8_t colours[16], uint8_t* const out[4]);

}  // namespace nes::simd
