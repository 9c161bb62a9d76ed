// The second engine: translates the program of a ROM to x86-64 machine code in
// memory while the program runs. The interpreter (cpu.h) runs the instructions
// that are not translated.
//
// A translation has a block for every address that the program has jumped to,
// or may jump to from there. A block is straight-line code up to a jump, an
// instruction for the interpreter, or another block. It keeps the contract of
// the interpreter's fast loop: it runs plain instructions on RAM and ROM, and
// accesses whose address is known to be a register; these call the bus with
// their exact cycle. Before any other instruction it stops with the registers
// that the interpreter would have. A block is entered only if all its
// instructions begin before the next event; otherwise the interpreter
// continues, so that events fall in the right cycle. Nothing is kept between
// two runs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nes/cpu.h"

namespace nes {

constexpr unsigned kRomBase = 0x8000;
constexpr unsigned kRomBytes = 0x8000;

/// The engine that runs a console's program. All engines give the same states.
enum class Engine : uint8_t { kInterpreter, kTranslated };

/// "interpreter" or "translated"; throws std::invalid_argument for another
/// name.
Engine EngineByName(const std::string& name);
const char* NameOf(Engine engine);
/// The engine that the environment variable MARIO_ENGINE names; kTranslated if
/// it is not set. Throws what EngineByName throws.
Engine DefaultEngine();
/// Whether there is a translator for this kind of system.
bool HasTranslator();
/// The reason why programs cannot be translated on this machine; empty if they
/// can.
std::string WhyNotTranslated();

/// Why translated code has returned.
enum class Leave : uint32_t {
  kLimit,        // the next event may come within the next block
  kMiss,         // `pc` has no block, or is not in ROM
  kInterpreted,  // the instruction at `pc` is the interpreter's
};

/// The data that translated code and its caller exchange. The registers have
/// the representation of class Interpreter.
struct TranslatedRun {
  uint8_t* ram;
  const uint8_t* rom;  // the memory at $8000
  const void* blocks;  // of Translation
  void* bus;
  // The high half of `address` is the status poll that the read begins, or 0.
  uint32_t (*read)(TranslatedRun*, uint32_t address, uint32_t age);
  void (*write)(TranslatedRun*, uint32_t address, uint32_t age, uint32_t value);
  int64_t past_limit;  // cycle - limit: negative before the next event
  uint64_t limit;
  uint32_t a, x, y, sp;
  uint32_t nz, carry;
  uint32_t pc;
  Leave leave;
  uint8_t overflow;  // not 0: V is set
  uint8_t d_i;       // D and I at their places in the status byte
};

/// Code that all blocks use.
struct Stubs {
  const uint8_t* enter;  // void(TranslatedRun*, const void* block)
  const uint8_t* read;   // calls of the bus, used by blocks
  const uint8_t* write;
  const uint8_t* leave;  // ends a run; its reason is in kPointer
  // Ends of a run for a reason; the program counter is in kResult.
  const uint8_t* leave_limit;
  const uint8_t* leave_miss;
  const uint8_t* leave_interpreted;
};

/// The program to translate.
struct TranslationSource {
  const uint8_t* rom;  // 32 KiB at $8000, as Cartridge::prg
  bool nes_py_timing;
};

/// The machine code of one ROM under one timing. Blocks are made when they are
/// needed, and never change. Thread-safe.
class Translation {
 public:
  /// How often a program must reach an address without a block before a block
  /// is made, so that addresses to which an interrupt once returned get none.
  static constexpr uint8_t kMisses = 8;
  struct Size {
    size_t blocks, batches, code_bytes, memory_bytes;
    double seconds;  // spent on translating
  };

  /// Returns nullptr if WhyNotTranslated returns a reason. The ROM must outlive
  /// the translation.
  static std::unique_ptr<Translation> Make(const TranslationSource& source,
                                           uint8_t misses = kMisses);
  ~Translation();
  Translation(const Translation&) = delete;
  Translation& operator=(const Translation&) = delete;

  /// Returns the block at `pc`, or nullptr. `jumped`: an instruction jumped to
  /// `pc`, as opposed to an event that stopped the program there.
  const uint8_t* Find(unsigned pc, bool jumped) {
    if (pc < kRomBase) return nullptr;
    const uint8_t* const block =
        blocks_[pc - kRomBase].load(std::memory_order_acquire);
    return block != stubs_.leave_miss ? block : FindMissed(pc, jumped);
  }
  /// Runs from `block` until the caller must continue.
  void Enter(TranslatedRun* run, const uint8_t* block) const {
    enter_(run, block);
  }
  const void* blocks() const { return blocks_.data(); }
  /// Whether there is no memory for further blocks.
  bool is_full() const { return full_.load(std::memory_order_relaxed); }
  Size size() const;

 private:
  Translation(const TranslationSource& source, uint8_t misses);
  const uint8_t* FindMissed(unsigned pc, bool jumped);
  bool Take(const std::vector<uint8_t>& code);

  const TranslationSource source_;
  const uint8_t most_misses_;
  uint8_t* const memory_;
  Stubs stubs_ = {};
  void (*enter_)(TranslatedRun*, const uint8_t*) = nullptr;
  mutable std::mutex mutex_;  // of the next two, and of making blocks
  size_t used_ = 0;           // of memory_, in whole pages
  Size size_ = {};
  std::atomic<bool> full_ = false;
  std::array<std::atomic<const uint8_t*>, kRomBytes> blocks_;
  std::array<std::atomic<uint8_t>, kRomBytes> misses_ = {};
  // Addresses at which a block has an instruction other than its first.
  std::array<std::atomic<bool>, kRomBytes> inside_ = {};
};

/// Does what RunCpu does for the interpreter, in two alternating steps.
template <class Bus>
class TranslatedCpu {
 public:
  TranslatedCpu(Translation* translation, CpuState* state, Bus& bus)
      : translation_(*translation), state_(*state), bus_(bus) {
    run_.ram = bus.ram();
    run_.rom = bus.rom();
    run_.blocks = translation->blocks();
    run_.bus = &bus;
    run_.read = Read;
    run_.write = Write;
  }

  /// Runs translated code at the program counter; false if there is none.
  bool RunTranslated() {
    const uint8_t* const block =
        translation_.Find(state_.pc, run_.leave == Leave::kMiss);
    if (block == nullptr) {
      // The fast loop runs code that will never have a block.
      run_.leave = translation_.is_full() ? Leave::kLimit : Leave::kInterpreted;
      return false;
    }
    LoadRegisters();
    translation_.Enter(&run_, block);
    StoreRegisters();
    return true;
  }
  /// Runs the code that RunTranslated does not run: up to the limit, or one
  /// instruction.
  void RunInterpreted() {
    if (state_.cycle >= bus_.limit() || run_.leave == Leave::kMiss) return;
    if (run_.leave == Leave::kLimit) {
      RunPlain(&state_, bus_);
      if (state_.cycle >= bus_.limit()) return;
    }
    RunOneInstruction(&state_, bus_);
  }

 private:
  // Called by translated code, which exceptions cannot unwind.
  static uint32_t Read(TranslatedRun* run, uint32_t address,
                       uint32_t age) noexcept {
    auto& bus = *static_cast<Bus*>(run->bus);
    if (Bus::IsPad(address)) return bus.ReadPad(address);
    uint64_t end = run->limit + static_cast<uint64_t>(run->past_limit);
    const uint32_t value = address <= 0xFFFF
                               ? bus.ReadRegister(address, end - age)
                               : ReadAndPoll(run, address, age, &end);
    run->limit = bus.limit();
    run->past_limit = static_cast<int64_t>(end - run->limit);
    return value;
  }
  // Reads until the loop ends, or the rest is for the interpreter.
  __attribute__((noinline)) static uint32_t ReadAndPoll(
      TranslatedRun* run, uint32_t address, uint32_t age,
      uint64_t* end) noexcept {
    auto& bus = *static_cast<Bus*>(run->bus);
    const unsigned poll = address >> 16;
    const unsigned round =
        status_poll::RoundCycles(poll, bus.timing().branch_page_cycles);
    for (;;) {
      const uint32_t value = bus.ReadRegister(address & 0xFFFF, *end - age);
      if (!status_poll::GoesOn(run->rom + (poll - kRomBase), value)) {
        return value;
      }
      const uint64_t skipped = bus.SkippablePollCycles(
          poll, *end + (round - status_poll::kReadCycles));
      if (skipped == 0) return value;
      *end += skipped + round;
    }
  }
  static void Write(TranslatedRun* run, uint32_t address, uint32_t age,
                    uint32_t value) noexcept {
    auto& bus = *static_cast<Bus*>(run->bus);
    uint64_t end = run->limit + static_cast<uint64_t>(run->past_limit);
    end += bus.WriteRegister(address, static_cast<uint8_t>(value), end - age);
    run->limit = bus.limit();
    run->past_limit = static_cast<int64_t>(end - run->limit);
  }

  void LoadRegisters() {
    run_.limit = bus_.limit();
    run_.past_limit = static_cast<int64_t>(state_.cycle - run_.limit);
    run_.a = state_.a;
    run_.x = state_.x;
    run_.y = state_.y;
    run_.sp = state_.sp;
    const unsigned p = state_.p;
    run_.nz = (p & 0x80) << 1 | (~p & 0x02);
    run_.carry = p & 0x01;
    run_.overflow = p & 0x40;
    run_.d_i = p & 0x0C;
  }
  void StoreRegisters() {
    CpuState& to = state_;
    to.cycle = run_.limit + static_cast<uint64_t>(run_.past_limit);
    to.pc = static_cast<uint16_t>(run_.pc);
    to.a = static_cast<uint8_t>(run_.a);
    to.x = static_cast<uint8_t>(run_.x);
    to.y = static_cast<uint8_t>(run_.y);
    to.sp = static_cast<uint8_t>(run_.sp);
    to.p = static_cast<uint8_t>(
        (run_.nz & 0x180 ? 0x80u : 0u) | (run_.overflow ? 0x40u : 0u) | 0x20u |
        run_.d_i | (run_.nz & 0xFF ? 0u : 0x02u) | run_.carry);
  }

  Translation& translation_;
  CpuState& state_;
  Bus& bus_;
  TranslatedRun run_ = {};
};

}  // namespace nes
