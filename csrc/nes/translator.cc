// Blocks of 6502 code. Registers and flags stay in machine registers through
// all blocks. Within a block the translator counts the cycles, a result is not
// copied for N and Z while a register holds it, and a known carry is not
// stored. `Settle` stores them wherever a block is left.
#include "nes/translator.h"

#include <algorithm>

#include "nes/status_poll.h"

namespace nes {

using namespace host;

namespace {

constexpr int kMostInstructions = 48;  // of a block
constexpr int kMostReach = 400;        // cycles

bool IsIndexed(Mode mode) { return mode == Mode::kAbsX || mode == Mode::kAbsY; }

}  // namespace

// --- Stubs -------------------------------------------------------------------

Stubs Translator::MakeStubs() {
  Stubs stubs = out_.MakeStubs(at_);
  const auto make_leave = [&](Leave why) {
    const uint8_t* const stub = at_ + out_.size();
    out_.MoveImmediate(kPointer, static_cast<uint32_t>(why));
    LinkTo(out_.Jump(), stubs.leave);
    return stub;
  };
  stubs.leave_limit = make_leave(Leave::kLimit);
  stubs.leave_miss = make_leave(Leave::kMiss);
  stubs.leave_interpreted = make_leave(Leave::kInterpreted);
  return stubs;
}

// --- What is translated, and where blocks begin ------------------------------

Translator::Instruction Translator::Decode(unsigned pc) const {
  const uint32_t code = LoadCode(source_.rom + (pc - kRomBase));
  const auto opcode = static_cast<uint8_t>(code);
  const OpcodeInfo& info = kOpcodes[opcode];
  return {
      pc, pc + static_cast<unsigned>(InstructionBytes(info.mode)),
      info.mode == Mode::kAbs || IsIndexed(info.mode) || info.mode == Mode::kInd
          ? code >> 8 & 0xFFFF
          : code >> 8 & 0xFF,
      opcode, info};
}

unsigned Translator::BranchTarget(const Instruction& at) {
  return at.next + static_cast<unsigned>(static_cast<int8_t>(at.operand));
}

bool Translator::BeginsStatusPoll(const Instruction& at) const {
  if (at.pc > 0xFFFF - status_poll::kBytes) return false;
  const uint8_t* const code = source_.rom + (at.pc - kRomBase);
  return code[status_poll::kBytes - 1] == status_poll::kBranchBack &&
         status_poll::IsAt(code);
}

bool Translator::CallsBus(const Instruction& at) {
  if (at.info.kind == Kind::kStore) {
    return at.info.mode == Mode::kAbs && IsRegister(at.operand);
  }
  if (at.info.kind != Kind::kRead) return false;
  // Within a page there is only one access; the last page has no other use.
  return (at.info.mode == Mode::kAbs && IsRegister(at.operand)) ||
         (IsIndexed(at.info.mode) && IsRegister(at.operand & 0xFF00));
}

bool Translator::IsAddressTranslated(const Instruction& at) const {
  const bool is_read = at.info.kind == Kind::kRead;
  const unsigned base = at.operand;
  if (CallsBus(at)) return true;
  switch (at.info.mode) {
    case Mode::kAbs:
      return IsRam(base) || (is_read && IsRom(base));
    case Mode::kAbsX:
    case Mode::kAbsY:
      return IsRam(base + 0xFF) || (is_read && IsRom(base));
    default:
      return true;
  }
}

bool Translator::IsTranslated(const Instruction& at) const {
  if (at.next > 0xFFFF || !at.info.is_official) return false;
  switch (at.info.kind) {
    case Kind::kRead:
    case Kind::kStore:
    case Kind::kModify:
      return IsAddressTranslated(at);
    case Kind::kAccumulator:
    case Kind::kImplied:
    case Kind::kBranch:
      return true;
    case Kind::kStack:
      return at.opcode != kPhp;
    case Kind::kJump:
      return at.opcode != kJmp || at.operand != at.pc;
    case Kind::kJumpIndirect:
      return IsRam(at.operand) || IsRom(at.operand);
    case Kind::kStoreHigh:
    case Kind::kInterrupting:
      return false;
  }
  return false;
}

bool Translator::EndsBlock(const Instruction& at) {
  return at.info.kind == Kind::kJump || at.info.kind == Kind::kJumpIndirect ||
         CallsBus(at);
}

// Whether the same instruction follows in the block, and both can be made as
// one.
bool Translator::IsRepeated(const Instruction& at) const {
  constexpr uint8_t kInx = 0xE8, kIny = 0xC8, kDex = 0xCA, kDey = 0x88;
  constexpr uint8_t kAsl = 0x0A, kLsr = 0x4A;
  for (const uint8_t opcode : {kInx, kIny, kDex, kDey, kAsl, kLsr}) {
    if (opcode != at.opcode) continue;
    return IsRom(at.next) && Decode(at.next).opcode == opcode &&
           IsTranslated(Decode(at.next)) && !IsLeader(at.next);
  }
  return false;
}

// Whether the block may end before, within or behind an instruction.
bool Translator::MayLeave(const Instruction& at) {
  const Mode mode = at.info.mode;
  return at.info.kind == Kind::kBranch || EndsBlock(at) ||
         mode == Mode::kIndX || mode == Mode::kIndY ||
         (IsIndexed(mode) && !IsRam(at.operand) && !IsRom(at.operand + 0xFF));
}

// Whether code from pc on may read a flag: unless the same block sets it first.
bool Translator::IsRead(Flag flag, unsigned pc) const {
  while (IsRom(pc) && !IsLeader(pc)) {
    const Instruction at = Decode(pc);
    const std::string_view name = at.info.operation;
    if (!IsTranslated(at) || MayLeave(at)) return true;
    if (flag.read_by.find(name) != flag.read_by.npos) return true;
    if (flag.set_by.find(name) != flag.set_by.npos) return false;
    pc = at.next;
  }
  return true;
}

int Translator::MostCycles(const Instruction& at) const {
  const bool is_indexed =
      IsIndexed(at.info.mode) || at.info.mode == Mode::kIndY;
  const bool may_cross =
      is_indexed && (at.info.kind == Kind::kRead ||
                     (at.info.kind == Kind::kModify && source_.nes_py_timing));
  return at.info.cycles + may_cross;
}

bool Translator::IsLeader(unsigned pc) const {
  return leaders_[pc - kRomBase] || (*block_at_)(pc) != nullptr;
}

void Translator::AddLeader(unsigned pc) {
  if (!IsRom(pc) || IsLeader(pc)) return;
  leaders_.set(pc - kRomBase);
  found_.push_back(pc);
}

// Adds the addresses at which the program may continue after `at`, except the
// next instruction in the same block.
void Translator::AddLeadersBehind(const Instruction& at) {
  if (at.info.kind == Kind::kBranch) AddLeader(BranchTarget(at));
  if (at.opcode == kJmp || at.opcode == kJsr) AddLeader(at.operand);
  const bool goes_on = at.info.kind != Kind::kJumpIndirect &&
                       (at.info.kind != Kind::kJump || at.opcode == kJsr) &&
                       at.info.kind != Kind::kInterrupting;
  if (goes_on && (EndsBlock(at) || !IsTranslated(at))) AddLeader(at.next);
}

void Translator::FindLeaders(unsigned first) {
  AddLeader(first);
  for (size_t i = 0; i < found_.size(); ++i) {
    unsigned pc = found_[i];
    for (int count = 1;; ++count) {
      const Instruction at = Decode(pc);
      AddLeadersBehind(at);
      if (!IsTranslated(at) || EndsBlock(at)) break;
      pc = at.next;
      if (count == kMostInstructions) AddLeader(pc);
      if (IsLeader(pc)) break;
    }
  }
}

// --- Blocks ------------------------------------------------------------------

void Translator::MakeBlocks(unsigned pc, const Stubs& stubs,
                            const BlockAt& block_at) {
  stubs_ = &stubs;
  block_at_ = &block_at;
  FindLeaders(pc);
  std::ranges::sort(found_);
  for (size_t i = 0; i < found_.size(); ++i) {
    // Exits are behind all blocks, or as near as conditional jumps need them.
    const bool exits_follow =
        i + 1 == found_.size() ||
        (!exits_.empty() && out_.size() - exits_.front().jump > kReach);
    MakeBlock(found_[i], exits_follow ? 0 : found_[i + 1]);
    if (exits_follow) MakeExits();
  }
  LinkBlocks();
}

// A jump to a later block skips the check there if the check before it asks for
// the cycles of both.
void Translator::LinkBlocks() {
  std::vector<size_t> numbers(kRomBytes);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    numbers[blocks_[i].pc - kRomBase] = i;
  }
  for (size_t i = blocks_.size(); i-- > 0;) {
    Block& block = blocks_[i];
    for (; !links_.empty() && links_.back().from == i; links_.pop_back()) {
      const Link& link = links_.back();
      const size_t number = numbers[link.pc - kRomBase];
      const Block& target = blocks_[number];
      const int reach = link.cycles + target.reach;
      const bool skips = number > i && link.cycles >= 0 && reach <= kMostReach;
      if (skips) block.reach = std::max(block.reach, reach);
      out_.Link(link.jump,
                static_cast<int64_t>(skips ? target.body : target.offset));
    }
    if (block.body != block.offset) out_.SetLimit(block.check, -block.reach);
  }
}

void Translator::MakeExits() {
  for (const Exit& exit : exits_) {
    out_.Link(exit.jump, static_cast<int64_t>(out_.size()));
    flow_ = exit.flow;
    LeaveAt(exit.pc, exit.why);
  }
  exits_.clear();
}

void Translator::MakeBlock(unsigned pc, unsigned next_block) {
  blocks_.push_back({pc, out_.size(), out_.size()});
  flow_ = {};
  out_.ForgetFlags();
  if (!IsTranslated(Decode(pc))) return LeaveAt(pc, Leave::kInterpreted);
  const size_t check = out_.CompareWithLimit();
  exits_.push_back({out_.JumpIf(kGreaterOrEqual), pc, Leave::kLimit, Flow()});
  Block& block = blocks_.back();
  block.check = check;
  block.body = out_.size();
  most_cycles_ = 0;
  for (;;) {
    const Instruction at = Decode(pc);
    if (!IsTranslated(at)) {
      LeaveAt(pc, Leave::kInterpreted);
      break;
    }
    if (at.pc != blocks_.back().pc) inside_.push_back(at.pc);
    block.reach = most_cycles_;
    most_cycles_ += MostCycles(at);
    if (IsRepeated(at) && times_ < 7) {
      ++times_;
      pc = at.next;
      continue;
    }
    ends_ = false;
    Make(at);
    times_ = 1;
    pc = at.next;
    if (ends_) break;
    if (CallsBus(at) || IsLeader(pc)) {
      Settle(flow_, 0);
      if (pc != next_block) GoTo(pc, CallsBus(at) ? -1 : most_cycles_);
      break;
    }
  }
}

void Translator::Make(const Instruction& at) {
  constexpr Flag kCarryFlag = {"CmpCpxCpyAslLsrClcSec", "AdcSbcRolRor"};
  constexpr Flag kOverflowFlag = {"AdcSbcBitClv", ""};
  before_ = flow_;
  flow_.cycles += at.info.cycles * static_cast<int>(times_);
  out_.Keep(IsRead(kCarryFlag, at.next), IsRead(kOverflowFlag, at.next));
  if (at.info.kind != Kind::kBranch) out_.ForgetFlags();
#define MAKE_Read(operation) Read(at, &Translator::operation)
#define MAKE_Store(operation) Store(at, operation)
#define MAKE_Modify(operation) Modify(at, &Translator::operation)
#define MAKE_Accumulator(operation) (this->operation)(kRegA)
#define MAKE_Implied(operation) operation()
#define MAKE_Stack(operation) operation()
#define MAKE_Branch(operation) Branch(at)
#define MAKE_Jump(operation) Jump(at)
#define MAKE_JumpIndirect(operation) JumpIndirect(at)
#define MAKE_Interrupting(operation) (void)0
  switch (at.opcode) {
#define OPCODE(code, kind, operation, ...) \
  case code:                               \
    MAKE_##kind(operation);                \
    break;
#define UNOFFICIAL(...)
#include "nes/opcodes.inc"
  }
}

// --- Ways out ----------------------------------------------------------------

// Changes no flag of the host CPU.
void Translator::Settle(const Flow& flow, int more_cycles) {
  if (flow.nz != kNz) out_.Move(kNz, flow.nz);
  if (flow.carry != Carry::kInRegister) {
    out_.MoveImmediate(kCarry, flow.carry == Carry::kIs1);
  }
  const int cycles = flow.cycles + more_cycles;
  if (cycles != 0) out_.AddCycles(cycles);
}

void Translator::LinkTo(size_t jump, const uint8_t* target) {
  out_.Link(jump, target - at_);
}

void Translator::GoTo(unsigned pc, int cycles) {
  if (!IsRom(pc)) {
    out_.MoveImmediate(kResult, pc & 0xFFFF);
    LinkTo(out_.Jump(), stubs_->leave_miss);
  } else {
    LinkToBlock(out_.Jump(), pc, cycles);
  }
}

void Translator::LinkToBlock(size_t jump, unsigned pc, int cycles) {
  if (const uint8_t* const block = (*block_at_)(pc)) {
    LinkTo(jump, block);
  } else {
    links_.push_back({jump, pc, blocks_.size() - 1, cycles});
  }
}

// Jumps to the address in kResult, which is at most $10000.
void Translator::GoToResult() {
  out_.JumpToResult(stubs_->leave_miss - at_);
  ends_ = true;
}

void Translator::LeaveAt(unsigned pc, Leave why) {
  Settle(flow_, 0);
  out_.MoveImmediate(kResult, pc);
  LinkTo(out_.Jump(), why == Leave::kLimit ? stubs_->leave_limit
                                           : stubs_->leave_interpreted);
}

void Translator::LeaveIf(Condition condition, const Instruction& at) {
  exits_.push_back(
      {out_.JumpIf(condition), at.pc, Leave::kInterpreted, before_});
}

}  // namespace nes
