// Computes what the fast loop dispatches on, once for every ROM address, and
// changes registers between instructions.
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

// The fast loop has one label for each number, so there must be one of each.
constexpr bool EveryFreeNumberHasOnePair() {
  for (int number = 0; number < 256; ++number) {
    int pairs = 0;
    for (const Pair& pair : kPairs) pairs += pair.number == number;
    const bool is_free = !kOpcodes[number].is_official && number != kNotPlain;
    if (pairs != (is_free ? 1 : 0)) return false;
  }
  return true;
}
static_assert(EveryFreeNumberHasOnePair(),
              "fused.inc: one pair for each undocumented opcode but kNotPlain");

constexpr bool EveryPairMayBegin() {
  for (const Pair& pair : kPairs) {
    if (!MayBeginPair(kOpcodes[pair.first])) return false;
  }
  return true;
}
static_assert(EveryPairMayBegin(),
              "fused.inc: the first of a pair jumps, branches, concerns "
              "interrupts or is undocumented (MayBeginPair)");

}  // namespace

void FindDispatch(const uint8_t* prg, uint8_t* dispatch) {
  uint8_t pair_of[256][256] = {};
  for (const Pair& pair : kPairs)
    pair_of[pair.first][pair.second] = pair.number;
  constexpr int kBytes = 0x8000;
  for (int at = 0; at < kBytes; ++at) {
    const uint8_t opcode = prg[at];
    const int next = at + InstructionBytes(kOpcodes[opcode].mode);
    dispatch[at] = kOpcodes[opcode].is_official ? opcode : kNotPlain;
    if (next < kBytes && pair_of[opcode][prg[next]] != 0) {
      dispatch[at] = pair_of[opcode][prg[next]];
    }
  }
}

void PowerOnCpu(CpuState* cpu, uint16_t start) {
  *cpu = {};
  cpu->sp = 0xFD;
  cpu->p = 0x34;
  cpu->i_change = kNever;
  cpu->pc = start;
  cpu->cycle = 7;
}

void ResetCpu(CpuState* cpu, uint16_t start) {
  cpu->cycle += 7;
  cpu->sp = static_cast<uint8_t>(cpu->sp - 3);
  cpu->p |= 0x04;
  cpu->jammed = 0;
  cpu->pc = start;
}

bool BeginInterrupt(CpuState* cpu, uint8_t* ram) {
  if (cpu->jammed) return false;
  const uint8_t pushed[3] = {static_cast<uint8_t>(cpu->pc >> 8),
                             static_cast<uint8_t>(cpu->pc),
                             static_cast<uint8_t>((cpu->p & ~0x10) | 0x20)};
  for (uint8_t byte : pushed) ram[0x100 + cpu->sp--] = byte;
  cpu->p |= 0x04;
  cpu->cycle += 7;
  return true;
}

void FinishInterrupt(CpuState* cpu, uint16_t handler) { cpu->pc = handler; }

}  // namespace nes
