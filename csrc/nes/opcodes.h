// The 6502's instruction set as tables, and instructions as bytes in memory:
// shared by the interpreter (cpu.h) and the code that analyses programs.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#define NES_INLINE __attribute__((always_inline)) inline

namespace nes {

enum class Mode : uint8_t {
  kImp,
  kAcc,
  kImm,
  kZp,
  kZpX,
  kZpY,
  kAbs,
  kAbsX,
  kAbsY,
  kInd,
  kIndX,
  kIndY,
  kRel,
};

/// How an instruction uses memory and the program counter: the functions of
/// cpu.h that opcodes.inc names.
enum class Kind : uint8_t {
  kRead,
  kStore,
  kStoreHigh,
  kModify,
  kAccumulator,
  kImplied,
  kStack,
  kBranch,
  kJump,
  kJumpIndirect,
  kInterrupting,
};

/// Bytes of an instruction, opcode included.
constexpr int InstructionBytes(Mode mode) {
  switch (mode) {
    case Mode::kImp:
    case Mode::kAcc:
      return 1;
    case Mode::kAbs:
    case Mode::kAbsX:
    case Mode::kAbsY:
    case Mode::kInd:
      return 3;
    default:
      return 2;
  }
}

struct OpcodeInfo {
  const char* operation;
  Mode mode;
  uint8_t cycles;
  uint8_t page_penalty;
  Kind kind;
  bool is_official;
};

inline constexpr OpcodeInfo kOpcodes[256] = {
#define OPCODE(code, kind, operation, mode, cycles, penalty) \
  {#operation, Mode::k##mode, cycles, penalty, Kind::k##kind, true},
#define UNOFFICIAL(code, kind, operation, mode, cycles, penalty) \
  {#operation, Mode::k##mode, cycles, penalty, Kind::k##kind, false},
#include "nes/opcodes.inc"
};

/// Whether an instruction may be the first of a pair (fused.inc): execution
/// always continues with the next instruction in memory, for all values of
/// registers and memory, and interrupts are polled as usual after it. This
/// excludes branches, jumps, JSR, RTS, RTI, BRK, CLI, SEI and PLP; the fast
/// loop runs only documented opcodes.
constexpr bool MayBeginPair(const OpcodeInfo& opcode) {
  switch (opcode.kind) {
    case Kind::kRead:
    case Kind::kStore:
    case Kind::kModify:
    case Kind::kAccumulator:
    case Kind::kImplied:
    case Kind::kStack:
      return opcode.is_official;
    case Kind::kStoreHigh:
    case Kind::kBranch:
    case Kind::kJump:
    case Kind::kJumpIndirect:
    case Kind::kInterrupting:
      return false;
  }
  return false;
}

/// Four bytes at `at`, the first one lowest.
NES_INLINE uint32_t LoadCode(const uint8_t* at) {
  uint32_t code;
  std::memcpy(&code, at, sizeof(code));
  if constexpr (std::endian::native == std::endian::big) {
    code = __builtin_bswap32(code);
  }
  return code;
}

}  // namespace nes
