// Bytes of the AArch64 instructions that translated programs are made of
// (macro_assembler.h): general registers, three addressing forms, jumps.
// Source: Arm Architecture Reference Manual for A-profile, DDI 0487.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nes::arm {

enum Reg : uint8_t {
  kR0,
  kR1,
  kR2,
  kR3,
  kR9 = 9,
  kR13 = 13,
  kR14,
  kR15,
  kR16,
  kR17,
  kR19 = 19,
  kR20,
  kR21,
  kR22,
  kR23,
  kR24,
  kR25,
  kR26,
  kR27,
  kR28,
  kFrame,  // x29
  kLink,   // x30
  kZero,
  kStackPointer = kZero,  // in instructions that address the stack
  kNoIndex = kZero,
};

/// base + index + offset; without an index, 0 <= offset < 4,096.
struct Mem {
  Reg base;
  Reg index = kNoIndex;
  int32_t offset = 0;
};

/// A conditional jump to itself: of the flags, or of a register.
struct Condition {
  uint32_t jump;
};
/// Conditions of the flags.
enum Flags : uint32_t { kEq, kNe, kHs, kLo, kGe = 10 };
constexpr Condition If(Flags flags) { return {0x54000000u | flags}; }
constexpr Condition kGreaterOrEqual = If(kGe);
constexpr Condition IfZero(Reg reg) { return {0x34000000u | reg}; }
constexpr Condition IfBit(Reg reg, unsigned bit) {
  return {0x37000000u | bit << 19 | reg};
}
constexpr Condition Not(Condition condition) {
  const bool is_of_flags = condition.jump >> 24 == 0x54;
  return {condition.jump ^ (is_of_flags ? 1u : 0x01000000u)};
}

/// `count` ones from bit `low` on, as logical instructions have them.
struct Bits {
  unsigned low, count;
};

/// Appends instructions. Unless the name says otherwise, registers have 32 bits
/// and results are zero-extended. Jumps return their offset. kR16 and kR17 are
/// scratch: kR16 of addresses, kR17 of numbers.
class Emitter {
 public:
  size_t size() const { return code_.size(); }
  const std::vector<uint8_t>& code() const { return code_; }

  void Move(Reg to, Reg from) {
    if (to != from) Register(kOr, to, kZero, from);
  }
  void Move64(Reg to, Reg from) { Register(kOr | kWide, to, kZero, from); }
  void MoveImmediate(Reg to, uint32_t value) {
    Word(0x52800000 | (value & 0xFFFF) << 5 | to);
    if (value > 0xFFFF) Word(0x72A00000 | value >> 16 << 5 | to);
  }
  void Load32(Reg to, const Mem& from) { Fixed(0xB9400000, to, from, 2); }
  void Load64(Reg to, const Mem& from) { Fixed(0xF9400000, to, from, 3); }
  void LoadByte(Reg to, const Mem& from) {
    Byte(0x39400000, 0x38606800, to, from);
  }
  /// Of a table of 64-bit entries.
  void LoadIndexed64(Reg to, Reg table, Reg index) {
    Register(0xF8607800, to, table, index);
  }
  void Store32(const Mem& to, Reg from) { Fixed(0xB9000000, from, to, 2); }
  void Store64(const Mem& to, Reg from) { Fixed(0xF9000000, from, to, 3); }
  void StoreByte(const Mem& to, Reg from) {
    Byte(0x39000000, 0x38206800, from, to);
  }
  void StoreByteImmediate(const Mem& to, unsigned value) {
    if (value != 0) MoveImmediate(kR17, value);
    StoreByte(to, value != 0 ? kR17 : kZero);
  }
  void ExtendByte(Reg to, Reg from) { And(to, from, {0, 8}); }
  void Address(Reg to, const Mem& from) { Sum(to, from, 0); }
  void Address64(Reg to, const Mem& from) { Sum(to, from, kWide); }
  void Increment8(Reg to) {
    AddImmediate(0, to, to, 1);
    ExtendByte(to, to);
  }
  void Decrement8(Reg to) {
    AddImmediate(kMinus, to, to, 1);
    ExtendByte(to, to);
  }

  /// Instructions with three registers; the last one may be shifted.
  enum Operation : uint32_t {
    kAnd = 0x0A000000,
    kOr = 0x2A000000,
    kXor = 0x4A000000,
    kAdd = 0x0B000000,
    kSubAndFlags = 0x6B000000,
    kAddByteOfLast = 0x0B200000,
  };
  void Register(uint32_t operation, Reg to, Reg left, Reg right,
                unsigned shift_left = 0) {
    Word(operation | right << 16 | shift_left << 10 | left << 5 | to);
  }
  void And(Reg to, Reg from, Bits bits) { Logical(0x12000000, to, from, bits); }
  void Or(Reg to, Reg from, Bits bits) { Logical(0x32000000, to, from, bits); }
  void Xor(Reg to, Reg from, Bits bits) { Logical(0x52000000, to, from, bits); }
  void Test(Reg reg, Bits bits) { Logical(0x72000000, kZero, reg, bits); }
  void ShiftRight(Reg to, Reg from, unsigned bits) {
    Word(0x53007C00 | bits << 16 | from << 5 | to);
  }
  /// Added to the number of an instruction.
  static constexpr uint32_t kWide = 0x80000000, kMinus = 0x40000000,
                            kAndFlags = 0x20000000;
  /// to = from + value, or minus with kMinus; value < 4,096, or its low twelve
  /// bits are 0.
  void AddImmediate(uint32_t how, Reg to, Reg from, uint32_t value) {
    const uint32_t high = (value & 0xFFF) == 0 && value != 0;
    Word(0x11000000 | how | high << 22 | (high ? value >> 12 : value) << 10 |
         from << 5 | to);
  }
  void Compare(Reg reg, uint32_t value) {
    AddImmediate(kMinus | kAndFlags, kZero, reg, value);
  }
  /// to = 1 if the condition holds, otherwise 0.
  void Set(Flags flags, Reg to) { Word(0x1A9F07E0 | (flags ^ 1) << 12 | to); }
  void Increment64If(Flags flags, Reg to) {
    Word(0x9A800400 | to << 16 | (flags ^ 1) << 12 | to << 5 | to);
  }

  void Push(Reg first, Reg second) { Pair(0xA9BF0000, first, second); }
  void Pop(Reg first, Reg second) { Pair(0xA8C10000, first, second); }
  void Return() { Word(0xD65F03C0); }
  size_t Call() { return Jump(0x94000000); }
  void Call(Reg to) { Word(0xD63F0000 | to << 5); }
  size_t Jump() { return Jump(0x14000000); }
  void Jump(Reg to) { Word(0xD61F0000 | to << 5); }
  size_t JumpIf(Condition condition) { return Jump(condition.jump); }
  /// Jumps over the following code, up to Land.
  size_t Skip(Condition condition) { return JumpIf(condition); }
  size_t Skip() { return Jump(); }
  void Land(size_t skip) { Link(skip, static_cast<int64_t>(size())); }

  /// Makes the jump at `at` end at offset `target`.
  void Link(size_t at, int64_t target) {
    const auto words =
        static_cast<uint32_t>((target - static_cast<int64_t>(at)) / 4);
    const uint32_t kind = WordAt(at) >> 24;
    uint32_t field = (words & 0x7FFFF) << 5;  // of a condition of the flags
    if ((kind & 0x7C) == 0x14) field = words & 0x3FFFFFF;      // unconditional
    if ((kind & 0x7E) == 0x36) field = (words & 0x3FFF) << 5;  // of a bit
    SetWord(at, WordAt(at) | field);
  }

 protected:
  void Word(uint32_t word) {
    code_.resize(code_.size() + sizeof(word));
    SetWord(size() - sizeof(word), word);
  }
  uint32_t WordAt(size_t at) const {
    uint32_t word;
    std::memcpy(&word, code_.data() + at, sizeof(word));
    return word;
  }
  void SetWord(size_t at, uint32_t word) {
    std::memcpy(code_.data() + at, &word, sizeof(word));
  }

 private:
  size_t Jump(uint32_t instruction) {
    Word(instruction);
    return size() - sizeof(instruction);
  }
  void Pair(uint32_t instruction, Reg first, Reg second) {
    Word(instruction | second << 10 | kStackPointer << 5 | first);
  }
  void Logical(uint32_t instruction, Reg to, Reg from, Bits bits) {
    Word(instruction | (32 - bits.low) % 32 << 16 | (bits.count - 1) << 10 |
         from << 5 | to);
  }
  void Fixed(uint32_t instruction, Reg reg, const Mem& memory, unsigned scale) {
    Word(instruction | static_cast<uint32_t>(memory.offset) >> scale << 10 |
         memory.base << 5 | reg);
  }
  void Byte(uint32_t fixed, uint32_t indexed, Reg reg, const Mem& memory) {
    if (memory.index == kNoIndex) return Fixed(fixed, reg, memory, 0);
    Reg index = memory.index;
    if (memory.offset != 0) {
      index = kR16;
      Sum(index, {memory.index, kNoIndex, memory.offset}, 0);
    }
    Register(indexed, reg, memory.base, index);
  }
  void Sum(Reg to, const Mem& from, uint32_t wide) {
    Reg sum = from.base;
    if (from.index != kNoIndex) {
      Register(kAdd | wide, to, sum, from.index);
      sum = to;
    }
    const auto offset = static_cast<uint32_t>(from.offset);
    if (offset >= 0x1000) {
      AddImmediate(wide, to, sum, offset & ~0xFFFu);
      sum = to;
    }
    if (offset % 0x1000 != 0 || sum != to) {
      AddImmediate(wide, to, sum, offset % 0x1000);
    }
  }

  std::vector<uint8_t> code_;
};

}  // namespace nes::arm
