#include "nes/macro_assembler.h"

#if defined(__aarch64__)

#include <bit>
#include <iterator>
#include <utility>

namespace nes {

using namespace host;

namespace {

constexpr Bits kByte = {0, 8}, kBit7 = {7, 1};

}  // namespace

// --- Stubs -------------------------------------------------------------------

// Functions preserve kR19 to kR28, where the 6502's registers are.
Stubs MacroAssembler::MakeStubs(const uint8_t* at) {
  const std::pair<Reg, Reg> saved[] = {{kFrame, kLink}, {kR19, kR20},
                                       {kR21, kR22},    {kR23, kR24},
                                       {kR25, kR26},    {kR27, kR28}};
  const std::pair<Reg, Mem> registers[] = {
      {kRegA, FIELD(a)}, {kRegX, FIELD(x)}, {kRegY, FIELD(y)},
      {kS, FIELD(sp)},   {kNz, FIELD(nz)},  {kCarry, FIELD(carry)}};
  Stubs stubs;

  stubs.enter = at + size();
  for (const auto& [first, second] : saved) Push(first, second);
  Move64(kRun, kR0);
  Load64(kRam, FIELD(ram));
  for (const auto& [reg, field] : registers) Load32(reg, field);
  Load64(kPastLimit, FIELD(past_limit));
  Load64(kRom, FIELD(rom));
  AddImmediate(kWide | kMinus, kRom, kRom, kRomBase);
  Load64(kBlocks, FIELD(blocks));
  AddImmediate(kWide | kMinus, kBlocks, kBlocks, kRomBase * sizeof(void*));
  Jump(kR1);

  // Address in kAddress, age in kPointer, and a value to write in kResult.
  const auto make_call = [&](const Mem& function, bool writes) {
    Store64(FIELD(past_limit), kPastLimit);
    if (writes) Move(kR3, kResult);
    Move64(kR0, kRun);
    Load64(kR16, function);
    Push(kFrame, kLink);
    Call(kR16);
    Pop(kFrame, kLink);
    Load64(kPastLimit, FIELD(past_limit));
    Return();
  };
  stubs.read = at + size();
  make_call(FIELD(read), false);
  stubs.write = at + size();
  make_call(FIELD(write), true);

  stubs.leave = at + size();
  Store32(FIELD(pc), kResult);
  Store32(FIELD(leave), kPointer);
  for (const auto& [reg, field] : registers) Store32(field, reg);
  Store64(FIELD(past_limit), kPastLimit);
  for (size_t i = std::size(saved); i-- > 0;) {
    Pop(saved[i].first, saved[i].second);
  }
  Return();
  return stubs;
}

void MacroAssembler::JumpToResult(int64_t miss) {
  const size_t hit = Skip(IfBit(kResult, 15));
  Link(Jump(), miss);
  Land(hit);
  LoadIndexed64(kR16, kBlocks, kResult);
  Jump(kR16);
}

// --- Cycles ------------------------------------------------------------------

void MacroAssembler::AddCycles(int cycles) {
  AddImmediate(kWide | (cycles < 0 ? kMinus : 0), kPastLimit, kPastLimit,
               static_cast<uint32_t>(cycles < 0 ? -cycles : cycles));
}

void MacroAssembler::AddCycleIfAtLeast(Reg reg, unsigned value) {
  Emitter::Compare(reg, value);
  Increment64If(kHs, kPastLimit);
}

void MacroAssembler::AddCycleIfCarries(Reg low, Reg index) {
  Register(kAddByteOfLast, kR16, index, low);
  ShiftRight(kR16, kR16, 8);
  Register(kAdd | kWide, kPastLimit, kPastLimit, kR16);
}

// Adds the number to the register for the flags alone: a comparison with its
// negative.
size_t MacroAssembler::CompareWithLimit() {
  AddImmediate(kWide | kAndFlags, kZero, kPastLimit, 0);
  return size() - 4;
}

void MacroAssembler::SetLimit(size_t at, int cycles) {
  SetWord(at, WordAt(at) | static_cast<uint32_t>(-cycles) << 10);
}

// --- Conditions --------------------------------------------------------------

// Jumps test the 6502's registers themselves: no flag stays in the host's.
void MacroAssembler::ForgetFlags() {}

Condition MacroAssembler::IsAtLeast(Reg reg, unsigned value) {
  Emitter::Compare(reg, value);
  return If(kHs);
}

Condition MacroAssembler::Negative(Reg nz) {
  if (nz != kNz) return IfBit(nz, 7);
  Test(kNz, {7, 2});
  return If(kNe);
}

Condition MacroAssembler::Zero(Reg nz) {
  if (nz != kNz) return IfZero(nz);
  Test(kNz, kByte);
  return If(kEq);
}

Condition MacroAssembler::CarryIsSet() { return Not(IfZero(kCarry)); }

Condition MacroAssembler::OverflowIsSet() {
  LoadByte(kR16, FIELD(overflow));
  return Not(IfZero(kR16));
}

// --- Addresses and bytes -----------------------------------------------------

void MacroAssembler::Join(Reg to, Reg high, int more) {
  Register(kAdd, to, to, high, 8);
  if (more != 0) AddImmediate(0, to, to, static_cast<uint32_t>(more));
}

void MacroAssembler::Mask(Reg reg, uint32_t low_bits) {
  Emitter::And(reg, reg, {0, static_cast<unsigned>(std::popcount(low_bits))});
}
void MacroAssembler::AndByte(const Mem& memory, unsigned bits) {
  LoadByte(kR16, memory);
  MoveImmediate(kR17, bits);
  Register(kAnd, kR16, kR16, kR17);
  StoreByte(memory, kR16);
}
void MacroAssembler::OrByte(const Mem& memory, unsigned bits) {
  LoadByte(kR16, memory);
  MoveImmediate(kR17, bits);
  Register(kOr, kR16, kR16, kR17);
  StoreByte(memory, kR16);
}

// --- Instructions of the 6502 ------------------------------------------------

void MacroAssembler::Load(Reg to, const Operand& operand) {
  if (operand.where == Operand::kImmediate) {
    MoveImmediate(to, operand.value);
  } else if (operand.where == Operand::kMemory) {
    LoadByte(to, operand.memory);
  } else {
    Move(to, kResult);
  }
}

// Returns a register with the operand.
Reg MacroAssembler::Value(const Operand& operand) {
  if (operand.where == Operand::kInResult) return kResult;
  Load(kR17, operand);
  return kR17;
}

void MacroAssembler::Ora(const Operand& m) {
  Register(kOr, kRegA, kRegA, Value(m));
}
void MacroAssembler::And(const Operand& m) {
  Register(kAnd, kRegA, kRegA, Value(m));
}
void MacroAssembler::Eor(const Operand& m) {
  Register(kXor, kRegA, kRegA, Value(m));
}

// V: both operands differ from the result in bit 7.
void MacroAssembler::AddWithCarry(Reg value, Carry carry) {
  constexpr Reg kSum = kR16, kV = kR14, kOther = kR15;
  Register(kAdd, kSum, kRegA, value);
  if (carry == Carry::kInRegister) Register(kAdd, kSum, kSum, kCarry);
  if (carry == Carry::kIs1) AddImmediate(0, kSum, kSum, 1);
  Register(kXor, kV, kRegA, kSum);
  Register(kXor, kOther, value, kSum);
  Register(kAnd, kV, kV, kOther);
  Emitter::And(kV, kV, kBit7);
  StoreByte(FIELD(overflow), kV);
  ShiftRight(kCarry, kSum, 8);
  ExtendByte(kRegA, kSum);
}

void MacroAssembler::Adc(const Operand& m, Carry carry) {
  AddWithCarry(Value(m), carry);
}

// A - m - 1 + carry is A + carry and the complement of m.
void MacroAssembler::Sbc(const Operand& m, Carry carry) {
  Xor(kR17, Value(m), kByte);
  AddWithCarry(kR17, carry);
}

void MacroAssembler::Compare(Reg reg, const Operand& m) {
  if (m.where == Operand::kImmediate) {
    AddImmediate(kMinus | kAndFlags, kNz, reg, m.value);
  } else {
    Register(kSubAndFlags, kNz, reg, Value(m));
  }
  Set(kHs, kCarry);
  ExtendByte(kNz, kNz);
}

// N is bit 7 of the operand, stored as bit 8 of the kept result.
void MacroAssembler::Bit(const Operand& m) {
  const Reg value = Value(m);
  Register(kAnd, kNz, kRegA, value);
  Emitter::And(kR16, value, {6, 1});
  StoreByte(FIELD(overflow), kR16);
  Emitter::And(kR16, value, kBit7);
  Register(kOr, kNz, kNz, kR16, 1);
}

void MacroAssembler::Asl(Reg m, unsigned times) {
  for (; times > 0; --times) Rol(m, Carry::kIs0);
}
void MacroAssembler::Lsr(Reg m, unsigned times) {
  for (; times > 0; --times) Ror(m, Carry::kIs0);
}
void MacroAssembler::Rol(Reg m, Carry carry) {
  const Reg low = carry == Carry::kInRegister ? kCarry : kZero;
  Register(kOr, kR16, low, m, 1);
  if (carry == Carry::kIs1) Or(kR16, kR16, {0, 1});
  ShiftRight(kCarry, kR16, 8);
  ExtendByte(m, kR16);
}
void MacroAssembler::Ror(Reg m, Carry carry) {
  Reg from = m;
  if (carry == Carry::kInRegister) Register(kOr, from = kR16, m, kCarry, 8);
  if (carry == Carry::kIs1) Or(from = kR16, m, {8, 1});
  Emitter::And(kCarry, m, {0, 1});
  ShiftRight(m, from, 1);
}
void MacroAssembler::Inc(Reg m, unsigned times) {
  AddImmediate(0, m, m, times);
  ExtendByte(m, m);
}
void MacroAssembler::Dec(Reg m, unsigned times) {
  AddImmediate(kMinus, m, m, times);
  ExtendByte(m, m);
}

}  // namespace nes

#endif
