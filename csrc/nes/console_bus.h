// The console's bus for the template of the CPU: the part that is inlined into
// the interpreter. Only console.cc, console_bus.cc and tests include it.
#pragma once

#include "nes/console.h"
#include "nes/cpu.h"

namespace nes {

/// The bus of the CPU (cpu.h describes a bus). RAM and PRG need two compares;
/// all other accesses are out of line and pass their exact cycle.
class ConsoleBus {
 public:
  explicit ConsoleBus(Console* console)
      : console_(*console),
        prg_(console->cartridge_->prg()),
        timing_(console->timing_ == Timing::kNesPy ? kNesPyTiming
                                                   : kChipTiming) {}

  const InstructionTiming& timing() const { return timing_; }
  uint8_t* ram() { return console_.state_.ram; }
  const uint8_t* rom() const { return console_.fast_loop_ ? prg_ : nullptr; }
  const uint8_t* dispatch() const { return console_.cartridge_->dispatch(); }
  uint64_t limit() const { return console_.limit_; }
  bool idle_skip() const { return console_.idle_skip_; }

  uint32_t Fetch(unsigned pc, uint64_t cycle) {
    if (pc >= 0x8000) [[likely]] {
      return LoadCode(prg_ + (pc & 0x7FFF));
    }
    return FetchElsewhere(pc, cycle);
  }

  uint8_t Read(unsigned address, uint64_t cycle) {
    if (address < 0x2000) return console_.state_.ram[address & kRamMask];
    if (address >= 0x8000) return prg_[address & 0x7FFF];
    return console_.ReadIo(address, cycle);
  }

  unsigned Write(unsigned address, uint8_t value, uint64_t cycle) {
    if (address < 0x2000) {
      console_.state_.ram[address & kRamMask] = value;
      return 0;
    }
    if (address >= 0x8000) return 0;
    return console_.WriteIo(address, value, cycle);
  }

  /// Registers: addresses from $2000 to $7FFF.
  uint8_t ReadRegister(unsigned address, uint64_t cycle) {
    return console_.ReadIo(address, cycle);
  }
  unsigned WriteRegister(unsigned address, uint8_t value, uint64_t cycle) {
    return console_.WriteIo(address, value, cycle);
  }
  /// The pads, whose reads depend on no time.
  static bool IsPad(unsigned address) { return (address & ~1u) == 0x4016; }
  uint8_t ReadPad(unsigned address) { return console_.ReadPad(address); }

  void DummyRead(unsigned address, uint64_t cycle) {
    if (address - 0x2000 < 0x2020) console_.ReadIo(address, cycle);
  }

  // Under Timing::kNesPy nothing requests an IRQ.
  void InterruptFlagChanged(uint64_t earliest, unsigned flag) {
    if (flag == 0 && console_.timing_ == Timing::kConsole)
      console_.LimitToIrq(earliest);
  }

  unsigned BreakVector(uint64_t cycle) {
    if (console_.timing_ == Timing::kNesPy) return 0xFFFE;
    const unsigned vector = console_.IrqVector(cycle);
    console_.UpdateLimit();
    return vector;
  }

  uint64_t SkippablePollCycles(unsigned loop_pc, uint64_t cycle);

 private:
  // Fetches code outside the ROM: from RAM, or from registers, which only tests
  // execute.
  uint32_t FetchElsewhere(unsigned pc, uint64_t cycle) {
    uint32_t code = Read(pc, cycle);
    const int bytes = InstructionBytes(kOpcodes[code].mode);
    for (int i = 1; i < bytes; ++i) {
      const unsigned at = (pc + static_cast<unsigned>(i)) & 0xFFFF;
      code |= static_cast<uint32_t>(Read(at, cycle + static_cast<unsigned>(i)))
              << (8 * i);
    }
    // One-byte instructions read the next byte and discard it.
    if (bytes == 1) DummyRead((pc + 1) & 0xFFFF, cycle + 1);
    return code;
  }

  Console& console_;
  const uint8_t* prg_;
  const InstructionTiming timing_;
};

// console.cc has them.
extern template void RunOneInstruction(CpuState*, ConsoleBus&);
extern template void RunPlain(CpuState*, ConsoleBus&);

}  // namespace nes
