// The parts of the 2A03's sound unit that a program can observe: length
// counters, the frame counter with its interrupt, and the DMC's sample reader
// with its interrupt and the CPU cycles it takes. No sound is made. Source:
// NESdev "APU Frame Counter", "APU Length Counter", "APU DMC".
//
// Like the PPU it runs only when its state is needed: CatchUp runs everything
// that is due.
#pragma once

#include <cstdint>

#include "nes/state.h"

namespace nes {

class Apu {
 public:
  explicit Apu(ApuState* state) : s_(*state) {}

  void PowerOn();
  void Reset(uint64_t cycle);

  /// $4015.
  uint8_t ReadStatus(uint64_t cycle);
  /// $4000-$4013, $4015, $4017.
  void WriteRegister(unsigned address, uint8_t value, uint64_t cycle);

  /// Cycle at which the interrupt line was asserted or, if nothing is written,
  /// will be asserted; kNever if it will not be.
  uint64_t IrqCycle() const;

  /// Cycle at which the DMC will fetch its next sample byte, or kNever.
  uint64_t DmcFetchCycle() const;
  /// To be called after the CPU was halted for the fetch. Without sound the
  /// value of the byte has no effect.
  void FinishDmcFetch(uint64_t cycle);

  void CatchUp(uint64_t cycle);

 private:
  void ClockFrame();
  void ClockLengths();
  void WriteFrameCounter(uint8_t value, uint64_t cycle);
  void WriteEnable(uint8_t value);
  void RestartSample();
  void RunDmc(uint64_t cycle);

  ApuState& s_;
};

}  // namespace nes
