#include "nes/macro_assembler.h"

#if !defined(__aarch64__)

#include <iterator>
#include <utility>

namespace nes {

using namespace host;

// --- Stubs -------------------------------------------------------------------

Stubs MacroAssembler::MakeStubs(const uint8_t* at) {
  constexpr Reg kSaved[] = {kRbx, kRbp, kR12, kR13, kR14, kR15};
  constexpr auto kTableOffset = static_cast<int32_t>(kRomBase * sizeof(void*));
  const auto load_pointers = [this] {
    Load64(kRom, FIELD(rom));
    Wide(kSub, kRom, kRomBase);
    Load64(kBlocks, FIELD(blocks));
    Wide(kSub, kBlocks, kTableOffset);
  };
  const std::pair<Reg, Mem> kept[] = {
      {kS, FIELD(sp)}, {kNz, FIELD(nz)}, {kCarry, FIELD(carry)}};
  const std::pair<Reg, Mem> others[] = {
      {kRegA, FIELD(a)}, {kRegX, FIELD(x)}, {kRegY, FIELD(y)}};
  Stubs stubs;

  stubs.enter = at + size();
  for (const Reg reg : kSaved) Push(reg);
  Wide(kSub, kRsp, 16);  // within a call it is a multiple of 16, as calls need
  Move64(kRun, kRdi);
  Move64(kRax, kRsi);
  Load64(kRam, FIELD(ram));
  Wide(kAdd, kRam, kRamBias);
  for (const auto& [reg, field] : kept) Load32(reg, field);
  for (const auto& [reg, field] : others) Load32(reg, field);
  Load64(kPastLimit, FIELD(past_limit));
  load_pointers();
  Jump(kRax);

  // Address in kAddress, age in kPointer, and a value to write in kResult.
  const auto make_call = [&](const Mem& function, bool writes) {
    for (const auto& [reg, field] : kept) Store32(field, reg);
    Store64(FIELD(past_limit), kPastLimit);
    Move64(kRdi, kRun);
    Move(kRsi, kAddress);
    if (writes) Move(kRcx, kResult);
    Call(function);
    for (const auto& [reg, field] : kept) Load32(reg, field);
    Load64(kPastLimit, FIELD(past_limit));
    load_pointers();
    Return();
  };
  stubs.read = at + size();
  make_call(FIELD(read), false);
  stubs.write = at + size();
  make_call(FIELD(write), true);

  stubs.leave = at + size();
  Store32(FIELD(pc), kResult);
  Store32(FIELD(leave), kPointer);
  for (const auto& [reg, field] : kept) Store32(field, reg);
  for (const auto& [reg, field] : others) Store32(field, reg);
  Store64(FIELD(past_limit), kPastLimit);
  Wide(kAdd, kRsp, 16);
  for (size_t i = std::size(kSaved); i-- > 0;) Pop(kSaved[i]);
  Return();
  return stubs;
}

void MacroAssembler::JumpToResult(int64_t miss) {
  Test(kResult, kRomBase);
  Link(JumpIf(kEqual), miss);
  Jump({kBlocks, kResult, 0, 3});
}

// --- Cycles ------------------------------------------------------------------

void MacroAssembler::AddCycles(int cycles) {
  Address64(kPastLimit, {kPastLimit, kNoIndex, cycles});
}

void MacroAssembler::AddCycleIfAtLeast(Reg reg, unsigned value) {
  Byte8(kCmp, reg, value);
  Wide(kSbb, kPastLimit, -1);
}

void MacroAssembler::AddCycleIfCarries(Reg low, Reg index) {
  Byte8(kAdd, low, index);
  Wide(kAdc, kPastLimit, 0);
}

size_t MacroAssembler::CompareWithLimit() { return CompareWide(kPastLimit); }

void MacroAssembler::SetLimit(size_t at, int cycles) { Patch(at, cycles); }

// --- Conditions --------------------------------------------------------------

Condition MacroAssembler::IsAtLeast(Reg reg, unsigned value) {
  if (value < 0x100) {
    Byte8(kCmp, reg, value);
  } else {
    Full(kCmp, reg, value);
  }
  return kAboveOrEqual;
}

void MacroAssembler::ForgetFlags() {
  nz_in_flags_ = false;
  carry_in_flags_ = InFlags::kNo;
}

// Each of these makes the machine's flags say a flag of the 6502, if they do
// not yet, and returns the condition that it is set.
Condition MacroAssembler::Negative(Reg nz) {
  if (nz_in_flags_) return kSign;
  carry_in_flags_ = InFlags::kNo;
  if (nz == kNz) {
    Test(kNz, 0x180);
    return kNotEqual;
  }
  Test8(nz, nz);
  nz_in_flags_ = true;
  return kSign;
}

Condition MacroAssembler::Zero(Reg nz) {
  if (nz_in_flags_) return kEqual;
  carry_in_flags_ = InFlags::kNo;
  Test8(nz, nz);
  nz_in_flags_ = nz != kNz;
  return kEqual;
}

Condition MacroAssembler::CarryIsSet() {
  if (carry_in_flags_ == InFlags::kYes) return kBelow;
  if (carry_in_flags_ == InFlags::kInverted) return kAboveOrEqual;
  nz_in_flags_ = false;
  Test8(kCarry, kCarry);
  return kNotEqual;
}

Condition MacroAssembler::OverflowIsSet() {
  ForgetFlags();
  Byte8(kCmp, FIELD(overflow), 0);
  return kNotEqual;
}

// --- Addresses and bytes -----------------------------------------------------

void MacroAssembler::Join(Reg to, Reg high, int more) {
  ShiftLeft(high, 8);
  if (more != 0) {
    Address(to, {to, high, more});
  } else {
    Full(kOr, to, high);
  }
}

void MacroAssembler::Mask(Reg reg, uint32_t low_bits) {
  Full(kAnd, reg, low_bits);
}
void MacroAssembler::AndByte(const Mem& memory, unsigned bits) {
  Byte8(kAnd, memory, bits);
}
void MacroAssembler::OrByte(const Mem& memory, unsigned bits) {
  Byte8(kOr, memory, bits);
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

void MacroAssembler::Apply(Alu op, Reg to, const Operand& operand) {
  if (operand.where == Operand::kImmediate) {
    Byte8(op, to, operand.value);
  } else if (operand.where == Operand::kMemory) {
    Byte8(op, to, operand.memory);
  } else {
    Byte8(op, to, kResult);
  }
}

// Copies the carry of the 6502 to the host CPU's.
void MacroAssembler::LoadCarry(Carry carry) {
  if (carry == Carry::kInRegister) {
    CarryFromBit0(kCarry);
  } else if (carry == Carry::kIs1) {
    SetCarry();
  } else {
    ClearCarry();
  }
}

// Copies the carry of the host CPU to the 6502's; N and Z are in flags, too.
void MacroAssembler::KeepCarry(InFlags how) {
  if (keeps_carry_) Set8(how == InFlags::kYes ? kBelow : kAboveOrEqual, kCarry);
  carry_in_flags_ = how;
  nz_in_flags_ = true;
}

void MacroAssembler::Logic(Alu op, const Operand& operand) {
  Apply(op, kRegA, operand);
  nz_in_flags_ = true;
}

void MacroAssembler::Ora(const Operand& m) { Logic(kOr, m); }
void MacroAssembler::And(const Operand& m) { Logic(kAnd, m); }
void MacroAssembler::Eor(const Operand& m) { Logic(kXor, m); }

void MacroAssembler::Adc(const Operand& m, Carry carry) {
  if (carry == Carry::kIs0) {
    Apply(kAdd, kRegA, m);
  } else {
    LoadCarry(carry);
    Apply(kAdc, kRegA, m);
  }
  if (keeps_overflow_) Set8(kOverflow, FIELD(overflow));
  KeepCarry(InFlags::kYes);
}

// The host CPU borrows where the 6502 has no carry.
void MacroAssembler::Sbc(const Operand& m, Carry carry) {
  if (carry == Carry::kIs1) {
    Apply(kSub, kRegA, m);
  } else {
    if (carry == Carry::kIs0) {
      SetCarry();
    } else {
      Byte8(kCmp, kCarry, 1);
    }
    Apply(kSbb, kRegA, m);
  }
  if (keeps_overflow_) Set8(kOverflow, FIELD(overflow));
  KeepCarry(InFlags::kInverted);
}

void MacroAssembler::Compare(Reg reg, const Operand& m) {
  Move(kNz, reg);
  Apply(kSub, kNz, m);
  KeepCarry(InFlags::kInverted);
}

// N is bit 7 of the operand, stored as bit 8 of the kept result.
void MacroAssembler::Bit(const Operand& m) {
  Load(kRcx, m);
  Move(kNz, kRegA);
  Full(kAnd, kNz, kRcx);
  Move(kRax, kRcx);
  Full(kAnd, kRax, 0x40);
  StoreByte(FIELD(overflow), kRax);
  Full(kAnd, kRcx, 0x80);
  ShiftLeft(kRcx, 1);
  Full(kOr, kNz, kRcx);
}

void MacroAssembler::Asl(Reg m, unsigned times) {
  Shift8(kShl, m, times);
  KeepCarry(InFlags::kYes);
}
void MacroAssembler::Lsr(Reg m, unsigned times) {
  Shift8(kShr, m, times);
  KeepCarry(InFlags::kYes);
}
void MacroAssembler::Rol(Reg m, Carry carry) {
  LoadCarry(carry);
  Byte8(kAdc, m, m);
  KeepCarry(InFlags::kYes);
}
void MacroAssembler::Ror(Reg m, Carry carry) {
  LoadCarry(carry);
  Shift8(kRcr, m, 1);
  KeepCarry(InFlags::kYes);
  nz_in_flags_ = false;
}
void MacroAssembler::Inc(Reg m, unsigned times) {
  Byte8(kAdd, m, times);
  nz_in_flags_ = true;
}
void MacroAssembler::Dec(Reg m, unsigned times) {
  Byte8(kSub, m, times);
  nz_in_flags_ = true;
}

}  // namespace nes

#endif
