// The 6502's instruction set as tables, and instructions as bytes in memory:
// what both the interpreter (cpu.h) and those who look at code share.
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
};

inline constexpr OpcodeInfo kOpcodes[256] = {
#define OPCODE(code, kind, operation, mode, cycles, penalty) \
  {#operation, Mode::k##mode, cycles, penalty},
#include "nes/opcodes.inc"
};

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
