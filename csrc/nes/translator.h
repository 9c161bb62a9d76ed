// Makes machine code from a ROM's program, several blocks at a time, for any
// host (macro_assembler.h); translation.h explains its purpose and what a block
// is.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "nes/macro_assembler.h"
#include "nes/opcodes.h"
#include "nes/translation.h"

namespace nes {

constexpr unsigned kRegisters = 0x2000, kRegistersEnd = 0x4020;

inline bool IsRam(unsigned address) { return address < kRegisters; }
inline bool IsRom(unsigned address) { return address - kRomBase < kRomBytes; }
inline bool IsRegister(unsigned address) {
  return address - kRegisters < kRegistersEnd - kRegisters;
}

class Translator {
 public:
  struct Block {
    unsigned pc;
    size_t offset;  // in code()
    // Of the code behind the check for the next event, if there is one; the
    // place of that check's number; and the cycles that it asks for.
    size_t body, check = 0;
    int reach = 0;
  };

  /// Returns the existing block at an address of ROM, or nullptr.
  using BlockAt = std::function<const uint8_t*(unsigned pc)>;

  /// `at` is the final address of the code.
  Translator(const TranslationSource& source, const uint8_t* at)
      : source_(source), at_(at) {}

  /// Makes the code that all blocks need; to be called first.
  Stubs MakeStubs();
  /// Makes the block at `pc`, and all blocks that it may jump to, as far as
  /// they are known.
  void MakeBlocks(unsigned pc, const Stubs& stubs, const BlockAt& block_at);

  const std::vector<uint8_t>& code() const { return out_.code(); }
  const std::vector<Block>& blocks() const { return blocks_; }
  /// Addresses of all instructions of the blocks except the first ones.
  const std::vector<unsigned>& inside() const { return inside_; }

 private:
  using Reg = host::Reg;
  using Mem = host::Mem;
  using Operand = MacroAssembler::Operand;
  using Carry = MacroAssembler::Carry;

  enum : uint8_t { kPhp = 0x08, kJsr = 0x20, kJmp = 0x4C, kRts = 0x60 };
  struct Instruction {
    unsigned pc, next, operand;
    uint8_t opcode;
    OpcodeInfo info;
  };
  /// What instructions do with a flag: names of opcodes.inc, joined.
  struct Flag {
    std::string_view set_by, read_by;
  };
  // What is known at a point of a block.
  struct Flow {
    int cycles = 0;      // since the block's beginning, not yet in a register
    Reg nz = host::kNz;  // holds the last result
    Carry carry = Carry::kInRegister;
  };
  struct Exit {
    size_t jump;
    unsigned pc;
    Leave why;
    Flow flow;
  };
  /// A jump to another of the blocks that are made together.
  struct Link {
    size_t jump;
    unsigned pc;
    size_t from;  // the number of the block
    int cycles;  // since its beginning, at most; negative: the event may change
  };
  using ReadOperation = void (Translator::*)(const Operand&);
  using ModifyOperation = void (Translator::*)(Reg);

  // Analysis of the program.
  Instruction Decode(unsigned pc) const;
  bool IsTranslated(const Instruction& at) const;
  bool IsAddressTranslated(const Instruction& at) const;
  static unsigned BranchTarget(const Instruction& at);
  static bool CallsBus(const Instruction& at);
  static bool EndsBlock(const Instruction& at);
  bool IsRepeated(const Instruction& at) const;
  static bool MayLeave(const Instruction& at);
  bool IsRead(Flag flag, unsigned pc) const;
  bool BeginsStatusPoll(const Instruction& at) const;
  int MostCycles(const Instruction& at) const;
  void FindLeaders(unsigned pc);
  void AddLeader(unsigned pc);
  void AddLeadersBehind(const Instruction& at);
  bool IsLeader(unsigned pc) const;

  // Blocks and instructions.
  void MakeBlock(unsigned pc, unsigned next_block);
  void Make(const Instruction& at);
  void Read(const Instruction& at, ReadOperation operation);
  void Store(const Instruction& at, Reg value);
  void Modify(const Instruction& at, ModifyOperation operation);
  void Branch(const Instruction& at);
  void Jump(const Instruction& at);
  void JumpIndirect(const Instruction& at);

  // Operands.
  Operand ReadOperand(const Instruction& at);
  void CallRead(const Instruction& at);
  Mem RamOperand(const Instruction& at);
  Mem PointerOperand(const Instruction& at);
  void LoadPointer(const Instruction& at);
  void AddPageCycle(const Instruction& at);
  int Age(const Instruction& at) const;
  static Reg IndexOf(const Instruction& at);

  // Operations, named by opcodes.inc, and what they have in common.
  void LoadNz(Reg to, const Operand& operand);
  void SetCarryAndNz(Reg result);
  void Compare(Reg reg, const Operand& operand);
  void Transfer(Reg to, Reg from);
  void Lda(const Operand& m);
  void Ldx(const Operand& m);
  void Ldy(const Operand& m);
  void Ora(const Operand& m);
  void And(const Operand& m);
  void Eor(const Operand& m);
  void Adc(const Operand& m);
  void Sbc(const Operand& m);
  void Cmp(const Operand& m);
  void Cpx(const Operand& m);
  void Cpy(const Operand& m);
  void Bit(const Operand& m);
  static constexpr Reg Sta = host::kRegA, Stx = host::kRegX, Sty = host::kRegY;
  void Asl(Reg m);
  void Lsr(Reg m);
  void Rol(Reg m);
  void Ror(Reg m);
  void Inc(Reg m);
  void Dec(Reg m);
  void Nop();
  void Tax();
  void Tay();
  void Tsx();
  void Txa();
  void Txs();
  void Tya();
  void Inx();
  void Iny();
  void Dex();
  void Dey();
  void Clc();
  void Sec();
  void Clv();
  void Cld();
  void Sed();
  void Pha();
  void Php() {}  // never made
  void Pla();

  // Ways out of a block.
  void Settle(const Flow& flow, int more_cycles);
  void GoTo(unsigned pc, int cycles);
  void LinkBlocks();
  void GoToResult();
  void LeaveIf(host::Condition condition, const Instruction& at);
  void LeaveAt(unsigned pc, Leave why);
  void MakeExits();
  void LinkTo(size_t jump, const uint8_t* target);
  void LinkToBlock(size_t jump, unsigned pc, int cycles);

  const TranslationSource source_;
  const uint8_t* const at_;
  MacroAssembler out_;
  Flow flow_;
  Flow before_;  // at the beginning of the instruction in hand
  std::bitset<kRomBytes> leaders_;
  std::vector<unsigned> found_;  // leaders, in the order of discovery
  std::vector<Block> blocks_;
  std::vector<unsigned> inside_;
  std::vector<Exit> exits_;
  std::vector<Link> links_;
  bool ends_ = false;    // the block, with the instruction in hand
  int most_cycles_ = 0;  // from its beginning to the end of that instruction
  unsigned times_ = 1;   // that the instruction in hand is executed
  const Stubs* stubs_ = nullptr;
  const BlockAt* block_at_ = nullptr;
};

}  // namespace nes
