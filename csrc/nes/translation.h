// The second engine: the program of a ROM as x86-64 machine code, made in
// memory while it runs, beside the interpreter (cpu.h), which runs what is
// left.
//
// A translation has a block for every address that the program was seen to go
// to, or may go to from there: straight-line code up to a jump, an instruction
// that it leaves to the interpreter, or another block. It keeps the contract of
// the interpreter's fast loop: plain instructions on RAM and ROM, and beyond
// that only accesses whose address is known to be a register's, which call the
// bus with their exact cycle. Before any other instruction it stops with the
// registers as the interpreter would have them. A block is entered only if all
// its instructions begin before the next event; otherwise the interpreter goes
// on, so events fall where they would. Nothing is kept between two runs.
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

/// Which of the two runs a console's program. Both leave the same states.
enum class Engine : uint8_t {
  kInterpreter,
  kTranslated,
  /// Translated, and each run of translated code is repeated by the interpreter
  /// and compared; throws std::logic_error where they differ. For tests.
  kChecked,
  /// Translated, and counts who runs how many instructions.
  kCounted,
};

/// "interpreter", "translated", "checked" or "counted"; throws
/// std::invalid_argument for another name.
Engine EngineByName(const std::string& name);
const char* NameOf(Engine engine);
/// What the variable MARIO_ENGINE of the environment names, kTranslated where
/// it is not set. Throws as EngineByName.
Engine DefaultEngine();
/// Why programs cannot be translated here; empty where they can.
std::string WhyNotTranslated();

/// Why translated code has returned.
enum class Leave : uint32_t {
  kLimit,        // the next event may come within the next block
  kMiss,         // `pc` has no block, or is not in ROM
  kInterpreted,  // the instruction at `pc` is the interpreter's
};

/// What translated code and its caller hand each other. The registers are those
/// of class Interpreter, in its terms.
struct TranslatedRun {
  uint8_t* ram;
  const uint8_t* rom;  // what stands at $8000
  const void* blocks;  // of Translation
  void* bus;
  uint32_t (*read)(TranslatedRun*, uint32_t address, uint32_t age);
  void (*write)(TranslatedRun*, uint32_t address, uint32_t age, uint32_t value);
  int64_t left;  // cycle - limit: negative before the next event
  uint64_t limit;
  uint64_t instructions;  // counted only if the translation counts
  uint32_t a, x, y, sp;
  uint32_t nz, carry;
  uint32_t pc;
  Leave leave;
  uint8_t overflow;  // not 0: V is set
  uint8_t d_i;       // D and I at their places in the status byte
};

/// Code that all blocks share.
struct Stubs {
  const uint8_t* enter;  // void(TranslatedRun*, const void* block)
  const uint8_t* read;   // calls of the bus, by blocks
  const uint8_t* write;
  // Ends of a run; the program counter is in eax.
  const uint8_t* leave_limit;
  const uint8_t* leave_miss;
  const uint8_t* leave_interpreted;
};

/// What is translated.
struct TranslationSource {
  const uint8_t* rom;  // 32 KiB that stand at $8000, as Cartridge::prg
  bool nes_py_timing;
  bool counts;  // instructions, in TranslatedRun::instructions
};

/// The machine code of one ROM under one timing. Blocks are made when they are
/// needed, and never change. Thread-safe.
class Translation {
 public:
  /// How often a program must come to an address without a block before it
  /// gets one: what an interrupt happened to return to has none.
  static constexpr uint8_t kMisses = 8;
  struct Size {
    size_t blocks, batches, code_bytes, memory_bytes;
    double seconds;  // spent on translating
  };

  /// nullptr where WhyNotTranslated says something. The ROM must outlive it.
  static std::unique_ptr<Translation> Make(const TranslationSource& source,
                                           uint8_t misses = kMisses);
  ~Translation();
  Translation(const Translation&) = delete;
  Translation& operator=(const Translation&) = delete;

  /// The block at `pc`, or nullptr. `jumped`: an instruction went there, no
  /// event stopped the program there.
  const uint8_t* Find(unsigned pc, bool jumped) {
    if (pc < kRomBase) return nullptr;
    const uint8_t* const block =
        blocks_[pc - kRomBase].load(std::memory_order_acquire);
    return block != stubs_.leave_miss ? block : FindMissed(pc, jumped);
  }
  /// Runs from `block` until something is left to the caller.
  void Enter(TranslatedRun* run, const uint8_t* block) const {
    enter_(run, block);
  }
  const void* blocks() const { return blocks_.data(); }
  bool counts() const { return source_.counts; }
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
  // Where a block has an instruction that is not its first.
  std::array<std::atomic<bool>, kRomBytes> inside_ = {};
};

/// Instructions by who has run them, and how often translated code was entered;
/// counted if the translation counts.
struct EngineCounts {
  uint64_t translated = 0, interpreted = 0, entries = 0;
};

/// What RunCpu does for the interpreter, in two steps that take turns.
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

  /// Runs translated code if there is some at the program counter; false if
  /// there is none.
  bool RunTranslated() {
    const uint8_t* const block =
        translation_.Find(state_.pc, run_.leave == Leave::kMiss);
    if (block == nullptr) {
      // What will never have a block is left to the fast loop.
      run_.leave = translation_.is_full() ? Leave::kLimit : Leave::kInterpreted;
      return false;
    }
    LoadRegisters();
    translation_.Enter(&run_, block);
    StoreRegisters();
    return true;
  }
  /// Runs what RunTranslated has left: up to the limit, or an instruction.
  void RunInterpreted() {
    if (state_.cycle >= bus_.limit() || run_.leave == Leave::kMiss) return;
    if (run_.leave == Leave::kLimit) {
      RunPlain(&state_, bus_);
      if (state_.cycle >= bus_.limit()) return;
    }
    RunOneInstruction(&state_, bus_);
  }
  /// The same; returns how many instructions it was.
  uint64_t CountInterpreted() {
    if (run_.leave == Leave::kMiss) return 0;
    uint64_t count = 0;
    while (state_.cycle < bus_.limit()) {
      RunOneInstruction(&state_, bus_);
      ++count;
      if (run_.leave == Leave::kInterpreted) break;
    }
    return count;
  }
  uint64_t instructions() const { return run_.instructions; }

 private:
  // Called by translated code, through which no exception could pass.
  static uint32_t Read(TranslatedRun* run, uint32_t address,
                       uint32_t age) noexcept {
    auto& bus = *static_cast<Bus*>(run->bus);
    const uint64_t end = run->limit + static_cast<uint64_t>(run->left);
    const uint32_t value = bus.Read(address, end - age);
    run->limit = bus.limit();
    run->left = static_cast<int64_t>(end - run->limit);
    return value;
  }
  static void Write(TranslatedRun* run, uint32_t address, uint32_t age,
                    uint32_t value) noexcept {
    auto& bus = *static_cast<Bus*>(run->bus);
    uint64_t end = run->limit + static_cast<uint64_t>(run->left);
    end += bus.Write(address, static_cast<uint8_t>(value), end - age);
    run->limit = bus.limit();
    run->left = static_cast<int64_t>(end - run->limit);
  }

  void LoadRegisters() {
    run_.limit = bus_.limit();
    run_.left = static_cast<int64_t>(state_.cycle - run_.limit);
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
    to.cycle = run_.limit + static_cast<uint64_t>(run_.left);
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
