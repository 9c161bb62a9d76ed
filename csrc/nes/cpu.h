// The 6502 of the 2A03 (no decimal mode) as a template over its bus: the
// console's bus and a flat 64 KiB memory run the same code. The CPU depends
// only on addresses and cycles. Sources: NESdev "CPU", "6502 cycle times", "CPU
// interrupts", "CPU unofficial opcodes".
//
// A Bus has
//
//   const InstructionTiming& timing() const;
//   uint8_t* ram();
//       zero page and stack, 512 bytes or more
//   uint32_t Fetch(unsigned pc, uint64_t cycle);
//       opcode, then operand bytes
//   uint8_t Read(unsigned address, uint64_t cycle);
//   unsigned Write(unsigned address, uint8_t value, uint64_t cycle);
//       returns cycles the CPU is halted for
//   void DummyRead(unsigned address, uint64_t cycle);
//   uint64_t limit() const;
//       cycle of the next event
//   void InterruptFlagChanged(uint64_t earliest, unsigned flag);
//       I is now `flag` (0 or 4); an IRQ may be taken from `earliest` on
//   unsigned BreakVector(uint64_t cycle);
//       $FFFE, or $FFFA when an NMI took over
//   uint64_t SkippablePollCycles(unsigned loop_pc, uint64_t cycle);
//       whole rounds of a status poll that can be left out
//   bool idle_skip() const;
//
// and, for the fast loop, const uint8_t* rom() (the memory at $8000, or nullptr
// to never use that loop) and const uint8_t* dispatch() (FindDispatch of that
// memory). `cycle` is the exact CPU cycle of the access. It suffices to keep
// the PPU and APU exact, although they run only when their state is needed.
//
// Nearly all instructions access only RAM and ROM. The fast loop runs these and
// contains no calls, so registers stay in machine registers. It stops before
// any other instruction, which the full loop then executes. Both loops are the
// same template, so each instruction has one description.
#pragma once

#include <cstdint>

#include "nes/opcodes.h"
#include "nes/state.h"
#include "nes/status_poll.h"

namespace nes {

/// How long instructions take, and in which of their cycles they access memory.
struct InstructionTiming {
  /// Whether Read, Store and Modify instructions make all their accesses in
  /// their first cycle, none of them twice.
  bool accesses_first;
  /// Extra cycles of a taken branch to another page.
  unsigned branch_page_cycles;
  /// Extra cycles of INC, DEC and shifts at an indexed address on another page.
  unsigned modify_page_cycles;
};
constexpr InstructionTiming kChipTiming = {false, 1, 0};
constexpr InstructionTiming kNesPyTiming = {true, 2, 1};  // Timing::kNesPy

/// The opcode to dispatch on for instructions that only the full loop runs.
constexpr uint8_t kNotPlain = 0x02;

/// For every address of 32 KiB of ROM at $8000, what the fast loop dispatches
/// on if an instruction begins there: its opcode, the number of a pair
/// (fused.inc), or kNotPlain. NROM code never changes, so this is done once.
void FindDispatch(const uint8_t* prg, uint8_t* dispatch);

// Other functions that change the registers of a CPU; code outside cpu.*
// changes none.

/// Sets the registers as after power-on; the program begins at `start`.
void PowerOnCpu(CpuState* cpu, uint16_t start);
/// The reset button: 7 cycles, in which nothing is pushed.
void ResetCpu(CpuState* cpu, uint16_t start);
/// Runs an NMI or IRQ up to its vector: pushes to the stack in `ram` and sets
/// I, 7 cycles. Returns false and does nothing if the CPU is jammed.
/// FinishInterrupt must follow.
bool BeginInterrupt(CpuState* cpu, uint8_t* ram);
/// `handler` is the address at the vector.
void FinishInterrupt(CpuState* cpu, uint16_t handler);
/// Halts the CPU between two instructions.
inline void StallCpu(CpuState* cpu, unsigned cycles) { cpu->cycle += cycles; }

/// Whether I is set.
inline bool DisablesIrq(const CpuState& cpu) { return cpu.p & 0x04; }
/// Whether the poll at the end of the last instruction saw I set: CLI, SEI and
/// PLP are polled with the flag before them (NESdev "CPU interrupts").
inline bool MasksIrq(const CpuState& cpu) {
  return cpu.cycle == cpu.i_change ? cpu.i_before != 0 : DisablesIrq(cpu);
}

/// Registers and flags while instructions run; lives in a function's frame so
/// that the compiler keeps it in machine registers. With kFast every function
/// that executes code returns whether it did; after false nothing has changed.
template <class Bus, bool kFast>
class Interpreter {
 public:
  Interpreter(const CpuState& state, Bus& bus)
      : bus_(bus),
        ram_(bus.ram()),
        rom_(bus.rom()),
        dispatch_(bus.dispatch()),
        cycle_(state.cycle),
        i_change_(state.i_change),
        pc_(state.pc),
        a_(state.a),
        x_(state.x),
        y_(state.y),
        sp_(state.sp),
        i_before_(state.i_before),
        jammed_(state.jammed) {
    SetStatus(state.p);
  }

  void Store(CpuState* state) const {
    state->cycle = cycle_;
    state->i_change = i_change_;
    state->pc = static_cast<uint16_t>(pc_);
    state->a = static_cast<uint8_t>(a_);
    state->x = static_cast<uint8_t>(x_);
    state->y = static_cast<uint8_t>(y_);
    state->sp = static_cast<uint8_t>(sp_);
    state->p = static_cast<uint8_t>(Status() | 0x20);
    state->i_before = static_cast<uint8_t>(i_before_);
    state->jammed = static_cast<uint8_t>(jammed_);
  }

  /// Executes one instruction.
  NES_INLINE void RunOne() {
    const uint32_t code = bus_.Fetch(pc_, cycle_);
    operand_ = code >> 8;
    switch (static_cast<uint8_t>(code)) {
#define OPCODE(code, kind, operation, mode, cycles, penalty) \
  case code:                                                 \
    kind<Mode::k##mode, cycles, &Interpreter::operation>();  \
    break;
#include "nes/opcodes.inc"
    }
  }

  /// Fetches the next instruction's operand from ROM; false if the limit is
  /// reached or the program counter is outside ROM.
  NES_INLINE bool FetchPlain(uint64_t limit) {
    if (cycle_ >= limit || pc_ - 0x8000 >= 0x8000) return false;
    operand_ = LoadCode(rom_ + (pc_ - 0x8000)) >> 8;
    return true;
  }
  NES_INLINE unsigned Dispatch() const { return dispatch_[pc_ - 0x8000]; }

  /// Executes one instruction whose opcode is known.
  template <uint8_t kOpcode>
  NES_INLINE bool Execute() {
#define OPCODE(code, kind, operation, mode, cycles, penalty) \
  if constexpr (kOpcode == code)                             \
    return kind<Mode::k##mode, cycles, &Interpreter::operation>();
#include "nes/opcodes.inc"
  }

  // opcodes.inc names the functions below.

  // --- Flags. N and Z are kept as the last result: Z when the low byte is 0,
  // N when bit 7 or bit 8 is set (bit 8 lets PLP and BIT set both).
  NES_INLINE unsigned Status() const {
    return (nz_ & 0x180 ? 0x80u : 0u) | (overflow_ ? 0x40u : 0u) | d_i_ |
           (nz_ & 0xFF ? 0u : 0x02u) | carry_;
  }
  NES_INLINE void SetStatus(unsigned p) {
    nz_ = (p & 0x80) << 1 | (~p & 0x02);
    overflow_ = p & 0x40;
    d_i_ = p & 0x0C;
    carry_ = p & 0x01;
  }
  NES_INLINE unsigned Nz(unsigned value) { return nz_ = value & 0xFF; }

  // --- Stack.
  NES_INLINE void Push(unsigned value) {
    ram_[0x100 + sp_] = static_cast<uint8_t>(value);
    sp_ = (sp_ - 1) & 0xFF;
  }
  NES_INLINE unsigned Pull() {
    sp_ = (sp_ + 1) & 0xFF;
    return ram_[0x100 + sp_];
  }

  // --- Addressing. Each mode yields the effective address; indexed ones also
  // the address before the carry reached the high byte, which the CPU reads
  // first if the page changes (and always before a write).
  struct Effective {
    unsigned address;
    unsigned unfixed;
  };

  NES_INLINE unsigned Byte() const { return operand_ & 0xFF; }
  NES_INLINE unsigned Word() const { return operand_ & 0xFFFF; }
  NES_INLINE unsigned ZeroPageWord(unsigned at) const {
    return ram_[at & 0xFF] | ram_[(at + 1) & 0xFF] << 8;
  }
  NES_INLINE static Effective Indexed(unsigned base, unsigned index) {
    const unsigned address = (base + index) & 0xFFFF;
    return {address, (base & 0xFF00) | (address & 0xFF)};
  }

  template <Mode M>
  NES_INLINE Effective Address() const {
    if constexpr (M == Mode::kZp) return {Byte(), Byte()};
    if constexpr (M == Mode::kZpX) {
      const unsigned at = (Byte() + x_) & 0xFF;
      return {at, at};
    }
    if constexpr (M == Mode::kZpY) {
      const unsigned at = (Byte() + y_) & 0xFF;
      return {at, at};
    }
    if constexpr (M == Mode::kAbs) return {Word(), Word()};
    if constexpr (M == Mode::kAbsX) return Indexed(Word(), x_);
    if constexpr (M == Mode::kAbsY) return Indexed(Word(), y_);
    if constexpr (M == Mode::kIndX) {
      const unsigned at = ZeroPageWord(Byte() + x_);
      return {at, at};
    }
    if constexpr (M == Mode::kIndY) return Indexed(ZeroPageWord(Byte()), y_);
  }

  template <Mode M>
  static constexpr bool kIsIndexed =
      M == Mode::kAbsX || M == Mode::kAbsY || M == Mode::kIndY;
  template <Mode M>
  static constexpr bool kIsZeroPage =
      M == Mode::kZp || M == Mode::kZpX || M == Mode::kZpY;

  template <Mode M>
  NES_INLINE void IncrementPc() {
    pc_ += InstructionBytes(M);
  }

  // --- Memory. In the fast loop only RAM and ROM are "plain".
  NES_INLINE static bool IsPlain(unsigned address) {
    return !kFast || address - 0x2000 >= 0x6000;
  }
  NES_INLINE static bool IsPlainForWrite(unsigned address) {
    return !kFast || address < 0x2000;
  }
  NES_INLINE unsigned ReadMemory(unsigned address, uint64_t cycle) {
    if constexpr (kFast) {
      return address < 0x2000 ? ram_[address & kRamMask]
                              : rom_[address - 0x8000];
    } else {
      return bus_.Read(address, cycle);
    }
  }
  NES_INLINE void WriteMemory(unsigned address, unsigned value,
                              uint64_t cycle) {
    if constexpr (kFast) {
      ram_[address & kRamMask] = static_cast<uint8_t>(value);
    } else {
      cycle_ += bus_.Write(address, static_cast<uint8_t>(value), cycle);
    }
  }
  NES_INLINE void DummyRead(unsigned address, uint64_t cycle) {
    if constexpr (!kFast) {
      if (!bus_.timing().accesses_first) bus_.DummyRead(address, cycle);
    }
  }
  /// The cycle in which an access in `cycle` happens, for an instruction that
  /// begins at `first`.
  NES_INLINE uint64_t AccessCycle(uint64_t first, uint64_t cycle) const {
    return bus_.timing().accesses_first ? first : cycle;
  }

  // --- Kinds of instruction: how memory is used.
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Read() {
    unsigned value;
    uint64_t end = cycle_ + kCycles;
    if constexpr (M == Mode::kImm) {
      value = Byte();
    } else if constexpr (kIsZeroPage<M>) {
      value = ram_[Address<M>().address];
    } else {
      const Effective e = Address<M>();
      if (!IsPlain(e.address)) return false;
      if constexpr (kIsIndexed<M>) {
        if (e.address != e.unfixed) {
          if (!IsPlain(e.unfixed)) return false;
          ++end;
          DummyRead(e.unfixed, end - 2);
        }
      }
      value = ReadMemory(e.address, AccessCycle(cycle_, end - 1));
    }
    IncrementPc<M>();
    cycle_ = end;
    (this->*kOperation)(value);
    return true;
  }

  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Store() {
    const Effective e = Address<M>();
    if (!IsPlainForWrite(e.address)) return false;
    if constexpr (kIsIndexed<M>) {
      if (!IsPlain(e.unfixed)) return false;
    }
    IncrementPc<M>();
    cycle_ += kCycles;
    const unsigned value = (this->*kOperation)();
    if constexpr (kIsZeroPage<M>) {
      ram_[e.address] = static_cast<uint8_t>(value);
    } else {
      if constexpr (kIsIndexed<M>) DummyRead(e.unfixed, cycle_ - 2);
      WriteMemory(e.address, value, AccessCycle(cycle_ - kCycles, cycle_ - 1));
    }
    return true;
  }

  // Read, write the old value back, write the new one.
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Modify() {
    const Effective e = Address<M>();
    if (!IsPlainForWrite(e.address)) return false;
    if constexpr (kIsIndexed<M>) {
      if (!IsPlain(e.unfixed)) return false;
    }
    IncrementPc<M>();
    cycle_ += kCycles;
    if constexpr (kIsZeroPage<M>) {
      ram_[e.address] =
          static_cast<uint8_t>((this->*kOperation)(ram_[e.address]));
    } else {
      const uint64_t first = cycle_ - kCycles;
      if constexpr (kIsIndexed<M>) DummyRead(e.unfixed, cycle_ - 4);
      const unsigned old =
          ReadMemory(e.address, AccessCycle(first, cycle_ - 3));
      const unsigned value = (this->*kOperation)(old);
      if constexpr (!kFast) {
        if (!bus_.timing().accesses_first)
          WriteMemory(e.address, old, cycle_ - 2);
      }
      WriteMemory(e.address, value, AccessCycle(first, cycle_ - 1));
      if constexpr (kIsIndexed<M>) {
        if (e.address != e.unfixed) cycle_ += bus_.timing().modify_page_cycles;
      }
    }
    return true;
  }

  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Accumulator() {
    IncrementPc<M>();
    cycle_ += kCycles;
    a_ = (this->*kOperation)(a_);
    return true;
  }

  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Implied() {
    IncrementPc<M>();
    cycle_ += kCycles;
    (this->*kOperation)();
    return true;
  }

  // Stack operations and jumps; those that concern interrupts are left to the
  // full loop.
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Stack() {
    return Implied<M, kCycles, kOperation>();
  }
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Jump() {
    return Implied<M, kCycles, kOperation>();
  }
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Interrupting() {
    if constexpr (kFast) return false;
    return Implied<M, kCycles, kOperation>();
  }

  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool Branch() {
    const unsigned next = pc_ + 2;
    if (!(this->*kOperation)()) {
      pc_ = next;
      cycle_ += kCycles;
      return true;
    }
    const unsigned target =
        next + static_cast<unsigned>(static_cast<int8_t>(Byte()));
    const bool may_be_poll = Byte() == status_poll::kBranchBack;
    if constexpr (kFast) {
      if (may_be_poll && target - 0x8000 < 0x8000 &&
          status_poll::ReadsStatus(rom_ + (target - 0x8000))) {
        return false;
      }
    }
    const bool other_page = ((target ^ next) & 0xFF00) != 0;
    cycle_ += kCycles + 1;
    if (other_page) [[unlikely]]
      cycle_ += bus_.timing().branch_page_cycles;
    pc_ = target;
    if constexpr (!kFast) {
      if (may_be_poll && bus_.idle_skip()) {
        cycle_ += bus_.SkippablePollCycles(target, cycle_);
      }
    } else if (Byte() == 0xF7 && bus_.idle_skip()) {
      RunFillLoop();
    }
    return true;
  }

  // `STA base,Y; INY; INY; INY; INY; BNE` back to the STA, the usual way to
  // move all sprites off the screen: runs whole rounds that end in a taken
  // branch and before the next event, exactly as the instructions would.
  NES_INLINE void RunFillLoop() {
    if (pc_ - 0x8000 >= 0x8000 - 9) return;
    const uint8_t* code = rom_ + (pc_ - 0x8000);
    const unsigned base = code[1] | code[2] << 8;
    if (code[0] != 0x99 || LoadCode(code + 3) != 0xC8C8C8C8 ||
        code[7] != 0xD0 || base > 0x1F00) {
      return;
    }
    const uint64_t limit = bus_.limit();
    const bool other_page = ((pc_ + 9) ^ pc_) >> 8 != 0;
    const unsigned round = 16 + bus_.timing().branch_page_cycles * other_page;
    unsigned last = y_;
    while (((last + 4) & 0xFF) > 3 && cycle_ + round <= limit) {
      ram_[(base + last) & kRamMask] = static_cast<uint8_t>(a_);
      last = (last + 4) & 0xFF;
      cycle_ += round;
    }
    if (last != y_) y_ = Nz(last);
  }

  // SHA, SHX, SHY, TAS: the value is ANDed with the high byte of the address
  // plus one, and when the page changes it also becomes that high byte.
  template <Mode M, int kCycles, auto kOperation>
  NES_INLINE bool StoreHigh() {
    if constexpr (kFast) return false;
    const Effective e = Address<M>();
    IncrementPc<M>();
    cycle_ += kCycles;
    DummyRead(e.unfixed, cycle_ - 2);
    const unsigned value = (this->*kOperation)() & ((e.unfixed >> 8) + 1);
    const unsigned address = e.address == e.unfixed
                                 ? e.address
                                 : (value & 0xFF) << 8 | (e.address & 0xFF);
    WriteMemory(address, value, cycle_ - 1);
    return true;
  }

  // --- Operations that read.
  NES_INLINE void Lda(unsigned m) { a_ = Nz(m); }
  NES_INLINE void Ldx(unsigned m) { x_ = Nz(m); }
  NES_INLINE void Ldy(unsigned m) { y_ = Nz(m); }
  NES_INLINE void Lax(unsigned m) { a_ = x_ = Nz(m); }
  NES_INLINE void Ora(unsigned m) { a_ = Nz(a_ | m); }
  NES_INLINE void And(unsigned m) { a_ = Nz(a_ & m); }
  NES_INLINE void Eor(unsigned m) { a_ = Nz(a_ ^ m); }
  NES_INLINE void Adc(unsigned m) {
    const unsigned sum = a_ + m + carry_;
    overflow_ = (~(a_ ^ m) & (a_ ^ sum)) & 0x80;
    carry_ = sum >> 8;
    a_ = Nz(sum);
  }
  NES_INLINE void Sbc(unsigned m) { Adc(m ^ 0xFF); }
  NES_INLINE void Compare(unsigned reg, unsigned m) {
    carry_ = reg >= m;
    Nz(reg - m);
  }
  NES_INLINE void Cmp(unsigned m) { Compare(a_, m); }
  NES_INLINE void Cpx(unsigned m) { Compare(x_, m); }
  NES_INLINE void Cpy(unsigned m) { Compare(y_, m); }
  NES_INLINE void Bit(unsigned m) {
    nz_ = (a_ & m) | (m & 0x80) << 1;
    overflow_ = m & 0x40;
  }
  NES_INLINE void Skip(unsigned) {}
  NES_INLINE void Anc(unsigned m) {
    And(m);
    carry_ = a_ >> 7;
  }
  NES_INLINE void Alr(unsigned m) { a_ = Lsr(a_ & m); }
  NES_INLINE void Arr(unsigned m) {
    a_ = Nz((a_ & m) >> 1 | carry_ << 7);
    carry_ = a_ >> 6 & 1;
    overflow_ = (a_ >> 6 ^ a_ >> 5) & 1;
  }
  NES_INLINE void Axs(unsigned m) {
    const unsigned both = a_ & x_;
    carry_ = both >= m;
    x_ = Nz(both - m);
  }
  // ANE and LXA mix in a value that differs between chips; $FF is the one that
  // blargg's instruction tests were written with.
  NES_INLINE void Ane(unsigned m) { a_ = Nz(x_ & m); }
  NES_INLINE void Lxa(unsigned m) { a_ = x_ = Nz(m); }
  NES_INLINE void Las(unsigned m) { a_ = x_ = sp_ = Nz(m & sp_); }

  // --- Operations that store: the value to be written.
  NES_INLINE unsigned Sta() { return a_; }
  NES_INLINE unsigned Stx() { return x_; }
  NES_INLINE unsigned Sty() { return y_; }
  NES_INLINE unsigned Sax() { return a_ & x_; }
  NES_INLINE unsigned Shy() { return y_; }
  NES_INLINE unsigned Shx() { return x_; }
  NES_INLINE unsigned Sha() { return a_ & x_; }
  NES_INLINE unsigned Tas() { return sp_ = a_ & x_; }

  // --- Operations that modify: old value to new.
  NES_INLINE unsigned Asl(unsigned m) {
    carry_ = m >> 7;
    return Nz(m << 1);
  }
  NES_INLINE unsigned Lsr(unsigned m) {
    carry_ = m & 1;
    return Nz(m >> 1);
  }
  NES_INLINE unsigned Rol(unsigned m) {
    const unsigned result = m << 1 | carry_;
    carry_ = m >> 7;
    return Nz(result);
  }
  NES_INLINE unsigned Ror(unsigned m) {
    const unsigned result = m >> 1 | carry_ << 7;
    carry_ = m & 1;
    return Nz(result);
  }
  NES_INLINE unsigned Inc(unsigned m) { return Nz(m + 1); }
  NES_INLINE unsigned Dec(unsigned m) { return Nz(m - 1); }
  NES_INLINE unsigned Slo(unsigned m) {
    const unsigned result = Asl(m);
    Ora(result);
    return result;
  }
  NES_INLINE unsigned Rla(unsigned m) {
    const unsigned result = Rol(m);
    And(result);
    return result;
  }
  NES_INLINE unsigned Sre(unsigned m) {
    const unsigned result = Lsr(m);
    Eor(result);
    return result;
  }
  NES_INLINE unsigned Rra(unsigned m) {
    const unsigned result = Ror(m);
    Adc(result);
    return result;
  }
  NES_INLINE unsigned Dcp(unsigned m) {
    const unsigned result = (m - 1) & 0xFF;
    Cmp(result);
    return result;
  }
  NES_INLINE unsigned Isc(unsigned m) {
    const unsigned result = (m + 1) & 0xFF;
    Sbc(result);
    return result;
  }

  // --- Registers and flags.
  NES_INLINE void Nop() {}
  NES_INLINE void Tax() { x_ = Nz(a_); }
  NES_INLINE void Tay() { y_ = Nz(a_); }
  NES_INLINE void Tsx() { x_ = Nz(sp_); }
  NES_INLINE void Txa() { a_ = Nz(x_); }
  NES_INLINE void Txs() { sp_ = x_; }
  NES_INLINE void Tya() { a_ = Nz(y_); }
  NES_INLINE void Inx() { x_ = Nz(x_ + 1); }
  NES_INLINE void Iny() { y_ = Nz(y_ + 1); }
  NES_INLINE void Dex() { x_ = Nz(x_ - 1); }
  NES_INLINE void Dey() { y_ = Nz(y_ - 1); }
  NES_INLINE void Clc() { carry_ = 0; }
  NES_INLINE void Sec() { carry_ = 1; }
  NES_INLINE void Clv() { overflow_ = 0; }
  NES_INLINE void Cld() { d_i_ &= 0x04; }
  NES_INLINE void Sed() { d_i_ |= 0x08; }
  // CLI, SEI and PLP are polled with the old I flag (NESdev "CPU interrupts").
  NES_INLINE void ChangeInterruptFlag(unsigned flag) {
    i_before_ = d_i_ & 0x04;
    i_change_ = cycle_;
    d_i_ = (d_i_ & 0x08) | flag;
    bus_.InterruptFlagChanged(cycle_ + 1, flag);
  }
  NES_INLINE void Cli() { ChangeInterruptFlag(0); }
  NES_INLINE void Sei() { ChangeInterruptFlag(4); }

  // --- Branch conditions.
  NES_INLINE bool Bpl() { return !(nz_ & 0x180); }
  NES_INLINE bool Bmi() { return nz_ & 0x180; }
  NES_INLINE bool Bvc() { return !overflow_; }
  NES_INLINE bool Bvs() { return overflow_; }
  NES_INLINE bool Bcc() { return !carry_; }
  NES_INLINE bool Bcs() { return carry_; }
  NES_INLINE bool Bne() { return nz_ & 0xFF; }
  NES_INLINE bool Beq() { return !(nz_ & 0xFF); }

  // --- Jumps and stack.
  NES_INLINE void Jmp() {
    const unsigned target = Word();
    // Only an interrupt can leave `JMP self`: go to the next event.
    if (target + 3 == pc_ && bus_.idle_skip()) {
      const uint64_t limit = bus_.limit();
      if (limit > cycle_) cycle_ += (limit - cycle_ + 2) / 3 * 3;
    }
    pc_ = target;
  }
  template <Mode M, int kCycles, auto>
  NES_INLINE bool JumpIndirect() {
    const unsigned at = Word();
    if (!IsPlain(at)) return false;
    cycle_ += kCycles;
    const unsigned low = ReadMemory(at, cycle_ - 2);
    pc_ = low | ReadMemory((at & 0xFF00) | ((at + 1) & 0xFF), cycle_ - 1) << 8;
    return true;
  }
  NES_INLINE void Jsr() {
    // The high byte is fetched after the pushes, which matters to code that
    // executes on the stack page.
    const unsigned back = (pc_ - 1) & 0xFFFF;
    Push(back >> 8);
    Push(back);
    pc_ = kFast ? Word() : Byte() | bus_.Read(back, cycle_ - 1) << 8u;
  }
  NES_INLINE void Rts() {
    const unsigned low = Pull();
    pc_ = (low | Pull() << 8) + 1;
  }
  NES_INLINE void Rti() {
    SetStatus(Pull());
    const unsigned low = Pull();
    pc_ = low | Pull() << 8;
    bus_.InterruptFlagChanged(cycle_, d_i_ & 0x04);
  }
  NES_INLINE void Pha() { Push(a_); }
  NES_INLINE void Php() { Push(Status() | 0x30); }
  NES_INLINE void Pla() { a_ = Nz(Pull()); }
  NES_INLINE void Plp() {
    i_before_ = d_i_ & 0x04;
    i_change_ = cycle_;
    SetStatus(Pull());
    bus_.InterruptFlagChanged(cycle_ + 1, d_i_ & 0x04);
  }
  NES_INLINE void Brk() {
    Push(pc_ >> 8);
    Push(pc_);
    Push(Status() | 0x30);
    d_i_ |= 0x04;
    const unsigned vector = bus_.BreakVector(cycle_);
    pc_ = bus_.Read(vector, cycle_ - 2) | bus_.Read(vector + 1, cycle_ - 1)
                                              << 8;
  }
  // The chip locks up: the program counter stays, and time continues.
  NES_INLINE void Jam() {
    pc_ -= 1;
    jammed_ = 1;
    if (bus_.limit() > cycle_) cycle_ = bus_.limit();
  }

 private:
  Bus& bus_;
  uint8_t* const ram_;
  const uint8_t* const rom_;
  const uint8_t* const dispatch_;
  uint64_t cycle_;
  uint64_t i_change_;
  unsigned operand_ = 0;
  unsigned pc_;  // may lie beyond $FFFF until the next fetch, where it wraps
  unsigned a_, x_, y_, sp_;
  unsigned nz_ = 0;
  unsigned carry_ = 0;
  unsigned overflow_ = 0;
  unsigned d_i_ = 0;  // D and I at their places in the status byte
  unsigned i_before_;
  unsigned jammed_;
};

/// Executes one instruction of any kind.
template <class Bus>
__attribute__((noinline)) void RunOneInstruction(CpuState* state, Bus& bus) {
  Interpreter<Bus, false> full(*state, bus);
  full.RunOne();
  full.Store(state);
}

/// Executes plain instructions until the clock reaches the bus's limit or an
/// instruction needs the full loop. Every instruction ends in a separate jump
/// to the next one (labels as values, a GNU extension), which helps the
/// prediction of indirect branches.
template <class Bus>
__attribute__((noinline)) void RunPlain(CpuState* state, Bus& bus) {
  static const void* const kLabels[256] = {
#define OPCODE(code, ...) &&op_##code,
#include "nes/opcodes.inc"
  };
  Interpreter<Bus, true> cpu(*state, bus);
  const uint64_t limit = bus.limit();
#define NES_NEXT()                         \
  if (!cpu.FetchPlain(limit)) goto finish; \
  goto* kLabels[cpu.Dispatch()];
  NES_NEXT();
#define OPCODE(code, ...)                                     \
  op_##code : if (!cpu.template Execute<code>()) goto finish; \
  NES_NEXT();
#define UNOFFICIAL(...)
#include "nes/opcodes.inc"
#define FUSED(number, first, second)                             \
  op_##number : if (!cpu.template Execute<first>()) goto finish; \
  if (!cpu.FetchPlain(limit)) goto finish;                       \
  if (!cpu.template Execute<second>()) goto finish;              \
  NES_NEXT();
#include "nes/fused.inc"
op_0x02:
#undef NES_NEXT
finish:
  cpu.Store(state);
}

/// Runs `state` on `bus` until the clock reaches bus.limit().
template <class Bus>
void RunCpu(CpuState* state, Bus& bus) {
  while (state->cycle < bus.limit()) {
    if (bus.rom() != nullptr) {
      RunPlain(state, bus);
      if (state->cycle >= bus.limit()) return;
    }
    RunOneInstruction(state, bus);
  }
}

}  // namespace nes
