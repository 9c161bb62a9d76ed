// The 2A03's sound part as far as a program can notice it: length counters,
// the frame counter with its interrupt, and the DMC's sample reader with its
// interrupt and its theft of CPU cycles. There is no sound.
// Source: NESdev "APU Frame Counter", "APU Length Counter", "APU DMC".
//
// Like the PPU it runs only when it is looked at: CatchUp does everything due.
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

  /// Cycle at which the interrupt line is or, if nothing is written, will be
  /// pulled; kNever if it will not be.
  uint64_t IrqCycle() const;

  /// Cycle at which the DMC will fetch its next sample byte, or kNever.
  uint64_t DmcFetchCycle() const;
  /// To be called when the CPU has been halted for it. Which byte it was makes
  /// no difference without sound.
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
