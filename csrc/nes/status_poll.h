// The loop on the PPU's status register that the CPU can skip, recognised by
// its code: it waits until the sprite-0 hit flag changes.
//
//   loop: LDA $2002    AD 02 20
//         AND #$40     29 40
//         BNE loop     D0 F9      or BEQ, F0 F9
#pragma once

#include "nes/opcodes.h"

namespace nes::status_poll {

constexpr unsigned kBytes = 7;
/// The operand of the branch: the distance from the next instruction back to
/// the loop's start.
constexpr unsigned kBranchBack = 0x100 - kBytes;

/// Whether the instruction at `code` (four readable bytes) is LDA $2002.
NES_INLINE bool ReadsStatus(const uint8_t* code) {
  return (LoadCode(code) & 0xFFFFFF) == 0x2002AD;
}

/// Whether the loop is at `code`; the caller has checked that the operand of
/// its branch is kBranchBack.
inline bool IsAt(const uint8_t* code) {
  constexpr unsigned kBneOrBeq = 0xD0;  // without bit 5, which tells them apart
  return ReadsStatus(code) && code[3] == 0x29 && code[4] == 0x40 &&
         (code[5] & 0xDF) == kBneOrBeq;
}

/// Whether the loop at `code` goes on when it has read this status.
inline bool GoesOn(const uint8_t* code, unsigned status) {
  return ((status & 0x40) == 0) == (code[5] == 0xF0);
}

constexpr unsigned kReadCycles = 4;  // of LDA

/// Cycles of one round that is begun at `pc`: 4 + 2 + 3, and
/// `page_cycles` more where the taken branch comes from another page (NESdev
/// "6502 cycle times").
constexpr unsigned RoundCycles(unsigned pc, unsigned page_cycles) {
  return 9 + ((pc + kBytes) >> 8 != pc >> 8 ? page_cycles : 0);
}

}  // namespace nes::status_poll
