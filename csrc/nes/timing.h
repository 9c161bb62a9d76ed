// NTSC picture timing in PPU dots, and how dots relate to CPU cycles. Source:
// NESdev "PPU frame timing", "Cycle reference chart". Also the two timings of a
// console: the timing of the chips, and that of the emulator nes-py.
#pragma once

#include <cstdint>

namespace nes {

/// Where a frame ends, and when within an instruction things happen.
enum class Timing : uint8_t {
  /// The timing of the chips: a frame ends at the vertical blank.
  kConsole,
  /// The timing of nes-py 8.2.1 and 9.0.1: a frame ends kNesPyStepCycles after
  /// the last one, which is about 2,400 cycles into the game's interrupt
  /// handler, and half a cycle later each time. Accesses happen in the first
  /// cycle of their instruction; some instructions take a cycle more (cpu.h);
  /// an NMI is taken by the next instruction.
  kNesPy,
};

/// CPU cycles of a frame under Timing::kNesPy; a frame of the picture has half
/// a cycle less.
constexpr uint64_t kNesPyStepCycles = 29'781;

constexpr uint32_t kDotsPerLine = 341;
constexpr uint32_t kLinesPerFrame = 262;
/// Dots of a frame that drops no dot (odd frames drop one while rendering).
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
/// CPU cycle in which the CPU's interrupt inputs see an edge at `dot`.
constexpr uint64_t CycleOfEdge(uint64_t dot) {
  return (dot - kPowerOnDot) / kDotsPerCycle;
}

}  // namespace nes
