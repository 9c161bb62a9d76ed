// Runs random bytes as programs: cartridges of random PRG and CHR under random
// buttons. Three consoles run every frame. One draws and has its shortcuts off;
// one translates the program at once and checks each run of translated code.
// All must have the same state. Saves are sometimes loaded into another of the
// three. The timing of each ROM is drawn. A third of the programs may contain
// bytes that jam the CPU, and a third are instructions that rarely jam:
// documented ones, mostly on RAM and ROM. A jammed console gets other work RAM
// and a reset.
//
//   random_roms [--roms N] [--frames N] [--seed S]    (frames of each ROM)
#include <cstring>
#include <random>

#include "../cpp/checked_console.h"
#include "fuzz.h"
#include "programs.h"

namespace {

constexpr int kSaveEvery = 64;
constexpr int kCheckedFrames = 8;  // of a ROM, as they take long

enum class Program { kAnyBytes, kNoJams, kInstructions };

std::shared_ptr<const nes::Cartridge> RandomCartridge(std::mt19937& random,
                                                      Program program) {
  const bool large = random() & 1, has_chr = random() & 1;
  std::vector<uint8_t> image(16 + (large ? 32768 : 16384) +
                             (has_chr ? 8192 : 0));
  for (uint8_t& byte : image) {
    do {
      byte = static_cast<uint8_t>(random() >> 24);
    } while (program != Program::kAnyBytes && fuzz::Jams(byte));
  }
  if (program == Program::kInstructions) {
    fuzz::FillWithInstructions(random,
                               {image.data() + 16, large ? 32768u : 16384u});
  }
  const uint8_t header[16] = {'N',
                              'E',
                              'S',
                              0x1A,
                              uint8_t(large ? 2 : 1),
                              has_chr,
                              uint8_t(random() & 1)};
  std::memcpy(image.data(), header, sizeof(header));
  return nes::Cartridge::Parse(image);
}

bool Equal(const nes::Console& one, const nes::Console& other) {
  return std::memcmp(&one.state(), &other.state(), sizeof(nes::State)) == 0;
}

/// Runs one ROM; returns how often the CPU jammed and was reset.
int Play(std::mt19937& random, Program program, int frames) {
  const auto cartridge = RandomCartridge(random, program);
  const auto timing =
      random() & 1 ? nes::Timing::kNesPy : nes::Timing::kConsole;
  nes::Console fast(cartridge, timing), slow(cartridge, timing);
  nes::CheckedConsole checked(cartridge, timing);
  slow.set_fast_loop(false);
  slow.set_idle_skip(false);
  std::vector<uint8_t> pixels(nes::kScreenPixels);
  int woken = 0;
  for (int frame = 0; frame < frames; ++frame) {
    const auto buttons = static_cast<uint8_t>(random());
    fast.RunFrame(buttons, nullptr);
    slow.RunFrame(buttons, pixels.data());
    if (frame == kCheckedFrames) checked.set_checks(false);
    checked.RunFrame(buttons, nullptr);
    fuzz::Require(Equal(fast, slow), "shortcuts and drawing change no state");
    fuzz::Require(Equal(fast, checked), "translated code changes no state");
    if (frame % kSaveEvery == 0) {
      std::vector<std::byte> blob(fast.SaveBytes());
      fast.Save(blob.data());
      checked.Load(blob);
      checked.Save(blob.data());
      fast.Load(blob);
      fuzz::Require(Equal(fast, slow), "a save is taken back");
    }
    if (!fast.state().cpu.jammed) continue;
    ++woken;
    for (unsigned i = 0; i < nes::kRamBytes; ++i) {
      fast.ram()[i] = slow.ram()[i] = checked.ram()[i] =
          static_cast<uint8_t>(random());
    }
    fast.Reset();
    checked.Reset();
    slow.Reset();
  }
  for (const uint8_t pixel : pixels) {
    fuzz::Require(pixel < 64, "a pixel is a colour");
  }
  return woken;
}

}  // namespace

int main(int argc, char** argv) {
  int roms = 20, frames = 50;
  unsigned seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const int value = std::atoi(argv[i + 1]);
    if (name == "--roms") roms = value;
    if (name == "--frames") frames = value;
    if (name == "--seed") seed = static_cast<unsigned>(value);
  }
  int woken = 0;
  for (int rom = 0; rom < roms; ++rom) {
    std::fprintf(stderr, "\rROM %d of seed %u ", rom, seed);
    std::mt19937 random(seed * 1'000'003u + static_cast<unsigned>(rom));
    woken += Play(random, static_cast<Program>(rom % 3), frames);
  }
  std::printf("\n%d ROMs, %lld frames, each run three times; woken %d times\n",
              roms, static_cast<long long>(roms) * frames, woken);
  return 0;
}
