// Compares translated programs with the interpreter: each instruction from
// random states, random programs, changes of the engine during a program,
// threads. tests/nes/test_engine.py plays the game itself.
//
// MARIO_TRIALS in the environment is the number of random states of each
// opcode.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../fuzz/programs.h"
#include "checked_console.h"

namespace {

using nes::CheckedConsole;
using nes::Console;
using nes::Engine;
using nes::Timing;

constexpr size_t kPrgBytes = 0x8000;
constexpr unsigned kSlots = 64;  // places of an instruction in a program

class Image {
 public:
  explicit Image(uint32_t seed) : random(seed) {
    for (size_t i = 16; i < bytes.size(); ++i) bytes[i] = Byte();
    const uint8_t header[] = {'N', 'E', 'S', 0x1A, 2, 1, 1, 0};
    std::memcpy(bytes.data(), header, sizeof(header));
  }
  uint8_t Byte() { return static_cast<uint8_t>(random() >> 24); }
  std::span<uint8_t> prg() { return {bytes.data() + 16, kPrgBytes}; }
  std::shared_ptr<const nes::Cartridge> Make() const {
    return nes::Cartridge::Parse(bytes);
  }

  std::mt19937 random;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(16 + kPrgBytes + 8192);
};

bool Equal(const Console& one, const Console& other) {
  return std::memcmp(&one.state(), &other.state(), sizeof(nes::State)) == 0;
}

bool CanTranslate() { return nes::WhyNotTranslated().empty(); }

int Trials() {
  const char* const given = std::getenv("MARIO_TRIALS");
  return given != nullptr ? std::atoi(given) : 1'024;
}

// Each instruction precedes one that jams: its block may run although the next
// event comes a cycle later.
void PlaceInstructions(uint8_t opcode, Image* image) {
  for (unsigned slot = 0; slot < kSlots; ++slot) {
    // Some at the end of a page, and the last one at the end of memory.
    const unsigned at = slot + 1 < kSlots ? 0x100 * slot + (slot & 1 ? 0xFA : 8)
                                          : kPrgBytes - 6;
    const unsigned kind = image->random() % 8;
    uint8_t* const code = image->prg().data() + at;
    code[0] = opcode;
    code[1] = image->Byte();
    code[2] = static_cast<uint8_t>(kind < 3   ? image->Byte() % 0x20
                                   : kind < 6 ? 0x80 | image->Byte()
                                   : kind < 7 ? 0x20 + image->Byte() % 0x24
                                              : image->Byte());
    code[nes::InstructionBytes(nes::kOpcodes[opcode].mode)] = 0x02;
  }
}

// Of what is translated at all, all modes are met on the way.
bool IsTranslated(const nes::OpcodeInfo& info) {
  return info.is_official && info.kind != nes::Kind::kInterrupting &&
         std::strcmp(info.operation, "Php") != 0;
}

void CompareOpcode(uint8_t opcode, Timing timing, int trials) {
  Image image(opcode * 2u + (timing == Timing::kNesPy));
  PlaceInstructions(opcode, &image);
  const auto cartridge = image.Make();
  CheckedConsole checked(cartridge, timing);
  Console interpreted(cartridge, timing, Engine::kInterpreter);
  nes::State state = interpreted.state();
  for (int trial = 0; trial < trials; ++trial) {
    const unsigned slot = image.random() % kSlots;
    for (uint8_t& byte : state.ram) byte = image.Byte();
    state.cpu.pc = static_cast<uint16_t>(
        0x8000 + (slot + 1 < kSlots ? 0x100 * slot + (slot & 1 ? 0xFA : 8)
                                    : kPrgBytes - 6));
    state.cpu.a = image.Byte();
    state.cpu.x = image.Byte();
    state.cpu.y = image.Byte();
    state.cpu.sp = image.Byte();
    state.cpu.p = static_cast<uint8_t>(image.Byte() & ~0x10) | 0x20;
    checked.set_state(state);
    interpreted.set_state(state);
    checked.StepInstruction();
    interpreted.StepInstruction();
    ASSERT_TRUE(Equal(checked, interpreted))
        << "opcode " << int{opcode} << " at " << state.cpu.pc;
  }
  if (IsTranslated(nes::kOpcodes[opcode])) {
    EXPECT_GT(checked.translated_runs(), 0u) << int{opcode};
  }
}

TEST(Translation, EachOpcodeDoesWhatTheInterpreterDoes) {
  if (!CanTranslate()) GTEST_SKIP() << nes::WhyNotTranslated();
  for (int opcode = 0; opcode < 256; ++opcode) {
    for (const Timing timing : {Timing::kConsole, Timing::kNesPy}) {
      CompareOpcode(static_cast<uint8_t>(opcode), timing, Trials() / 2);
    }
  }
}

TEST(Translation, RandomProgramsEndEachRunInTheInterpretersState) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    Image image(seed);
    if (seed % 4 != 0) fuzz::FillWithInstructions(image.random, image.prg());
    const auto cartridge = image.Make();
    const Timing timing = seed & 1 ? Timing::kNesPy : Timing::kConsole;
    CheckedConsole checked(cartridge, timing);
    Console translated(cartridge, timing, Engine::kTranslated);
    Console interpreted(cartridge, timing, Engine::kInterpreter);
    for (int frame = 0; frame < 4; ++frame) {
      const uint8_t buttons = image.Byte();
      for (Console* console : std::initializer_list<Console*>{
               &checked, &translated, &interpreted}) {
        console->RunFrame(buttons, nullptr);
      }
      ASSERT_TRUE(Equal(checked, interpreted)) << seed;
      ASSERT_TRUE(Equal(translated, interpreted)) << seed;
    }
  }
}

TEST(Translation, EnginesMayTakeTurnsBetweenAnyTwoInstructions) {
  Image image(77);
  fuzz::FillWithInstructions(image.random, image.prg());
  const auto cartridge = image.Make();
  for (const Timing timing : {Timing::kConsole, Timing::kNesPy}) {
    Console turns(cartridge, timing, Engine::kTranslated);
    Console interpreted(cartridge, timing, Engine::kInterpreter);
    for (int turn = 0; turn < 300; ++turn) {
      turns.set_engine(turn & 1 ? Engine::kTranslated : Engine::kInterpreter);
      for (unsigned i = image.random() % 50; i > 0; --i) {
        turns.StepInstruction();
        interpreted.StepInstruction();
      }
      if (turn % 8 == 0) {
        turns.RunFrame(5, nullptr);
        interpreted.RunFrame(5, nullptr);
      }
      std::vector<std::byte> save(turns.SaveBytes());
      turns.Save(save.data());
      interpreted.Load(save);
      ASSERT_TRUE(Equal(turns, interpreted));
    }
  }
}

TEST(Translation, ThreadsShareOneAndMakeItTogether) {
  Image image(3);
  fuzz::FillWithInstructions(image.random, image.prg());
  const auto cartridge = image.Make();
  Console interpreted(cartridge, Timing::kConsole, Engine::kInterpreter);
  for (int frame = 0; frame < 20; ++frame) interpreted.RunFrame(1, nullptr);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Console>> consoles;
  for (int i = 0; i < 4; ++i) {
    consoles.push_back(std::make_unique<Console>(cartridge, Timing::kConsole,
                                                 Engine::kTranslated));
    threads.emplace_back([console = consoles.back().get()] {
      for (int frame = 0; frame < 20; ++frame) console->RunFrame(1, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& console : consoles) {
    EXPECT_TRUE(Equal(*console, interpreted));
  }
}

TEST(Translation, AProgramThatFillsItsMemoryIsInterpreted) {
  if (!CanTranslate()) GTEST_SKIP() << nes::WhyNotTranslated();
  Image image(9);
  const auto cartridge = image.Make();
  CheckedConsole checked(cartridge, Timing::kConsole);
  Console interpreted(cartridge, Timing::kConsole, Engine::kInterpreter);
  nes::State state = interpreted.state();
  for (unsigned pc = 0x8000; pc < 0xFFFF; ++pc) {
    state.cpu.pc = static_cast<uint16_t>(pc);
    checked.set_state(state);
    interpreted.set_state(state);
    checked.StepInstruction();
    interpreted.StepInstruction();
    ASSERT_TRUE(Equal(checked, interpreted)) << pc;
  }
  EXPECT_LE(checked.translation()->size().memory_bytes, size_t{5} << 20);
}

TEST(Translation, EnginesHaveNames) {
  for (const char* name : {"interpreter", "translated"}) {
    EXPECT_STREQ(nes::NameOf(nes::EngineByName(name)), name);
  }
  EXPECT_THROW(nes::EngineByName("x"), std::invalid_argument);
}

}  // namespace
