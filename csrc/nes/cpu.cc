// What the fast loop dispatches on, found once for every ROM address.
#include "nes/cpu.h"

namespace nes {
namespace {

struct Pair {
  uint8_t number, first, second;
};

constexpr Pair kPairs[] = {
#define FUSED(number, first, second) {number, first, second},
#include "nes/fused.inc"
};

constexpr bool kOfficial[256] = {
#define OPCODE(...) true,
#define UNOFFICIAL(...) false,
#include "nes/opcodes.inc"
};

}  // namespace

void FindDispatch(const uint8_t* prg, uint8_t* dispatch) {
  uint8_t pair_of[256][256] = {};
  for (const Pair& pair : kPairs)
    pair_of[pair.first][pair.second] = pair.number;
  constexpr int kBytes = 0x8000;
  for (int at = 0; at < kBytes; ++at) {
    const uint8_t opcode = prg[at];
    const int next = at + InstructionBytes(kOpcodes[opcode].mode);
    dispatch[at] = kOfficial[opcode] ? opcode : kNotPlain;
    if (kOfficial[opcode] && next < kBytes && pair_of[opcode][prg[next]] != 0) {
      dispatch[at] = pair_of[opcode][prg[next]];
    }
  }
}

}  // namespace nes
