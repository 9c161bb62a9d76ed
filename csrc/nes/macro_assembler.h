// What the translator asks of a host: the registers of translated code, the
// instructions of the 6502 on them, and the code that all blocks share. Each
// host has a file with the definitions (macro_assembler_*.cc) and an emitter
// with the bytes of its instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nes/state.h"
#include "nes/translation.h"

#if defined(__aarch64__)
#include "nes/arm_emitter.h"
#else  // on other hosts than x86-64 this code never runs (translation.cc)
#include "nes/x86_emitter.h"
#endif

namespace nes {

// Register assignment of translated code.
namespace host {

#if defined(__aarch64__)
using namespace arm;
constexpr Reg kRun = kR19;     // TranslatedRun
constexpr Reg kRam = kR20;     // RAM + kRamBias
constexpr Reg kRom = kR27;     // ROM - $8000
constexpr Reg kBlocks = kR28;  // their table, less $8000 entries
constexpr Reg kRegA = kR21, kRegX = kR22, kRegY = kR23, kS = kR24;
constexpr Reg kPastLimit = kR9;  // cycle - limit
constexpr Reg kNz = kR25;        // the last result, as in class Interpreter
constexpr Reg kCarry = kR26;
// Scratch: results, addresses, and a second address.
constexpr Reg kResult = kR0, kAddress = kR1, kPointer = kR2;

constexpr int32_t kRamBias = 0;
// A conditional jump ends at most 1 MiB away; a block is far shorter than that.
constexpr size_t kReach = size_t{1} << 19;
#else
using namespace x86;
constexpr Reg kRun = kRbp;
constexpr Reg kRam = kRbx;
constexpr Reg kRom = kRdi;
constexpr Reg kBlocks = kRsi;
constexpr Reg kRegA = kR12, kRegX = kR13, kRegY = kR14, kS = kR8;
constexpr Reg kPastLimit = kR15;
constexpr Reg kNz = kR9;
constexpr Reg kCarry = kR10;
constexpr Reg kResult = kRax, kAddress = kRcx, kPointer = kRdx;

// The zero page is within a signed byte of this address, which makes
// instructions shorter.
constexpr int32_t kRamBias = 128;
constexpr size_t kReach = size_t{1} << 31;
#endif

constexpr unsigned kStack = 0x100;

inline Mem Field(size_t offset) {
  return {kRun, kNoIndex, static_cast<int32_t>(offset)};
}
#define FIELD(name) Field(offsetof(TranslatedRun, name))

inline Mem RamAt(unsigned address) {
  return {kRam, kNoIndex, static_cast<int32_t>(address & kRamMask) - kRamBias};
}
inline Mem RamAt(Reg index, unsigned address = 0) {
  return {kRam, index, static_cast<int32_t>(address) - kRamBias};
}

}  // namespace host

/// The emitter, with what is more than one instruction, or another one on each
/// host. A register of the 6502 is zero-extended; functions named by the 6502's
/// mnemonics also set kCarry and V, and kNz where their comment says it.
class MacroAssembler : public host::Emitter {
 public:
  using Reg = host::Reg;
  using Mem = host::Mem;
  using Condition = host::Condition;

  // The location of an operand.
  struct Operand {
    enum { kImmediate, kMemory, kInResult } where;
    unsigned value = 0;
    Mem memory = {host::kRam};
  };
  // What is known of the carry of the 6502.
  enum class Carry : uint8_t { kInRegister, kIs0, kIs1 };

  /// Makes `enter`, `read`, `write` and `leave` of the code that all blocks
  /// need. `at` is the final address of the code.
  Stubs MakeStubs(const uint8_t* at);
  /// Jumps to the block at the address in kResult, which is at most $10000, or
  /// to `miss` if it is below $8000.
  void JumpToResult(int64_t miss);

  // Cycles of the 6502, added to kPastLimit.
  /// Changes no flag of the host CPU.
  void AddCycles(int cycles);
  void AddCycleIfAtLeast(Reg reg, unsigned value);
  /// If the sum of the low bytes is above 255; destroys `low`.
  void AddCycleIfCarries(Reg low, Reg index);
  /// Compares kPastLimit with a number that SetLimit sets; returns its place.
  /// The condition kGreaterOrEqual holds if it is not less.
  size_t CompareWithLimit();
  void SetLimit(size_t at, int cycles);

  // Conditions; the code that they are of must follow at once.
  Condition IsAtLeast(Reg reg, unsigned value);
  Condition Negative(Reg nz);
  Condition Zero(Reg nz);
  Condition CarryIsSet();
  Condition OverflowIsSet();
  /// From here on, flags of the host CPU say nothing about the 6502.
  void ForgetFlags();

  /// Low bytes of addresses: to |= high << 8, plus `more`; destroys `high`.
  void Join(Reg to, Reg high, int more = 0);
  void Mask(Reg reg, uint32_t low_bits);
  void AndByte(const Mem& memory, unsigned bits);
  void OrByte(const Mem& memory, unsigned bits);

  // Instructions of the 6502.
  void Load(Reg to, const Operand& operand);
  void Ora(const Operand& m);
  void Eor(const Operand& m);
  void And(const Operand& m);
  void Adc(const Operand& m, Carry carry);
  void Sbc(const Operand& m, Carry carry);
  void Compare(Reg reg, const Operand& m);  // sets kNz
  void Bit(const Operand& m);               // sets kNz
  // These four as often as `times` says, below 8.
  void Asl(Reg m, unsigned times);
  void Lsr(Reg m, unsigned times);
  void Rol(Reg m, Carry carry);
  void Ror(Reg m, Carry carry);
  void Inc(Reg m, unsigned times);
  void Dec(Reg m, unsigned times);
  /// Whether anything may read the carry and V that the next instructions set;
  /// if not, a host may leave them out.
  void Keep(bool carry, bool overflow) {
    keeps_carry_ = carry;
    keeps_overflow_ = overflow;
  }

 private:
  bool keeps_carry_ = true, keeps_overflow_ = true;
#if defined(__aarch64__)
  Reg Value(const Operand& operand);
  void AddWithCarry(Reg value, Carry carry);
#else
  enum class InFlags : uint8_t { kNo, kYes, kInverted };
  void Apply(host::Alu op, Reg to, const Operand& operand);
  void Logic(host::Alu op, const Operand& operand);
  void LoadCarry(Carry carry);
  void KeepCarry(InFlags how);

  // Whether the flags of the host CPU hold N and Z, and carry.
  bool nz_in_flags_ = false;
  InFlags carry_in_flags_ = InFlags::kNo;
#endif
};

}  // namespace nes
