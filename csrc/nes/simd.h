// The one inner loop of the renderer that vector instructions speed up, with
// the portable twin that defines it. Which one runs is chosen once per process
// by what the CPU offers; both give the same bytes.
#pragma once

#include <cstdint>

namespace nes::simd {

/// out[x] = colours[palette_entries[x]] for 256 pixels; entries are 0-31.
void MapColours(const uint8_t* palette_entries, const uint8_t colours[32],
                uint8_t* out);
void MapColoursPortable(const uint8_t* palette_entries,
                        const uint8_t colours[32], uint8_t* out);

/// "avx2" or "portable": the version that MapColours uses here.
const char* Path();

}  // namespace nes::simd
