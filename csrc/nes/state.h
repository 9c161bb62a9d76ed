// Everything about a console that changes while it runs, as one plain struct
// without padding: saving is an assignment, equality a memcmp, and a hash of
// its bytes is exact. ROM, decoded tiles, pixels and predictions are not part
// of it.
//
// Time is one counter of CPU cycles since power-on (NTSC, 1.789773 MHz). PPU
// time is counted in dots, three to a cycle; the dot count of cycle c is
// 3 c + kPowerOnDot, so that power-on falls on dot 0 of scanline 0.
#pragma once

#include <cstdint>
#include <type_traits>

namespace nes {

constexpr uint64_t kNever = ~uint64_t{0};

/// The console's work RAM, and the mask that folds its mirrors onto it.
constexpr unsigned kRamBytes = 2048;
constexpr unsigned kRamMask = kRamBytes - 1;
/// The PPU's own video RAM: two nametables of 1 KiB.
constexpr unsigned kNametableBytes = 2048;

/// 6502 registers (NESdev "CPU registers") and the interrupt bookkeeping.
struct CpuState {
  uint64_t cycle;     // cycles executed since power-on
  uint64_t i_change;  // cycle at which the last CLI, SEI or PLP ended
  uint16_t pc;
  uint8_t a, x, y, sp;
  uint8_t p;         // NV-BDIZC; bits 4 and 5 read as 0 and 1
  uint8_t i_before;  // I flag that the poll inside that instruction saw
  uint8_t jammed;    // 1 after a JAM opcode: only reset helps
  uint8_t reserved[7];
};

/// 2C02 (NESdev "PPU registers", "PPU scrolling"). Scanlines are counted from
/// the vertical blank: line 241 is the first of a frame here.
struct PpuState {
  uint64_t frame_dot;  // dot count at line 241, dot 0 of this frame
  uint64_t nmi_dot;    // dot of an NMI edge the CPU has not served, or kNever
  uint64_t latch_cycle[3];  // when bits 0-4, 5, 6-7 of io_latch were driven
  uint32_t position;        // dots of this frame already accounted for
  uint16_t v, t;            // yyy NN YYYYY XXXXX
  uint8_t fine_x;
  uint8_t w;            // which write of $2005/$2006 comes next
  uint8_t ctrl;         // $2000: VPHB SINN
  uint8_t mask;         // $2001: BGRs bMmG
  uint8_t status;       // $2002: VSO in bits 7-5
  uint8_t oam_addr;     // $2003
  uint8_t read_buffer;  // $2007
  uint8_t io_latch;     // last value driven on the register bus
  uint8_t odd_frame;    // 1: the pre-render line may be a dot short
  uint8_t dot_skipped;  // 1: it was, in this frame
  uint8_t hide_vblank;  // 1: $2002 was read one dot before the flag rises
  uint8_t reserved[5];
  uint8_t palette[32];  // $3F00-$3F1F
  uint8_t oam[256];     // y, tile, attributes, x
  uint8_t nametable[kNametableBytes];
  uint64_t wrapped;  // Timing::kNesPy: a bit for each sprite of line 240
};

/// The parts of the 2A03's sound unit that programs can observe: length
/// counters, frame counter, DMC reader and their interrupts. No sound is made.
struct ApuState {
  uint64_t frame_start;  // cycle at which the frame sequence began
  uint64_t irq_cycle;    // cycle at which the frame interrupt rose, or kNever
  uint64_t dmc_next;     // cycle at which the DMC takes its next byte
  uint64_t dmc_irq_cycle;
  uint16_t dmc_remaining;
  uint8_t frame_mode;  // 1: five steps
  uint8_t frame_inhibit;
  uint8_t frame_step;  // next step of the sequence
  uint8_t enabled;     // $4015 bits 0-3
  uint8_t length[4];   // pulse 1, pulse 2, triangle, noise
  uint8_t halt[4];
  uint8_t dmc_control;  // $4010
  uint8_t dmc_length;   // $4013
  uint8_t dmc_full;     // sample buffer holds a byte
  uint8_t reserved[7];
};

struct PadState {
  uint8_t buttons[2];  // see Button in console.h
  uint8_t shift[2];    // bits still to be read from $4016, $4017
  uint8_t strobe;
  uint8_t reserved[3];
};

struct State {
  CpuState cpu;
  PpuState ppu;
  ApuState apu;
  PadState pad;
  uint8_t ram[kRamBytes];
  uint64_t step_end;  // Timing::kNesPy: cycle at which the last frame ended;
                      // 0 under Timing::kConsole
};

static_assert(std::is_trivially_copyable_v<State>);
static_assert(std::has_unique_object_representations_v<State>,
              "padding would make hashes and comparisons inexact");

}  // namespace nes
