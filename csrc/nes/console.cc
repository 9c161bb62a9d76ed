// Power, reset, and the run of the CPU from event to event: interrupts, DMC,
// end of frame.
#include "nes/console.h"

#include <algorithm>

#include "nes/console_bus.h"
#include "nes/cpu.h"

namespace nes {

Console::Console(std::shared_ptr<const Cartridge> cartridge)
    : state_{},
      cartridge_(std::move(cartridge)),
      ppu_(*cartridge_, &state_.ppu),
      apu_(&state_.apu) {
  PowerOn();
}

void Console::PowerOn() {
  state_ = {};
  prg_ram_.clear();
  std::ranges::fill(ppu_.chr_ram(), uint8_t{0});
  ppu_.PowerOn();
  apu_.PowerOn();
  state_.cpu.sp = 0xFD;
  state_.cpu.p = 0x34;
  state_.cpu.i_change = kNever;
  state_.cpu.pc = static_cast<uint16_t>(Peek(0xFFFC) | Peek(0xFFFD) << 8);
  state_.cpu.cycle = 7;
}

void Console::Reset() {
  CpuState& cpu = state_.cpu;
  cpu.cycle += 7;
  cpu.sp = static_cast<uint8_t>(cpu.sp - 3);
  cpu.p |= 0x04;
  cpu.jammed = 0;
  cpu.pc = static_cast<uint16_t>(Peek(0xFFFC) | Peek(0xFFFD) << 8);
  ppu_.CatchUp(DotOfAccess(cpu.cycle - 1));
  ppu_.Reset();
  apu_.Reset(cpu.cycle - 4);
}

// --- Running ----------------------------------------------------------------

// A frame is over when the CPU has come to the point at which it would take
// the next frame's NMI. The PPU may have entered that frame a little earlier,
// when a register was read just then.
uint64_t Console::FrameEndCycle() const {
  const uint64_t vblank = state_.ppu.frame_dot == frame_dot_
                              ? ppu_.NextVblankDot()
                              : state_.ppu.frame_dot + 1;
  return CycleOfEdge(vblank) + 2;
}

bool Console::FrameOver() const { return state_.cpu.cycle >= FrameEndCycle(); }

void Console::RunFrame(uint8_t buttons, uint8_t* pixels) {
  state_.pad.buttons[0] = buttons;
  ppu_.set_output(pixels);
  frame_dot_ = state_.ppu.frame_dot;
  last_limit_ = kNever;
  ConsoleBus bus(this);
  while (!FrameOver()) {
    ServiceEvents();
    RunCpu(&state_.cpu, bus);
  }
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
  ppu_.set_output(nullptr);
}

void Console::StepInstruction() {
  ppu_.set_output(nullptr);
  frame_dot_ = state_.ppu.frame_dot;
  ConsoleBus bus(this);
  last_limit_ = state_.cpu.cycle + 1;
  ServiceEvents();
  last_limit_ = state_.cpu.cycle + 1;
  UpdateLimit();
  RunCpu(&state_.cpu, bus);
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
}

// Interrupts are polled before the last cycle of an instruction, so one that
// rises in cycle c is taken when the instruction ends at c + 2 or later
// (NESdev "CPU interrupts").
void Console::ServiceEvents() {
  CpuState& cpu = state_.cpu;
  StealDmcCycles();
  if (state_.ppu.nmi_dot != kNever &&
      CycleOfEdge(state_.ppu.nmi_dot) + 2 <= cpu.cycle) {
    state_.ppu.nmi_dot = kNever;
    Interrupt(0xFFFA);
  } else {
    const unsigned masked =
        cpu.cycle == cpu.i_change ? cpu.i_before : cpu.p & 4u;
    if (!masked && apu_.IrqCycle() + 2 <= cpu.cycle &&
        apu_.IrqCycle() != kNever) {
      Interrupt(0xFFFE);
    }
  }
  UpdateLimit();
  // At least one instruction runs between two polls.
  limit_ = std::max(limit_, cpu.cycle + 1);
}

void Console::Interrupt(unsigned vector) {
  CpuState& cpu = state_.cpu;
  if (cpu.jammed) return;
  const uint8_t pushed[3] = {static_cast<uint8_t>(cpu.pc >> 8),
                             static_cast<uint8_t>(cpu.pc),
                             static_cast<uint8_t>((cpu.p & ~0x10) | 0x20)};
  for (uint8_t byte : pushed) state_.ram[0x100 + cpu.sp--] = byte;
  cpu.p |= 0x04;
  cpu.cycle += 7;
  if (vector == 0xFFFE) vector = IrqVector(cpu.cycle);
  cpu.pc = static_cast<uint16_t>(Peek(static_cast<uint16_t>(vector)) |
                                 Peek(static_cast<uint16_t>(vector + 1)) << 8);
}

// The vector of an IRQ or BRK sequence that ends at `end`: an NMI that comes
// during its pushes takes it over.
unsigned Console::IrqVector(uint64_t end) {
  uint64_t& nmi_dot = state_.ppu.nmi_dot;
  ppu_.CatchUp(DotOfAccess(end - 3));
  if (nmi_dot == kNever || CycleOfEdge(nmi_dot) > end - 3) return 0xFFFE;
  nmi_dot = kNever;
  return 0xFFFA;
}

// The DMC halts the CPU for four cycles a sample byte. Approximation: between
// instructions, not in the middle of one.
void Console::StealDmcCycles() {
  while (apu_.DmcFetchCycle() <= state_.cpu.cycle) {
    state_.cpu.cycle += 4;
    apu_.FinishDmcFetch(state_.cpu.cycle);
  }
}

void Console::UpdateLimit() {
  limit_ = std::min(last_limit_, FrameEndCycle());
  limit_ = std::min(limit_, apu_.DmcFetchCycle());
  if (state_.ppu.nmi_dot != kNever) {
    limit_ = std::min(limit_, CycleOfEdge(state_.ppu.nmi_dot) + 2);
  }
  if (!(state_.cpu.p & 4)) LimitToIrq(0);
}

void Console::LimitToIrq(uint64_t earliest) {
  const uint64_t irq = apu_.IrqCycle();
  if (irq != kNever) limit_ = std::min(limit_, std::max(irq + 2, earliest));
}

}  // namespace nes
