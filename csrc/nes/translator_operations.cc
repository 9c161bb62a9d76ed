// Makes machine code for the instructions of the 6502: by kind, by location of
// the operand, and by operation (opcodes.inc), as class Interpreter does.
#include "nes/translator.h"

namespace nes {

using namespace host;
using namespace x86;

// --- Kinds of instruction ----------------------------------------------------

void Translator::Read(const Instruction& at, ReadOperation operation) {
  (this->*operation)(ReadOperand(at));
}

void Translator::Store(const Instruction& at, Reg value) {
  if (!CallsBus(at)) return out_.StoreByte(RamOperand(at), value);
  out_.MoveImmediate(kRcx, at.operand);
  out_.MoveImmediate(kRdx, static_cast<uint32_t>(Age(at)));
  out_.Move(kRax, value);
  out_.Address64(kPastLimit, {kPastLimit, kRsp, flow_.cycles});
  flow_.cycles = 0;
  LinkTo(out_.Call(), stubs_->write);
}

void Translator::Modify(const Instruction& at, ModifyOperation operation) {
  const Mem memory = RamOperand(at);
  if (source_.nes_py_timing && at.info.mode == Mode::kAbsX) AddPageCycle(at);
  out_.LoadByte(kNz, memory);
  (this->*operation)(kNz);
  out_.StoreByte(memory, kNz);
}

void Translator::Branch(const Instruction& at) {
  const unsigned flag = at.opcode >> 6;  // N, V, C or Z
  const bool if_set = at.opcode & 0x20;
  const unsigned target = BranchTarget(at);
  const bool other_page = ((target ^ at.next) & 0xFF00) != 0;
  const int more_cycles = 1 + other_page * (source_.nes_py_timing ? 2 : 1);
  if (flag == 2 && flow_.carry != Carry::kInRegister) {
    if ((flow_.carry == Carry::kIs1) != if_set) return;
    Settle(flow_, more_cycles);
    GoTo(target);
    ends_ = true;
    return;
  }
  const Condition set = flag == 0   ? NegativeFlag()
                        : flag == 1 ? OverflowFlag()
                        : flag == 2 ? CarryFlag()
                                    : ZeroFlag();
  const auto skipping = static_cast<Condition>(if_set ? set ^ 1 : set);
  const size_t skip = out_.Skip(skipping);
  Settle(flow_, more_cycles);
  GoTo(target);
  out_.Land(skip);
}

// Each of these makes the machine's flags say a flag of the 6502, if they do
// not yet, and returns the condition that it is set.
Condition Translator::NegativeFlag() {
  if (flow_.nz_in_flags) return kSign;
  flow_.carry_in_flags = InFlags::kNo;
  if (flow_.nz == kNz) {
    out_.Test(kNz, 0x180);
    return kNotEqual;
  }
  out_.Test8(flow_.nz, flow_.nz);
  flow_.nz_in_flags = true;
  return kSign;
}

Condition Translator::ZeroFlag() {
  if (flow_.nz_in_flags) return kEqual;
  flow_.carry_in_flags = InFlags::kNo;
  out_.Test8(flow_.nz, flow_.nz);
  flow_.nz_in_flags = flow_.nz != kNz;
  return kEqual;
}

Condition Translator::CarryFlag() {
  if (flow_.carry_in_flags == InFlags::kYes) return kBelow;
  if (flow_.carry_in_flags == InFlags::kInverted) return kAboveOrEqual;
  flow_.nz_in_flags = false;
  out_.Test8(kCarry, kCarry);
  return kNotEqual;
}

Condition Translator::OverflowFlag() {
  flow_.nz_in_flags = false;
  flow_.carry_in_flags = InFlags::kNo;
  out_.Byte8(kCmp, FIELD(overflow), 0);
  return kNotEqual;
}

void Translator::Jump(const Instruction& at) {
  ends_ = true;
  if (at.opcode == kRts) {
    out_.Address(kRcx, {kS, kRsp, 1});
    out_.ExtendByte(kRcx, kRcx);
    out_.LoadByte(kRax, RamAt(kRcx, kStack));
    out_.Increment8(kRcx);
    out_.LoadByte(kRdx, RamAt(kRcx, kStack));
    out_.Move(kS, kRcx);
    out_.ShiftLeft(kRdx, 8);
    out_.Address(kRax, {kRax, kRdx, 1});
    Settle(flow_, 0);
    return GoToRax();
  }
  if (at.opcode == kJsr) {
    const unsigned back = at.next - 1;
    for (const unsigned byte : {back >> 8, back & 0xFF}) {
      out_.StoreByteImmediate(RamAt(kS, kStack), byte);
      out_.Decrement8(kS);
    }
  }
  Settle(flow_, 0);
  GoTo(at.operand);
}

void Translator::JumpIndirect(const Instruction& at) {
  ends_ = true;
  const unsigned low = at.operand;
  const unsigned high = (low & 0xFF00) | ((low + 1) & 0xFF);
  if (IsRom(low)) {
    const uint8_t* const rom = source_.rom;
    out_.MoveImmediate(
        kRax, rom[low - kRomBase] | static_cast<unsigned>(rom[high - kRomBase])
                                        << 8);
  } else {
    out_.LoadByte(kRax, RamAt(low));
    out_.LoadByte(kRcx, RamAt(high));
    out_.ShiftLeft(kRcx, 8);
    out_.Full(kOr, kRax, kRcx);
  }
  Settle(flow_, 0);
  GoToRax();
}

// --- Operands ----------------------------------------------------------------

Reg Translator::IndexOf(const Instruction& at) {
  return at.info.mode == Mode::kAbsX || at.info.mode == Mode::kZpX ? kRegX
                                                                   : kRegY;
}

// Adds one cycle if base + index is on another page than the base.
void Translator::AddPageCycle(const Instruction& at) {
  const unsigned low = at.operand & 0xFF;
  if (low == 0) return;
  out_.Byte8(kCmp, IndexOf(at), 0x100 - low);
  out_.Wide(kSbb, kPastLimit, -1);
}

// Returns how many cycles before the end of the instruction memory is accessed.
int Translator::Age(const Instruction& at) const {
  return source_.nes_py_timing ? at.info.cycles : 1;
}

void Translator::CallRead(const Instruction& at) {
  if (at.info.mode == Mode::kAbs) {
    out_.MoveImmediate(kRcx, at.operand);
  } else {
    const unsigned low = at.operand & 0xFF;
    if (low != 0) {
      out_.Byte8(kCmp, IndexOf(at), 0x100 - low);
      LeaveIf(kAboveOrEqual, at);
    }
    out_.Address(kRcx, {IndexOf(at), kRsp, static_cast<int32_t>(at.operand)});
  }
  out_.MoveImmediate(kRdx, static_cast<uint32_t>(Age(at)));
  out_.Address64(kPastLimit, {kPastLimit, kRsp, flow_.cycles});
  flow_.cycles = 0;
  LinkTo(out_.Call(), stubs_->read);
}

// Returns an operand in RAM; its index or address is in a register that no
// operation changes.
Mem Translator::RamOperand(const Instruction& at) {
  const unsigned base = at.operand & kRamMask;
  const auto offset = static_cast<int32_t>(base);
  switch (at.info.mode) {
    case Mode::kZpX:
    case Mode::kZpY:
      if (base == 0) return RamAt(IndexOf(at));
      out_.Address(kRcx, {IndexOf(at), kRsp, offset});
      out_.ExtendByte(kRcx, kRcx);
      return RamAt(kRcx);
    case Mode::kAbsX:
    case Mode::kAbsY:
      if (base + 0xFF < kRamBytes) return RamAt(IndexOf(at), base);
      out_.Address(kRcx, {IndexOf(at), kRsp, offset});
      out_.Full(kAnd, kRcx, kRamMask);
      return RamAt(kRcx);
    case Mode::kIndX:
    case Mode::kIndY:
      LoadPointer(at);
      out_.Full(kCmp, kRdx, kRegisters);
      LeaveIf(kAboveOrEqual, at);
      out_.Full(kAnd, kRdx, kRamMask);
      return RamAt(kRdx);
    default:
      return RamAt(base);
  }
}

// Loads the effective address into edx and, for (zp),Y, the address in memory
// into ecx. It uses two loads, because a program writes the two bytes one by
// one.
void Translator::LoadPointer(const Instruction& at) {
  const unsigned zp = at.operand;
  if (at.info.mode == Mode::kIndX) {
    out_.Address(kRcx, {kRegX, kRsp, static_cast<int32_t>(zp)});
    out_.ExtendByte(kRcx, kRcx);
    out_.LoadByte(kRdx, RamAt(kRcx));
    out_.Increment8(kRcx);
    out_.LoadByte(kRcx, RamAt(kRcx));
    out_.ShiftLeft(kRcx, 8);
    out_.Full(kOr, kRdx, kRcx);
  } else {
    out_.LoadByte(kRcx, RamAt(zp));
    out_.LoadByte(kRdx, RamAt((zp + 1) & 0xFF));
    out_.ShiftLeft(kRdx, 8);
    out_.Full(kOr, kRcx, kRdx);
    out_.Address(kRdx, {kRcx, kRegY});
  }
}

// Returns the operand behind a pointer, in RAM or ROM. If the page changes, the
// address before the change must be memory too: a pointer below $8000 must not
// reach into ROM.
Mem Translator::PointerOperand(const Instruction& at) {
  const bool is_indexed = at.info.mode == Mode::kIndY;
  LoadPointer(at);
  out_.Full(kCmp, kRdx, kRegisters);
  const size_t rom = out_.Skip(kAboveOrEqual);
  out_.Full(kAnd, kRdx, kRamMask);
  out_.Address64(kRdx, RamAt(kRdx));
  const size_t end = out_.Skip();
  out_.Land(rom);
  out_.Full(kCmp, is_indexed ? kRcx : kRdx, kRomBase);
  LeaveIf(kBelow, at);
  if (is_indexed) {
    out_.Full(kCmp, kRdx, 0x10000);
    LeaveIf(kAboveOrEqual, at);
  }
  out_.Address64(kRdx, {kRom, kRdx});
  out_.Land(end);
  if (is_indexed) {
    out_.Byte8(kAdd, kRcx, kRegY);
    out_.Wide(kAdc, kPastLimit, 0);
  }
  return {kRdx};
}

Translator::Operand Translator::ReadOperand(const Instruction& at) {
  if (CallsBus(at)) {
    CallRead(at);
    return {Operand::kInRax};
  }
  switch (at.info.mode) {
    case Mode::kImm:
      return {Operand::kImmediate, at.operand};
    case Mode::kAbs:
      if (IsRam(at.operand)) break;
      return {Operand::kImmediate, source_.rom[at.operand - kRomBase]};
    case Mode::kAbsX:
    case Mode::kAbsY: {
      const auto base = static_cast<int32_t>(at.operand);
      if (IsRam(at.operand)) {
        AddPageCycle(at);
        break;
      }
      if (IsRom(at.operand + 0xFF)) {
        AddPageCycle(at);
        return {Operand::kMemory, 0, {kRom, IndexOf(at), base}};
      }
      out_.Address(kRcx, {IndexOf(at), kRsp, base});
      out_.Full(kCmp, kRcx, 0x10000);  // from here on it is the zero page
      LeaveIf(kAboveOrEqual, at);
      return {Operand::kMemory, 0, {kRom, kRcx}};
    }
    case Mode::kIndX:
    case Mode::kIndY:
      return {Operand::kMemory, 0, PointerOperand(at)};
    default:
      break;
  }
  return {Operand::kMemory, 0, RamOperand(at)};
}

// --- What the operations have in common --------------------------------------

void Translator::SetNz(Reg from, bool in_flags) {
  flow_.nz = from;
  flow_.nz_in_flags = in_flags;
}

void Translator::Load(Reg to, const Operand& operand) {
  if (operand.where == Operand::kImmediate) {
    out_.MoveImmediate(to, operand.value);
  } else if (operand.where == Operand::kMemory) {
    out_.LoadByte(to, operand.memory);
  } else {
    out_.Move(to, kRax);
  }
}

void Translator::LoadNz(Reg to, const Operand& operand) {
  Load(to, operand);
  SetNz(to, false);
}

void Translator::Apply(Alu op, Reg to, const Operand& operand) {
  if (operand.where == Operand::kImmediate) {
    out_.Byte8(op, to, operand.value);
  } else if (operand.where == Operand::kMemory) {
    out_.Byte8(op, to, operand.memory);
  } else {
    out_.Byte8(op, to, kRax);
  }
}

// Copies the carry of the host CPU to the carry of the 6502.
void Translator::LoadCarry() {
  if (flow_.carry == Carry::kInRegister) {
    out_.CarryFromBit0(kCarry);
  } else if (flow_.carry == Carry::kIs1) {
    out_.SetCarry();
  } else {
    out_.ClearCarry();
  }
}

void Translator::KeepCarry(InFlags how) {
  out_.Set8(how == InFlags::kYes ? kBelow : kAboveOrEqual, kCarry);
  flow_.carry = Carry::kInRegister;
  flow_.carry_in_flags = how;
}

void Translator::Compare(Reg reg, const Operand& operand) {
  out_.Move(kNz, reg);
  Apply(kSub, kNz, operand);
  KeepCarry(InFlags::kInverted);
  SetNz(kNz, true);
}

void Translator::Logic(Alu op, const Operand& operand) {
  Apply(op, kRegA, operand);
  SetNz(kRegA, true);
}

void Translator::Transfer(Reg to, Reg from) {
  out_.Move(to, from);
  SetNz(to, false);
}

// --- Operations --------------------------------------------------------------

void Translator::Lda(const Operand& m) { LoadNz(kRegA, m); }
void Translator::Ldx(const Operand& m) { LoadNz(kRegX, m); }
void Translator::Ldy(const Operand& m) { LoadNz(kRegY, m); }
void Translator::Ora(const Operand& m) { Logic(kOr, m); }
void Translator::And(const Operand& m) { Logic(kAnd, m); }
void Translator::Eor(const Operand& m) { Logic(kXor, m); }
void Translator::Cmp(const Operand& m) { Compare(kRegA, m); }
void Translator::Cpx(const Operand& m) { Compare(kRegX, m); }
void Translator::Cpy(const Operand& m) { Compare(kRegY, m); }

void Translator::Adc(const Operand& m) {
  if (flow_.carry == Carry::kIs0) {
    Apply(kAdd, kRegA, m);
  } else {
    LoadCarry();
    Apply(kAdc, kRegA, m);
  }
  out_.Set8(kOverflow, FIELD(overflow));
  KeepCarry(InFlags::kYes);
  SetNz(kRegA, true);
}

// The host CPU borrows where the 6502 has no carry.
void Translator::Sbc(const Operand& m) {
  if (flow_.carry == Carry::kIs1) {
    Apply(kSub, kRegA, m);
  } else {
    if (flow_.carry == Carry::kIs0) {
      out_.SetCarry();
    } else {
      out_.Byte8(kCmp, kCarry, 1);
    }
    Apply(kSbb, kRegA, m);
  }
  out_.Set8(kOverflow, FIELD(overflow));
  KeepCarry(InFlags::kInverted);
  SetNz(kRegA, true);
}

// N is bit 7 of the operand, stored as bit 8 of the kept result.
void Translator::Bit(const Operand& m) {
  Load(kRcx, m);
  out_.Move(kNz, kRegA);
  out_.Full(kAnd, kNz, kRcx);
  out_.Move(kRax, kRcx);
  out_.Full(kAnd, kRax, 0x40);
  out_.StoreByte(FIELD(overflow), kRax);
  out_.Full(kAnd, kRcx, 0x80);
  out_.ShiftLeft(kRcx, 1);
  out_.Full(kOr, kNz, kRcx);
  SetNz(kNz, false);
}

void Translator::Asl(Reg m) {
  out_.Shift8(kShl, m);
  KeepCarry(InFlags::kYes);
  SetNz(m, true);
}
void Translator::Lsr(Reg m) {
  out_.Shift8(kShr, m);
  KeepCarry(InFlags::kYes);
  SetNz(m, true);
}
void Translator::Rol(Reg m) {
  LoadCarry();
  out_.Byte8(kAdc, m, m);
  KeepCarry(InFlags::kYes);
  SetNz(m, true);
}
void Translator::Ror(Reg m) {
  LoadCarry();
  out_.Shift8(kRcr, m);
  KeepCarry(InFlags::kYes);
  SetNz(m, false);
}
void Translator::Inc(Reg m) {
  out_.Increment8(m);
  SetNz(m, true);
}
void Translator::Dec(Reg m) {
  out_.Decrement8(m);
  SetNz(m, true);
}

void Translator::Nop() {}
void Translator::Tax() { Transfer(kRegX, kRegA); }
void Translator::Tay() { Transfer(kRegY, kRegA); }
void Translator::Tsx() { Transfer(kRegX, kS); }
void Translator::Txa() { Transfer(kRegA, kRegX); }
void Translator::Tya() { Transfer(kRegA, kRegY); }
void Translator::Txs() { out_.Move(kS, kRegX); }
void Translator::Inx() { Inc(kRegX); }
void Translator::Iny() { Inc(kRegY); }
void Translator::Dex() { Dec(kRegX); }
void Translator::Dey() { Dec(kRegY); }
void Translator::Clc() { flow_.carry = Carry::kIs0; }
void Translator::Sec() { flow_.carry = Carry::kIs1; }
void Translator::Clv() { out_.StoreByteImmediate(FIELD(overflow), 0); }
void Translator::Cld() { out_.Byte8(kAnd, FIELD(d_i), 0x04); }
void Translator::Sed() { out_.Byte8(kOr, FIELD(d_i), 0x08); }

void Translator::Pha() {
  out_.StoreByte(RamAt(kS, kStack), kRegA);
  out_.Decrement8(kS);
}
void Translator::Pla() {
  out_.Increment8(kS);
  LoadNz(kRegA, {Operand::kMemory, 0, RamAt(kS, kStack)});
}

}  // namespace nes
