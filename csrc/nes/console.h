// A whole NES with an NROM cartridge: the bus that joins CPU, PPU, APU, two
// pads and memory. It does not depend on the game, Python or threads. All
// mutable data is in one padding-free State, so saving is one assignment.
//
//   $0000-$1FFF  2 KiB RAM, four times      $4020-$5FFF  nothing
//   $2000-$3FFF  PPU registers, mirrored    $6000-$7FFF  PRG RAM, if used
//   $4000-$4017  APU, OAM DMA, pads         $8000-$FFFF  PRG ROM
//
// Another mapper would replace the last three lines: ConsoleBus (console_bus.*)
// and the CHR pointer of the Ppu are the only code that depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nes/apu.h"
#include "nes/canvas.h"
#include "nes/cartridge.h"
#include "nes/ppu.h"
#include "nes/state.h"
#include "nes/translation.h"

namespace nes {

constexpr int kScreenWidth = 256;
constexpr int kScreenHeight = 240;
constexpr int kScreenPixels = kScreenWidth * kScreenHeight;

/// PRG RAM of a cartridge, at $6000-$7FFF.
constexpr size_t kPrgRamBytes = 8192;

/// Bits of a pad byte. Any combination is passed on, Left+Right included.
enum Button : uint8_t {
  kA = 1,
  kB = 2,
  kSelect = 4,
  kStart = 8,
  kUp = 16,
  kDown = 32,
  kLeft = 64,
  kRight = 128,
};

/// "console" or "nes_py"; throws std::invalid_argument for another name.
Timing TimingByName(const std::string& name);

/// Whether every number that bounds a loop or an index has a value that a
/// console can reach, so that running a damaged save is safe.
bool IsPlausible(const State& state, Timing timing);

/// The timing under which a state was reached.
inline Timing TimingOf(const State& state) {
  return state.step_end != 0 ? Timing::kNesPy : Timing::kConsole;
}

class Console {
 public:
  explicit Console(std::shared_ptr<const Cartridge> cartridge,
                   Timing timing = Timing::kConsole,
                   Engine engine = DefaultEngine());
  virtual ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void PowerOn();  // clears RAM and registers, as after switching on
  void Reset();    // the reset button: RAM is kept

  /// Runs one frame with pad 1 = `buttons`: from the start of one vertical
  /// blank (just before its NMI) to the start of the next; under
  /// Timing::kNesPy, kNesPyStepCycles from the end of the last one.
  /// `pixels` receives 240x256 palette indices (0-63), row-major; nullptr
  /// draws nothing, and leaves exactly the same State behind.
  void RunFrame(uint8_t buttons, uint8_t* pixels);
  /// Does the same and draws onto a canvas; null: draws nothing.
  void RunFrameOnto(uint8_t buttons, Canvas* canvas);

  /// Under Timing::kNesPy: loads a state of Timing::kConsole and runs with pad
  /// 1 = `buttons` until the point at which nes-py's frames end early in a
  /// game. In each frame the program reads the buttons that it would have read
  /// without the change.
  void ContinueAsNesPy(const State& state, uint8_t buttons);

  /// Runs one instruction (or one interrupt entry and its first instruction;
  /// under Timing::kNesPy only the entry), without drawing. For tests and
  /// tools.
  void StepInstruction();

  /// The 2 KiB of work RAM, mirrored at $0000-$1FFF; may be written.
  uint8_t* ram() { return state_.ram; }
  const uint8_t* ram() const { return state_.ram; }

  /// A CPU-side read without side effects (registers read as 0).
  uint8_t Peek(uint16_t address) const;

  /// Whether the program has written to $6000-$7FFF.
  bool uses_prg_ram() const { return !prg_ram_.empty(); }

  /// The fast save. It is sufficient if neither PRG RAM nor CHR RAM of the
  /// cartridge is in use (every Super Mario Bros. image; the task refuses
  /// others).
  const State& state() const { return state_; }
  void set_state(const State& state);

  /// The complete save: header with version and ROM hash, State, cartridge RAM.
  /// Load throws std::invalid_argument for another version, ROM or size. After
  /// that, and after std::bad_alloc, the console is unchanged.
  size_t SaveBytes() const;
  void Save(std::byte* out) const;
  void Load(std::span<const std::byte> blob);

  const Cartridge& cartridge() const { return *cartridge_; }
  const std::shared_ptr<const Cartridge>& shared_cartridge() const {
    return cartridge_;
  }
  Timing timing() const { return timing_; }

  /// Chooses the engine that runs the program; kTranslated means kInterpreter
  /// where programs cannot be translated. May be called between any two
  /// instructions.
  void set_engine(Engine engine);
  Engine engine() const { return engine_; }
  /// The machine code in use; nullptr with the interpreter.
  const Translation* translation() const { return translation_; }

  /// Exact shortcuts for `JMP self` and status polling; on by default.
  void set_idle_skip(bool on) { idle_skip_ = on; }
  /// The CPU's fast loop (cpu.h); on by default, off only to test it. If this
  /// or idle skipping is off, the interpreter runs the program.
  void set_fast_loop(bool on) { fast_loop_ = on; }

 private:
  friend class ConsoleBus;
  friend class CheckedConsole;  // tests/cpp/checked_console.h

  virtual void RunToLimit();
  bool FrameOver() const;
  uint64_t FrameEndCycle() const;
  void RunNesPy(uint64_t end);
  uint64_t NesPyNmiCycle() const;
  void ServiceEvents();
  void Interrupt(unsigned vector);
  unsigned IrqVector(uint64_t end);
  void StealDmcCycles();
  void UpdateLimit();
  /// The values of the PPU on which the limit depends.
  struct PpuTimes {
    uint64_t frame_dot, nmi_dot;
    bool rendering;
    bool operator==(const PpuTimes&) const = default;
  };
  PpuTimes TimesOfPpu() const {
    return {state_.ppu.frame_dot, state_.ppu.nmi_dot,
            (state_.ppu.mask & 0x18) != 0};
  }
  void LimitToIrq(uint64_t earliest);
  uint16_t PeekWord(unsigned address) const;

  // console_bus.cc
  uint8_t ReadIo(unsigned address, uint64_t cycle);
  unsigned WriteIo(unsigned address, uint8_t value, uint64_t cycle);
  uint8_t ReadPad(unsigned address);
  void WriteStrobe(uint8_t value);
  unsigned StartOamDma(uint8_t page, uint64_t cycle);

  State state_;
  std::shared_ptr<const Cartridge> cartridge_;
  Ppu ppu_;
  Apu apu_;
  std::vector<uint8_t> prg_ram_;  // $6000-$7FFF, from the first write on
  uint64_t limit_ = 0;            // cycle of the next event
  uint64_t stop_cycle_ = kNever;  // cycle at which the caller wants to stop
  uint64_t frame_dot_ = 0;        // frame that is being run, see FrameOver
  const Timing timing_;
  Engine engine_ = Engine::kInterpreter;
  Translation* translation_ = nullptr;  // the cartridge's
  bool has_polled_ = true;              // see SkippablePollCycles
  bool idle_skip_ = true;
  bool fast_loop_ = true;
};

}  // namespace nes
