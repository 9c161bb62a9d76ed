// Plays a ROM without drawing, to compare hosts (tests/nes/test_arm.py): each
// byte of standard input is one frame's buttons. The state goes to standard
// output after every EVERY frames and after the last one.
//
//   play_console ROM console|nes_py interpreter|translated|checked EVERY
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checked_console.h"

namespace {

std::vector<uint8_t> ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<nes::Console> MakeConsole(const char* rom,
                                          const std::string& timing,
                                          const std::string& engine) {
  const auto cartridge = nes::Cartridge::Parse(ReadFile(rom));
  const auto by =
      timing == "nes_py" ? nes::Timing::kNesPy : nes::Timing::kConsole;
  if (engine == "checked") {
    return std::make_unique<nes::CheckedConsole>(cartridge, by);
  }
  return std::make_unique<nes::Console>(cartridge, by,
                                        nes::EngineByName(engine));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::invalid_argument("give ROM TIMING ENGINE EVERY");
  const auto console = MakeConsole(argv[1], argv[2], argv[3]);
  const int every = std::atoi(argv[4]);
  const auto write = [&console] {
    std::fwrite(&console->state(), sizeof(nes::State), 1, stdout);
  };
  int frame = 0;
  for (int byte; (byte = std::getchar()) != EOF;) {
    console->RunFrame(static_cast<uint8_t>(byte), nullptr);
    if (++frame % every == 0) write();
  }
  write();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
