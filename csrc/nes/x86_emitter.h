// Bytes of the x86-64 instructions that translated programs are made of
// (macro_assembler.h): general registers, one addressing form, flags, jumps.
// Source: AMD64 Architecture Programmer's Manual, volume 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nes::x86 {

enum Reg : uint8_t {
  kRax,
  kRcx,
  kRdx,
  kRbx,
  kRsp,
  kRbp,
  kRsi,
  kRdi,
  kR8,
  kR9,
  kR10,
  kR11,
  kR12,
  kR13,
  kR14,
  kR15,
  kNoIndex = kRsp,
};

/// base + index * 2^scale + offset. No base is kRsp or kR12, which would need
/// another form.
struct Mem {
  Reg base;
  Reg index = kNoIndex;
  int32_t offset = 0;
  uint8_t scale = 0;
};

/// Numbers of the two-operand arithmetic instructions.
enum Alu : uint8_t { kAdd, kOr, kAdc, kSbb, kAnd, kSub, kXor, kCmp };
/// Shifts and rotations.
enum Shift : uint8_t { kRcr = 3, kShl = 4, kShr = 5 };
/// Conditions; the lowest bit negates.
enum Condition : uint8_t {
  kOverflow = 0,
  kBelow = 2,  // carry
  kAboveOrEqual = 3,
  kEqual = 4,
  kNotEqual = 5,
  kSign = 8,
  kGreaterOrEqual = 13,
};
constexpr Condition Not(Condition condition) {
  return static_cast<Condition>(condition ^ 1);
}

/// Appends instructions. Unless the name says otherwise, registers have 32 bits
/// and results are zero-extended; byte forms are used only with al, cl, dl and
/// r8b to r15b. Jumps return the offset of their 32-bit distance.
class Emitter {
 public:
  size_t size() const { return code_.size(); }
  const std::vector<uint8_t>& code() const { return code_; }

  void Move(Reg to, Reg from) { Encode(0x8B, to, from); }
  void Move64(Reg to, Reg from) { Encode(0x8B, to, from, true); }
  void MoveImmediate(Reg to, uint32_t value) {
    if (to >= kR8) Byte(0x41);
    Byte(0xB8 | (to & 7));
    Word32(value);
  }
  void Load32(Reg to, const Mem& from) { Encode(0x8B, to, from); }
  void Load64(Reg to, const Mem& from) { Encode(0x8B, to, from, true); }
  void LoadByte(Reg to, const Mem& from) { Encode(0x0FB6, to, from); }
  void ExtendByte(Reg to, Reg from) { Encode(0x0FB6, to, from); }
  void Store32(const Mem& to, Reg from) { Encode(0x89, from, to); }
  void Store64(const Mem& to, Reg from) { Encode(0x89, from, to, true); }
  void StoreByte(const Mem& to, Reg from) { Encode(0x88, from, to); }
  void StoreByteImmediate(const Mem& to, unsigned value) {
    Encode(0xC6, 0, to);
    Byte(value);
  }
  void Address(Reg to, const Mem& from) { Encode(0x8D, to, from); }
  void Address64(Reg to, const Mem& from) { Encode(0x8D, to, from, true); }

  void Byte8(Alu op, Reg to, Reg from) { Encode(op << 3 | 2, to, from); }
  void Byte8(Alu op, Reg to, const Mem& from) { Encode(op << 3 | 2, to, from); }
  void Byte8(Alu op, Reg to, unsigned immediate) {
    Encode(0x80, op, to);
    Byte(immediate);
  }
  void Byte8(Alu op, const Mem& to, unsigned immediate) {
    Encode(0x80, op, to);
    Byte(immediate);
  }
  void Full(Alu op, Reg to, Reg from) { Encode(op << 3 | 3, to, from); }
  void Full(Alu op, Reg to, uint32_t immediate) {
    Encode(0x81, op, to);
    Word32(immediate);
  }
  void Wide(Alu op, Reg to, int32_t immediate) {
    const bool is_short = immediate >= -128 && immediate < 128;
    Encode(is_short ? 0x83 : 0x81, op, to, true);
    if (is_short) {
      Byte(static_cast<unsigned>(immediate));
    } else {
      Word32(static_cast<uint32_t>(immediate));
    }
  }
  /// Compares with a number that is patched later; returns the offset of the
  /// number.
  size_t CompareWide(Reg reg) {
    Encode(0x81, kCmp, reg, true);
    Word32(0);
    return size() - 4;
  }
  void Increment8(Reg to) { Encode(0xFE, 0, to); }
  void Decrement8(Reg to) { Encode(0xFE, 1, to); }
  /// The carry is the last bit that leaves; at most 8 bits.
  void Shift8(Shift op, Reg to, unsigned bits) {
    Encode(bits == 1 ? 0xD0 : 0xC0, op, to);
    if (bits != 1) Byte(bits);
  }
  void ShiftLeft(Reg to, unsigned bits) {
    Encode(0xC1, 4, to);
    Byte(bits);
  }
  void Test8(Reg one, Reg other) { Encode(0x84, one, other); }
  void Test(Reg one, uint32_t bits) {
    Encode(0xF7, 0, one);
    Word32(bits);
  }
  /// The carry is bit 0 of `from`.
  void CarryFromBit0(Reg from) {
    Encode(0x0FBA, 4, from);
    Byte(0);
  }
  void SetCarry() { Byte(0xF9); }
  void ClearCarry() { Byte(0xF8); }
  void Set8(Condition condition, Reg to) { Encode(0x0F90 | condition, 0, to); }
  void Set8(Condition condition, const Mem& to) {
    Encode(0x0F90 | condition, 0, to);
  }

  void Push(Reg reg) {
    if (reg >= kR8) Byte(0x41);
    Byte(0x50 | (reg & 7));
  }
  void Pop(Reg reg) {
    if (reg >= kR8) Byte(0x41);
    Byte(0x58 | (reg & 7));
  }
  void Return() { Byte(0xC3); }
  size_t Call() { return Distance(0xE8); }
  void Call(const Mem& to) { Encode(0xFF, 2, to); }
  size_t Jump() { return Distance(0xE9); }
  void Jump(const Mem& to) { Encode(0xFF, 4, to); }
  void Jump(Reg to) { Encode(0xFF, 4, to); }
  size_t JumpIf(Condition condition) {
    Byte(0x0F);
    return Distance(0x80u | condition);
  }
  /// Jumps over the following code, up to Land.
  size_t Skip(Condition condition) { return SkipBy(0x70u | condition); }
  size_t Skip() { return SkipBy(0xEB); }
  void Land(size_t skip) {
    code_[skip - 1] = static_cast<uint8_t>(size() - skip);
  }

  void Patch(size_t at, int64_t value) {
    const auto word = static_cast<int32_t>(value);
    std::memcpy(code_.data() + at, &word, sizeof(word));
  }
  /// Makes the jump whose distance is at `at` end at offset `target`.
  void Link(size_t at, int64_t target) {
    Patch(at, target - static_cast<int64_t>(at) - 4);
  }

 private:
  void Byte(unsigned value) { code_.push_back(static_cast<uint8_t>(value)); }
  void Word32(uint32_t value) {
    for (int i = 0; i < 4; ++i) Byte(value >> (8 * i) & 0xFF);
  }
  size_t SkipBy(unsigned opcode) {
    Byte(opcode);
    Byte(0);
    return size();
  }
  size_t Distance(unsigned opcode) {
    Byte(opcode);
    Word32(0);
    return size() - 4;
  }

  void Opcode(unsigned opcode, unsigned rex, bool wide) {
    rex |= wide ? 8 : 0;
    if (rex != 0) Byte(0x40 | rex);
    if (opcode > 0xFF) Byte(opcode >> 8);
    Byte(opcode & 0xFF);
  }
  void Encode(unsigned opcode, unsigned reg, Reg rm, bool wide = false) {
    Opcode(opcode, (reg >> 3) << 2 | rm >> 3, wide);
    Byte(0xC0 | (reg & 7) << 3 | (rm & 7));
  }
  void Encode(unsigned opcode, unsigned reg, const Mem& rm, bool wide = false) {
    Opcode(opcode, (reg >> 3) << 2 | (rm.index >> 3) << 1 | rm.base >> 3, wide);
    const bool is_short = rm.offset >= -128 && rm.offset < 128;
    const unsigned form = (is_short ? 0x40 : 0x80) | (reg & 7) << 3;
    if (rm.index == kNoIndex) {
      Byte(form | (rm.base & 7));
    } else {
      Byte(form | 4);
      Byte(rm.scale << 6 | (rm.index & 7) << 3 | (rm.base & 7));
    }
    if (is_short) {
      Byte(static_cast<unsigned>(rm.offset));
    } else {
      Word32(static_cast<uint32_t>(rm.offset));
    }
  }

  std::vector<uint8_t> code_;
};

}  // namespace nes::x86
