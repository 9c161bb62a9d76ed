// Makes machine code for the instructions of the 6502: by kind, by location of
// the operand, and by operation (opcodes.inc), as class Interpreter does.
#include "nes/translator.h"

namespace nes {

using namespace host;

// --- Kinds of instruction ----------------------------------------------------

void Translator::Read(const Instruction& at, ReadOperation operation) {
  (this->*operation)(ReadOperand(at));
}

void Translator::Store(const Instruction& at, Reg value) {
  if (!CallsBus(at)) return out_.StoreByte(RamOperand(at), value);
  out_.MoveImmediate(kAddress, at.operand);
  out_.MoveImmediate(kPointer, static_cast<uint32_t>(Age(at)));
  out_.Move(kResult, value);
  out_.AddCycles(flow_.cycles);
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
    GoTo(target, most_cycles_ + more_cycles);
    ends_ = true;
    return;
  }
  const Condition set = flag == 0   ? out_.Negative(flow_.nz)
                        : flag == 1 ? out_.OverflowIsSet()
                        : flag == 2 ? out_.CarryIsSet()
                                    : out_.Zero(flow_.nz);
  const Condition taken = if_set ? set : Not(set);
  if (target < at.pc && IsRom(target) && kReach > kRomBytes * size_t{1024}) {
    // A loop, most often taken: one jump of the host.
    Settle(flow_, more_cycles);
    LinkToBlock(out_.JumpIf(taken), target, most_cycles_ + more_cycles);
    flow_.cycles = -more_cycles;
    return;
  }
  const size_t skip = out_.Skip(Not(taken));
  Settle(flow_, more_cycles);
  GoTo(target, most_cycles_ + more_cycles);
  out_.Land(skip);
}

void Translator::Jump(const Instruction& at) {
  ends_ = true;
  if (at.opcode == kRts) {
    out_.Increment8(kS);
    out_.LoadByte(kResult, RamAt(kS, kStack));
    out_.Increment8(kS);
    out_.LoadByte(kPointer, RamAt(kS, kStack));
    out_.Join(kResult, kPointer, 1);
    Settle(flow_, 0);
    return GoToResult();
  }
  if (at.opcode == kJsr) {
    const unsigned back = at.next - 1;
    for (const unsigned byte : {back >> 8, back & 0xFF}) {
      out_.StoreByteImmediate(RamAt(kS, kStack), byte);
      out_.Decrement8(kS);
    }
  }
  Settle(flow_, 0);
  GoTo(at.operand, most_cycles_);
}

void Translator::JumpIndirect(const Instruction& at) {
  ends_ = true;
  const unsigned low = at.operand;
  const unsigned high = (low & 0xFF00) | ((low + 1) & 0xFF);
  if (IsRom(low)) {
    const uint8_t* const rom = source_.rom;
    out_.MoveImmediate(
        kResult,
        rom[low - kRomBase] | static_cast<unsigned>(rom[high - kRomBase]) << 8);
  } else {
    out_.LoadByte(kResult, RamAt(low));
    out_.LoadByte(kAddress, RamAt(high));
    out_.Join(kResult, kAddress);
  }
  Settle(flow_, 0);
  GoToResult();
}

// --- Operands ----------------------------------------------------------------

Reg Translator::IndexOf(const Instruction& at) {
  return at.info.mode == Mode::kAbsX || at.info.mode == Mode::kZpX ? kRegX
                                                                   : kRegY;
}

// Adds one cycle if base + index is on another page than the base.
void Translator::AddPageCycle(const Instruction& at) {
  const unsigned low = at.operand & 0xFF;
  if (low != 0) out_.AddCycleIfAtLeast(IndexOf(at), 0x100 - low);
}

// Returns how many cycles before the end of the instruction memory is accessed.
int Translator::Age(const Instruction& at) const {
  return source_.nes_py_timing ? at.info.cycles : 1;
}

void Translator::CallRead(const Instruction& at) {
  if (at.info.mode == Mode::kAbs) {
    const unsigned poll = BeginsStatusPoll(at) ? at.pc : 0;
    out_.MoveImmediate(kAddress, at.operand | poll << 16);
  } else {
    const unsigned low = at.operand & 0xFF;
    if (low != 0) LeaveIf(out_.IsAtLeast(IndexOf(at), 0x100 - low), at);
    out_.Address(kAddress,
                 {IndexOf(at), kNoIndex, static_cast<int32_t>(at.operand)});
  }
  out_.MoveImmediate(kPointer, static_cast<uint32_t>(Age(at)));
  out_.AddCycles(flow_.cycles);
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
      out_.Address(kAddress, {IndexOf(at), kNoIndex, offset});
      out_.ExtendByte(kAddress, kAddress);
      return RamAt(kAddress);
    case Mode::kAbsX:
    case Mode::kAbsY:
      if (base + 0xFF < kRamBytes) return RamAt(IndexOf(at), base);
      out_.Address(kAddress, {IndexOf(at), kNoIndex, offset});
      out_.Mask(kAddress, kRamMask);
      return RamAt(kAddress);
    case Mode::kIndX:
    case Mode::kIndY:
      LoadPointer(at);
      LeaveIf(out_.IsAtLeast(kPointer, kRegisters), at);
      out_.Mask(kPointer, kRamMask);
      return RamAt(kPointer);
    default:
      return RamAt(base);
  }
}

// Loads the effective address into kPointer and, for (zp),Y, the address in
// memory into kAddress. It uses two loads, because a program writes the two
// bytes one by one.
void Translator::LoadPointer(const Instruction& at) {
  const unsigned zp = at.operand;
  if (at.info.mode == Mode::kIndX) {
    out_.Address(kAddress, {kRegX, kNoIndex, static_cast<int32_t>(zp)});
    out_.ExtendByte(kAddress, kAddress);
    out_.LoadByte(kPointer, RamAt(kAddress));
    out_.Increment8(kAddress);
    out_.LoadByte(kAddress, RamAt(kAddress));
    out_.Join(kPointer, kAddress);
  } else {
    out_.LoadByte(kAddress, RamAt(zp));
    out_.LoadByte(kPointer, RamAt((zp + 1) & 0xFF));
    out_.Join(kAddress, kPointer);
    out_.Address(kPointer, {kAddress, kRegY});
  }
}

// Returns the operand behind a pointer, in RAM or ROM. If the page changes, the
// address before the change must be memory too: a pointer below $8000 must not
// reach into ROM.
Mem Translator::PointerOperand(const Instruction& at) {
  const bool is_indexed = at.info.mode == Mode::kIndY;
  LoadPointer(at);
  const size_t rom = out_.Skip(out_.IsAtLeast(kPointer, kRegisters));
  out_.Mask(kPointer, kRamMask);
  out_.Address64(kPointer, RamAt(kPointer));
  const size_t end = out_.Skip();
  out_.Land(rom);
  LeaveIf(Not(out_.IsAtLeast(is_indexed ? kAddress : kPointer, kRomBase)), at);
  if (is_indexed) LeaveIf(out_.IsAtLeast(kPointer, 0x10000), at);
  out_.Address64(kPointer, {kRom, kPointer});
  out_.Land(end);
  if (is_indexed) out_.AddCycleIfCarries(kAddress, kRegY);
  return {kPointer};
}

Translator::Operand Translator::ReadOperand(const Instruction& at) {
  if (CallsBus(at)) {
    CallRead(at);
    return {Operand::kInResult};
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
      out_.Address(kAddress, {IndexOf(at), kNoIndex, base});
      // From $10000 on it is the zero page.
      LeaveIf(out_.IsAtLeast(kAddress, 0x10000), at);
      return {Operand::kMemory, 0, {kRom, kAddress}};
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

void Translator::LoadNz(Reg to, const Operand& operand) {
  out_.Load(to, operand);
  flow_.nz = to;
}

void Translator::SetCarryAndNz(Reg result) {
  flow_.carry = Carry::kInRegister;
  flow_.nz = result;
}

void Translator::Compare(Reg reg, const Operand& operand) {
  out_.Compare(reg, operand);
  SetCarryAndNz(kNz);
}

void Translator::Transfer(Reg to, Reg from) {
  out_.Move(to, from);
  flow_.nz = to;
}

// --- Operations --------------------------------------------------------------

void Translator::Lda(const Operand& m) { LoadNz(kRegA, m); }
void Translator::Ldx(const Operand& m) { LoadNz(kRegX, m); }
void Translator::Ldy(const Operand& m) { LoadNz(kRegY, m); }
void Translator::Cmp(const Operand& m) { Compare(kRegA, m); }
void Translator::Cpx(const Operand& m) { Compare(kRegX, m); }
void Translator::Cpy(const Operand& m) { Compare(kRegY, m); }

void Translator::Ora(const Operand& m) {
  out_.Ora(m);
  flow_.nz = kRegA;
}
void Translator::And(const Operand& m) {
  out_.And(m);
  flow_.nz = kRegA;
}
void Translator::Eor(const Operand& m) {
  out_.Eor(m);
  flow_.nz = kRegA;
}
void Translator::Adc(const Operand& m) {
  out_.Adc(m, flow_.carry);
  SetCarryAndNz(kRegA);
}
void Translator::Sbc(const Operand& m) {
  out_.Sbc(m, flow_.carry);
  SetCarryAndNz(kRegA);
}
void Translator::Bit(const Operand& m) {
  out_.Bit(m);
  flow_.nz = kNz;
}
void Translator::Asl(Reg m) {
  out_.Asl(m, times_);
  SetCarryAndNz(m);
}
void Translator::Lsr(Reg m) {
  out_.Lsr(m, times_);
  SetCarryAndNz(m);
}
void Translator::Rol(Reg m) {
  out_.Rol(m, flow_.carry);
  SetCarryAndNz(m);
}
void Translator::Ror(Reg m) {
  out_.Ror(m, flow_.carry);
  SetCarryAndNz(m);
}
void Translator::Inc(Reg m) {
  out_.Inc(m, times_);
  flow_.nz = m;
}
void Translator::Dec(Reg m) {
  out_.Dec(m, times_);
  flow_.nz = m;
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
void Translator::Cld() { out_.AndByte(FIELD(d_i), 0x04); }
void Translator::Sed() { out_.OrByte(FIELD(d_i), 0x08); }

void Translator::Pha() {
  out_.StoreByte(RamAt(kS, kStack), kRegA);
  out_.Decrement8(kS);
}
void Translator::Pla() {
  out_.Increment8(kS);
  LoadNz(kRegA, {Operand::kMemory, 0, RamAt(kS, kStack)});
}

}  // namespace nes
