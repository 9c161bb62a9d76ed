// A bus with RAM and nothing else, to run single instructions on: for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "nes/cpu.h"

namespace nes {

/// 64 KiB of RAM; a Bus of cpu.h.
class FlatBus {
 public:
  const InstructionTiming& timing() const { return kChipTiming; }
  uint8_t* ram() { return memory.data(); }
  const uint8_t* rom() const { return nullptr; }
  const uint8_t* dispatch() const { return nullptr; }
  uint64_t limit() const { return limit_cycle; }
  bool idle_skip() const { return false; }
  uint32_t Fetch(unsigned pc, uint64_t) {
    return memory[pc & 0xFFFF] | memory[(pc + 1) & 0xFFFF] << 8u |
           memory[(pc + 2) & 0xFFFF] << 16u;
  }
  uint8_t Read(unsigned address, uint64_t) { return memory[address & 0xFFFF]; }
  unsigned Write(unsigned address, uint8_t value, uint64_t) {
    memory[address & 0xFFFF] = value;
    return 0;
  }
  void DummyRead(unsigned, uint64_t) {}
  void InterruptFlagChanged(uint64_t, unsigned) {
    asked_about_interrupts = true;
  }
  unsigned BreakVector(uint64_t) { return 0xFFFE; }
  uint64_t SkippablePollCycles(unsigned, uint64_t) { return 0; }

  std::vector<uint8_t> memory = std::vector<uint8_t>(65536);
  uint64_t limit_cycle = 0;
  bool asked_about_interrupts = false;
};

}  // namespace nes
