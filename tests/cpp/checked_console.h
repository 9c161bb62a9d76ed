// A console whose translated code the interpreter repeats, run by run: every
// address is translated at once, and the states after a run must be equal.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "nes/console.h"
#include "nes/console_bus.h"

namespace nes {

class CheckedConsole final : public Console {
 public:
  CheckedConsole(std::shared_ptr<const Cartridge> cartridge, Timing timing)
      : Console(cartridge, timing, Engine::kTranslated),
        twin_(cartridge, timing, Engine::kInterpreter) {
    if (translation_ == nullptr) return;  // programs are interpreted here
    own_ = Translation::Make({cartridge->prg(), timing == Timing::kNesPy}, 1);
    translation_ = own_.get();
  }

  /// Without checks the console only counts.
  void set_checks(bool on) { checks_ = on; }
  uint64_t translated_runs() const { return runs_; }
  /// The share of cycles that ran translated, without skipped loops.
  double translated_share() const {
    return static_cast<double>(translated_cycles_) /
           static_cast<double>(translated_cycles_ + interpreted_cycles_);
  }

 private:
  void RunToLimit() override {
    if (translation_ == nullptr) return Console::RunToLimit();
    ConsoleBus bus(this);
    TranslatedCpu cpu(translation_, &state_.cpu, bus);
    while (state_.cpu.cycle < limit_) {
      const CpuState before = state_.cpu;
      if (checks_) CopyToTwin();
      if (cpu.RunTranslated() && state_.cpu.cycle != before.cycle) {
        ++runs_;
        translated_cycles_ += state_.cpu.cycle - before.cycle;
        if (checks_) Check(before);
      }
      const uint64_t begin = state_.cpu.cycle;
      cpu.RunInterpreted();
      interpreted_cycles_ += std::min(state_.cpu.cycle - begin, kMostCycles);
    }
  }

  void CopyToTwin() {
    // CHR RAM is copied before the state, because loading the state discards
    // predictions made from tiles.
    twin_.ppu_.chr_ram() = ppu_.chr_ram();
    twin_.set_state(state_);
    twin_.prg_ram_ = prg_ram_;
    twin_.limit_ = limit_;
    twin_.stop_cycle_ = stop_cycle_;
    twin_.frame_dot_ = frame_dot_;
    twin_.has_polled_ = has_polled_;
  }

  void Check(const CpuState& before) {
    ConsoleBus bus(&twin_);
    while (twin_.state_.cpu.cycle < state_.cpu.cycle &&
           twin_.state_.cpu.cycle < twin_.limit_) {
      RunOneInstruction(&twin_.state_.cpu, bus);
    }
    if (std::memcmp(&twin_.state_, &state_, sizeof(state_)) == 0 &&
        twin_.limit_ == limit_ && twin_.prg_ram_ == prg_ram_ &&
        twin_.ppu_.chr_ram() == ppu_.chr_ram()) {
      return;
    }
    throw std::logic_error("translated code from " + std::to_string(before.pc) +
                           " to " + std::to_string(state_.cpu.pc) +
                           " gives other results than the interpreter");
  }

  // Of a call of the interpreter; more passes only in loops that it skips.
  static constexpr uint64_t kMostCycles = 64;

  std::unique_ptr<Translation> own_;
  Console twin_;
  bool checks_ = true;
  uint64_t runs_ = 0, translated_cycles_ = 0, interpreted_cycles_ = 0;
};

}  // namespace nes
