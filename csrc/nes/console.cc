// Power-on, reset, and the execution of the CPU from event to event:
// interrupts, DMC, end of frame.
#include "nes/console.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "nes/console_bus.h"
#include "nes/cpu.h"

namespace nes {
namespace {

constexpr unsigned kNmiVector = 0xFFFA;
constexpr unsigned kResetVector = 0xFFFC;
constexpr unsigned kIrqVector = 0xFFFE;

// Cycles from a vertical blank to the end of nes-py's frame when an episode
// begins.
constexpr uint64_t kNesPyPhase = 2'380;

}  // namespace

Timing TimingByName(const std::string& name) {
  if (name == "console") return Timing::kConsole;
  if (name == "nes_py") return Timing::kNesPy;
  throw std::invalid_argument("timing='" + name +
                              "' is not possible; choose console or nes_py");
}

Console::Console(std::shared_ptr<const Cartridge> cartridge, Timing timing,
                 Engine engine)
    : state_{},
      cartridge_(std::move(cartridge)),
      ppu_(*cartridge_, &state_.ppu, timing),
      apu_(&state_.apu),
      timing_(timing) {
  PowerOn();
  set_engine(engine);
}

Console::~Console() = default;

void Console::set_engine(Engine engine) {
  translation_ = engine == Engine::kTranslated
                     ? cartridge_->translation(timing_)
                     : nullptr;
  engine_ = translation_ != nullptr ? engine : Engine::kInterpreter;
}

void Console::PowerOn() {
  state_ = {};
  prg_ram_.clear();
  std::ranges::fill(ppu_.chr_ram(), uint8_t{0});
  ppu_.PowerOn();
  apu_.PowerOn();
  PowerOnCpu(&state_.cpu, PeekWord(kResetVector));
  if (timing_ == Timing::kNesPy) {
    state_.step_end = state_.cpu.cycle;
    ppu_.PowerOnAsNesPy(DotOfAccess(state_.cpu.cycle));
  }
}

void Console::Reset() {
  ppu_.set_output(nullptr);  // a frame that threw may have left its canvas
  ResetCpu(&state_.cpu, PeekWord(kResetVector));
  const uint64_t cycle = state_.cpu.cycle;
  ppu_.CatchUp(DotOfAccess(cycle - 1));
  ppu_.Reset();
  apu_.Reset(cycle - 4);
}

// --- Running ----------------------------------------------------------------

template void RunOneInstruction(CpuState*, ConsoleBus&);
template void RunPlain(CpuState*, ConsoleBus&);

void Console::RunToLimit() {
  ConsoleBus bus(this);
  if (translation_ == nullptr || !fast_loop_ || !idle_skip_) {
    return RunCpu(&state_.cpu, bus);
  }
  TranslatedCpu cpu(translation_, &state_.cpu, bus);
  while (state_.cpu.cycle < limit_) {
    cpu.RunTranslated();
    cpu.RunInterpreted();
  }
}

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
  Canvas canvas;
  canvas.lines = pixels;
  RunFrameOnto(buttons, pixels == nullptr ? nullptr : &canvas);
}

void Console::RunFrameOnto(uint8_t buttons, Canvas* canvas) {
  state_.pad.buttons[0] = buttons;
  ppu_.set_output(canvas);
  if (timing_ == Timing::kNesPy) {
    state_.step_end += kNesPyStepCycles;
    RunNesPy(state_.step_end);
    ppu_.DrawSoFar();
    ppu_.set_output(nullptr);
    return;
  }
  frame_dot_ = state_.ppu.frame_dot;
  stop_cycle_ = kNever;
  while (!FrameOver()) {
    ServiceEvents();
    RunToLimit();
  }
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
  ppu_.set_output(nullptr);
}

void Console::ContinueAsNesPy(const State& state, uint8_t buttons) {
  set_state(state);
  state_.pad.buttons[0] = buttons;
  state_.step_end = state_.cpu.cycle + kNesPyPhase;
  ppu_.set_output(nullptr);
  RunNesPy(state_.step_end);
}

// Runs the instructions that begin before `end`, and the dots of the picture up
// to `end`.
void Console::RunNesPy(uint64_t end) {
  stop_cycle_ = end;
  while (state_.cpu.cycle < end) {
    ppu_.CatchUp(DotOfAccess(state_.cpu.cycle));
    has_polled_ = false;
    if (state_.ppu.nmi_dot != kNever) {
      state_.ppu.nmi_dot = kNever;
      Interrupt(kNmiVector);
    }
    UpdateLimit();
    // Run at least one instruction, even if a loaded state says otherwise.
    limit_ = std::max(limit_, state_.cpu.cycle + 1);
    RunToLimit();
  }
  ppu_.CatchUp(DotOfAccess(end - 1));
  apu_.CatchUp(end - 1);
}

// nes-py runs three dots of the PPU and then a cycle of the CPU. An edge in one
// of these dots precedes an instruction that begins in that cycle.
uint64_t Console::NesPyNmiCycle() const {
  return CycleOfEdge(ppu_.NextVblankDot() + 1);
}

void Console::StepInstruction() {
  ppu_.set_output(nullptr);
  if (timing_ == Timing::kNesPy) {
    RunNesPy(state_.cpu.cycle + 1);
    // A frame that is over by now ended at its regular cycle.
    while (state_.step_end + kNesPyStepCycles <= state_.cpu.cycle) {
      state_.step_end += kNesPyStepCycles;
    }
    return;
  }
  frame_dot_ = state_.ppu.frame_dot;
  stop_cycle_ = state_.cpu.cycle + 1;
  ServiceEvents();
  stop_cycle_ = state_.cpu.cycle + 1;
  UpdateLimit();
  RunToLimit();
  ppu_.CatchUp(DotOfAccess(state_.cpu.cycle - 1));
  apu_.CatchUp(state_.cpu.cycle - 1);
}

// Interrupts are polled before the last cycle of an instruction, so one that
// rises in cycle c is taken when the instruction ends at c + 2 or later
// (NESdev "CPU interrupts").
void Console::ServiceEvents() {
  const CpuState& cpu = state_.cpu;
  StealDmcCycles();
  if (state_.ppu.nmi_dot != kNever &&
      CycleOfEdge(state_.ppu.nmi_dot) + 2 <= cpu.cycle) {
    state_.ppu.nmi_dot = kNever;
    Interrupt(kNmiVector);
  } else if (!MasksIrq(cpu) && apu_.IrqCycle() + 2 <= cpu.cycle &&
             apu_.IrqCycle() != kNever) {
    Interrupt(kIrqVector);
  }
  UpdateLimit();
  // At least one instruction runs between two polls.
  limit_ = std::max(limit_, cpu.cycle + 1);
}

void Console::Interrupt(unsigned vector) {
  if (!BeginInterrupt(&state_.cpu, state_.ram)) return;
  if (vector == kIrqVector) vector = IrqVector(state_.cpu.cycle);
  FinishInterrupt(&state_.cpu, PeekWord(vector));
}

// Returns the vector of an IRQ or BRK sequence that ends at `end`: an NMI
// during its pushes takes over the sequence.
unsigned Console::IrqVector(uint64_t end) {
  uint64_t& nmi_dot = state_.ppu.nmi_dot;
  ppu_.CatchUp(DotOfAccess(end - 3));
  if (nmi_dot == kNever || CycleOfEdge(nmi_dot) > end - 3) return kIrqVector;
  nmi_dot = kNever;
  return kNmiVector;
}

// The DMC halts the CPU for four cycles per sample byte. Approximation: the
// halt falls between instructions, never inside one.
void Console::StealDmcCycles() {
  while (apu_.DmcFetchCycle() <= state_.cpu.cycle) {
    StallCpu(&state_.cpu, 4);
    apu_.FinishDmcFetch(state_.cpu.cycle);
  }
}

void Console::UpdateLimit() {
  if (timing_ == Timing::kNesPy) {
    limit_ = std::min(stop_cycle_, NesPyNmiCycle());
    return;
  }
  limit_ = std::min(stop_cycle_, FrameEndCycle());
  limit_ = std::min(limit_, apu_.DmcFetchCycle());
  if (state_.ppu.nmi_dot != kNever) {
    limit_ = std::min(limit_, CycleOfEdge(state_.ppu.nmi_dot) + 2);
  }
  if (!DisablesIrq(state_.cpu)) LimitToIrq(0);
}

uint16_t Console::PeekWord(unsigned address) const {
  return static_cast<uint16_t>(Peek(static_cast<uint16_t>(address)) |
                               Peek(static_cast<uint16_t>(address + 1)) << 8);
}

void Console::LimitToIrq(uint64_t earliest) {
  const uint64_t irq = apu_.IrqCycle();
  if (irq != kNever) limit_ = std::min(limit_, std::max(irq + 2, earliest));
}

}  // namespace nes
