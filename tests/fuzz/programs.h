// Random programs that rarely jam, for fuzz targets and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

#include "nes/opcodes.h"

namespace fuzz {

inline bool Jams(uint8_t opcode) {
  return (opcode & 0x1F) == 0x12 || (opcode & 0x9F) == 0x02;
}

/// Instructions one behind the other, nearly all of them documented. Addresses
/// are in RAM or ROM but for one in 32; most branches are short, jumps go
/// anywhere in ROM.
inline void FillWithInstructions(std::mt19937& random,
                                 std::span<uint8_t> program) {
  const auto one_in = [&random](unsigned n) { return random() % n == 0; };
  const auto accepts = [&](uint8_t opcode) {
    if (Jams(opcode)) return false;
    if (opcode == 0) return one_in(16);  // BRK
    return nes::kOpcodes[opcode].is_official || one_in(64);
  };
  for (size_t at = 0; at + 3 <= program.size();) {
    uint8_t opcode;
    do {
      opcode = static_cast<uint8_t>(random() >> 24);
    } while (!accepts(opcode));
    const nes::OpcodeInfo& info = nes::kOpcodes[opcode];
    unsigned low = random() % 256, high = random() % 32;
    if (info.kind == nes::Kind::kBranch && !one_in(4)) {
      low = random() % 24 - 12;
    }
    if (info.kind == nes::Kind::kJump || one_in(2)) high = 0x80 + 4 * high;
    if (one_in(16)) high = random() % 256;
    program[at] = opcode;
    program[at + 1] = static_cast<uint8_t>(low);
    program[at + 2] = static_cast<uint8_t>(high);
    at += static_cast<size_t>(nes::InstructionBytes(info.mode));
  }
}

}  // namespace fuzz
