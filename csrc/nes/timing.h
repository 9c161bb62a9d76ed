// NTSC picture timing in PPU dots, and how dots relate to CPU cycles. Source:
// NESdev "PPU frame timing", "Cycle reference chart".
#pragma once

#include <cstdint>

namespace nes {

constexpr uint32_t kDotsPerLine = 341;
constexpr uint32_t kLinesPerFrame = 262;
/// Of a frame that drops no dot (odd frames drop one while rendering).
constexpr uint32_t kDotsPerFrame = kLinesPerFrame * kDotsPerLine;
constexpr uint32_t kDotsPerCycle = 3;

// Scanlines: 0-239 are drawn, 241-260 are the vertical blank.
constexpr uint32_t kVisibleLines = 240;
constexpr uint32_t kVblankLine = 241;
constexpr uint32_t kPreRenderLine = 261;

/// Dots from dot 0 of the vertical blank, where frames begin here, to dot 0 of
/// `line`, which is kPreRenderLine or, one line on, kLinesPerFrame (line 0).
constexpr uint32_t DotsAfterVblank(uint32_t line) {
  return (line - kVblankLine) * kDotsPerLine;
}

/// Dot count at CPU cycle 0 (line 0, dot 0 of the first frame).
constexpr uint64_t kPowerOnDot = DotsAfterVblank(kLinesPerFrame);

/// Dot at which a bus access of CPU cycle `cycle` reaches the PPU.
constexpr uint64_t DotOfAccess(uint64_t cycle) {
  return kDotsPerCycle * cycle + kPowerOnDot + 1;
}
/// CPU cycle in which an edge at `dot` is seen by the CPU's interrupt inputs.
constexpr uint64_t CycleOfEdge(uint64_t dot) {
  return (dot - kPowerOnDot) / kDotsPerCycle;
}

}  // namespace nes
