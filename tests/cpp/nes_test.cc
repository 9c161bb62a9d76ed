// Properties of the console that Python cannot test: the vector path of the
// renderer equals its portable version, and States are comparable byte by byte.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "flat_bus.h"
#include "nes/console.h"
#include "nes/cpu.h"
#include "nes/simd.h"

namespace {

std::vector<uint8_t> RandomImage(uint32_t seed) {
  std::vector<uint8_t> image = {'N', 'E', 'S', 0x1A, 2, 1, 1, 0};
  image.resize(16);
  std::mt19937 random(seed);
  for (int i = 0; i < 40 * 1024; ++i) {
    image.push_back(static_cast<uint8_t>(random()));
  }
  return image;
}

TEST(Simd, DrawTilesEqualsItsPortableTwin) {
  std::mt19937 random(7);
  std::vector<uint8_t> tiles(65536);
  for (uint8_t& entry : tiles) entry = random() & 15;
  for (int round = 0; round < 100; ++round) {
    uint16_t offsets[nes::simd::kTilesInLine];
    uint8_t colours[16];
    for (uint16_t& offset : offsets) offset = (random() & 1023) * 64;
    for (uint8_t& colour : colours) colour = static_cast<uint8_t>(random());
    constexpr int kBytes = nes::simd::kTilesInLine * 8;
    // Bytes beside a line are not written.
    std::vector<uint8_t> want[4], got[4];
    uint8_t *want_lines[4], *got_lines[4];
    for (int r = 0; r < 4; ++r) {
      want[r].assign(kBytes + 16, 0xA5);
      got[r] = want[r];
      want_lines[r] = want[r].data() + 8;
      got_lines[r] = got[r].data() + 8;
    }
    const uint8_t* half = tiles.data() + round % 2 * 32;
    nes::simd::DrawTilesPortable(half, offsets, colours, want_lines);
    nes::simd::DrawTiles(half, offsets, colours, got_lines);
    for (int r = 0; r < 4; ++r) ASSERT_EQ(want[r], got[r]) << r;
  }
}

// Under the sanitizers this test also shows that no program accesses memory
// outside the console.
TEST(Console, RandomProgramsDrawOrNotWithEqualStates) {
  for (uint32_t seed = 0; seed < 80; ++seed) {
    const auto cartridge = nes::Cartridge::Parse(RandomImage(seed));
    const auto timing = seed & 1 ? nes::Timing::kNesPy : nes::Timing::kConsole;
    nes::Console drawing(cartridge, timing);
    nes::Console silent(cartridge, timing);
    std::vector<uint8_t> pixels(nes::kScreenPixels, 0xFF);
    for (int frame = 0; frame < 5; ++frame) {
      const auto buttons = static_cast<uint8_t>(seed * 31 + frame);
      drawing.RunFrame(buttons, pixels.data());
      silent.RunFrame(buttons, nullptr);
      ASSERT_EQ(
          std::memcmp(&drawing.state(), &silent.state(), sizeof(nes::State)), 0)
          << "seed " << seed << ", frame " << frame;
    }
    for (uint8_t pixel : pixels) ASSERT_LT(pixel, 64);
  }
}

// Such a state would wait for ever for an edge in the past.
TEST(DamagedStates, ADotIsSkippedOnceAFrame) {
  for (const auto timing : {nes::Timing::kConsole, nes::Timing::kNesPy}) {
    nes::Console console(nes::Cartridge::Parse(RandomImage(1)), timing);
    for (int frame = 0; frame < 3; ++frame) console.RunFrame(0, nullptr);
    nes::State state = console.state();
    EXPECT_TRUE(nes::IsPlausible(state, timing));
    state.ppu.dot_skipped = 3;
    EXPECT_FALSE(nes::IsPlausible(state, timing));
    state = console.state();
    state.ppu.odd_frame = 2;
    EXPECT_FALSE(nes::IsPlausible(state, timing));
  }
}

// Runs each instruction to find out whether it may be the first of a pair.
TEST(FusedPairs, TheFirstIsAlwaysFollowedByTheInstructionBehindIt) {
  std::mt19937 random(5);
  nes::FlatBus bus;
  for (int opcode = 0; opcode < 256; ++opcode) {
    const nes::OpcodeInfo& info = nes::kOpcodes[opcode];
    if (!info.is_official) {
      EXPECT_FALSE(nes::MayBeginPair(info)) << opcode;
      continue;
    }
    for (uint8_t& byte : bus.memory) byte = static_cast<uint8_t>(random());
    bool goes_on = true;
    for (int trial = 0; trial < 200; ++trial) {
      for (int i = 0; i < 3; ++i) {
        bus.memory[static_cast<size_t>(0x8000 + i)] =
            static_cast<uint8_t>(random());
      }
      nes::CpuState cpu = {};
      cpu.pc = 0x8000;
      cpu.a = static_cast<uint8_t>(random());
      cpu.x = static_cast<uint8_t>(random());
      cpu.y = static_cast<uint8_t>(random());
      cpu.sp = static_cast<uint8_t>(random());
      cpu.p = static_cast<uint8_t>(random());
      bus.memory[cpu.pc] = static_cast<uint8_t>(opcode);
      bus.asked_about_interrupts = false;
      const unsigned next =
          cpu.pc + static_cast<unsigned>(nes::InstructionBytes(info.mode));
      const unsigned i_flag = cpu.p & 4u;
      nes::RunOneInstruction(&cpu, bus);
      goes_on = goes_on && cpu.pc == next && cpu.i_change == 0 &&
                (cpu.p & 4u) == i_flag && !bus.asked_about_interrupts;
    }
    EXPECT_EQ(nes::MayBeginPair(info), goes_on) << opcode;
  }
}

TEST(Console, SaveAndLoadRestoreEveryByte) {
  const auto cartridge = nes::Cartridge::Parse(RandomImage(3));
  nes::Console console(cartridge);
  for (int frame = 0; frame < 5; ++frame) console.RunFrame(0, nullptr);
  std::vector<std::byte> blob(console.SaveBytes());
  console.Save(blob.data());
  nes::Console other(cartridge);
  other.Load(blob);
  EXPECT_EQ(std::memcmp(&console.state(), &other.state(), sizeof(nes::State)),
            0);
}

}  // namespace
