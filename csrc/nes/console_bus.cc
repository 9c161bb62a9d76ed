// Addresses other than RAM and PRG: registers, pads, OAM DMA, cartridge RAM.
// Also the status poll that is skipped.
#include "nes/console_bus.h"

#include <algorithm>
#include <cstring>

#include "nes/status_poll.h"

namespace nes {
namespace {

constexpr uint64_t kPollMargin = 16;  // cycles kept clear of any event

}  // namespace

// While the hit flag does not change, every round of the loop is the same:
// registers and flags at its start equal those at its end. So whole rounds can
// be skipped; the first round that reads a change is executed. A frame of
// nes-py may end within a round, with the PPU ahead of the value that the round
// has read: such a round is executed too.
uint64_t ConsoleBus::SkippablePollCycles(unsigned loop_pc, uint64_t cycle) {
  if (!console_.has_polled_ || loop_pc < 0x8000 ||
      loop_pc > 0xFFFF - status_poll::kBytes ||
      !status_poll::IsAt(prg_ + (loop_pc & 0x7FFF))) {
    return 0;
  }
  const uint64_t round =
      status_poll::RoundCycles(loop_pc, timing().branch_page_cycles);
  const uint64_t end = std::max(limit(), cycle + kPollMargin) - kPollMargin;
  uint64_t rounds = (end - cycle) / round;
  const uint64_t change = console_.ppu_.NextHitChangeDot();
  if (change != kNever) {
    // The first cycle in which the change can be read, and the first round that
    // reads in it; under Timing::kNesPy one round more may be executed.
    const uint64_t seen = std::max(CycleOfEdge(change + 1), cycle + 3);
    rounds = std::min(rounds, (seen - cycle - 3 + round - 1) / round);
  }
  return rounds * round;
}

uint8_t Console::ReadIo(unsigned address, uint64_t cycle) {
  // The bus is not driven: its last byte was the high byte of the address.
  const auto open_bus = static_cast<uint8_t>(address >> 8);
  if (address < 0x4000) {
    const PpuTimes before = TimesOfPpu();
    const uint8_t value = ppu_.ReadRegister(address, cycle);
    has_polled_ = true;
    if (TimesOfPpu() != before) UpdateLimit();
    return value;
  }
  if (address == 0x4015) {
    const uint8_t value = apu_.ReadStatus(cycle);
    UpdateLimit();
    return static_cast<uint8_t>(value | (open_bus & 0x20));
  }
  if (ConsoleBus::IsPad(address)) return ReadPad(address);
  if (address >= 0x6000 && !prg_ram_.empty()) {
    return prg_ram_[address & (kPrgRamBytes - 1)];
  }
  return open_bus;
}

unsigned Console::WriteIo(unsigned address, uint8_t value, uint64_t cycle) {
  if (address < 0x4000 || address == 0x4014) {
    const PpuTimes before = TimesOfPpu();
    unsigned halted = 0;
    if (address == 0x4014) {
      halted = StartOamDma(value, cycle);
    } else {
      ppu_.WriteRegister(address, value, cycle);
    }
    if (TimesOfPpu() != before) UpdateLimit();
    return halted;
  }
  if (address == 0x4016) {
    WriteStrobe(value);
  } else if (address < 0x4018) {
    apu_.WriteRegister(address, value, cycle);
    // The DMC's registers, and those of interrupts.
    if (address >= 0x4010) UpdateLimit();
  } else if (address >= 0x6000) {
    if (prg_ram_.empty()) prg_ram_.resize(kPrgRamBytes);
    prg_ram_[address & (kPrgRamBytes - 1)] = value;
  }
  return 0;
}

uint8_t Console::ReadPad(unsigned address) {
  PadState& pads = state_.pad;
  const unsigned pad = address & 1;
  if (pads.strobe) pads.shift[pad] = pads.buttons[pad];
  const uint8_t bit = pads.shift[pad] & 1;
  // After the eight buttons an official pad returns 1.
  if (!pads.strobe) pads.shift[pad] = pads.shift[pad] >> 1 | 0x80;
  return static_cast<uint8_t>((address >> 8 & 0xE0) | bit);
}

void Console::WriteStrobe(uint8_t value) {
  PadState& pads = state_.pad;
  const uint8_t strobe = value & 1;
  if (pads.strobe && !strobe) {
    std::memcpy(pads.shift, pads.buttons, sizeof(pads.shift));
  }
  pads.strobe = strobe;
}

// 256 reads and writes, one cycle to halt, and one more to get in step with
// the even cycles on which reads happen (NESdev "DMA").
unsigned Console::StartOamDma(uint8_t page, uint64_t cycle) {
  const unsigned base = page << 8u;
  if (base < 0x2000) {
    ppu_.WriteOam(state_.ram + (base & kRamMask), cycle);
  } else {
    uint8_t bytes[256];
    for (unsigned i = 0; i < 256; ++i) {
      bytes[i] = base < 0x6000 ? ReadIo(base + i, cycle + 2 + 2 * i)
                               : Peek(static_cast<uint16_t>(base + i));
    }
    ppu_.WriteOam(bytes, cycle);
  }
  // nes-py's cycle count begins at 1, the console's at 7, and nes-py tests the
  // count in the first cycle of the instruction.
  const bool waits = timing_ == Timing::kNesPy ? cycle & 1 : !(cycle & 1);
  return 513 + waits;
}

uint8_t Console::Peek(uint16_t address) const {
  if (address < 0x2000) return state_.ram[address & kRamMask];
  if (address >= 0x8000) return cartridge_->prg()[address & 0x7FFF];
  if (address >= 0x6000 && !prg_ram_.empty()) {
    return prg_ram_[address & (kPrgRamBytes - 1)];
  }
  return 0;
}

}  // namespace nes
