// Runs a fuzz target without libFuzzer, with any compiler and sanitizer: kept
// inputs first, then inputs made from a seed. An input that ends the process
// is written to a file, which belongs into regressions/<target>/ afterwards.
//
//   fuzz_<target> [--inputs N] [--first I] [--seed S] [FILE | FOLDER]...
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "fuzz.h"

// Sanitizers ask for these: what they find ends in abort(), and so in OnSignal.
#define FUZZ_VISIBLE extern "C" __attribute__((visibility("default")))
FUZZ_VISIBLE const char* __asan_default_options() { return "abort_on_error=1"; }
FUZZ_VISIBLE const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}
FUZZ_VISIBLE const char* __tsan_default_options() {
  return "halt_on_error=1";  // its report is enough; abort() would hang
}

namespace {

constexpr unsigned kHangSeconds = 60;
constexpr size_t kMaxBytes = 256;

std::vector<uint8_t> current;
std::string current_name;

void KeepInput() {
  const std::string path = "crash-" + current_name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", path.c_str());
}

// Not safe in a signal handler by the letter; the process is lost already.
extern "C" void OnSignal(int number) {
  std::signal(number, SIG_DFL);
  std::fprintf(stderr, "signal %d%s\n", number,
               number == SIGALRM ? ": one input takes too long" : "");
  KeepInput();
  std::raise(number == SIGALRM ? SIGABRT : number);
}

void Run(const std::string& name) {
  current_name = name;
  alarm(kHangSeconds);
  // A copy of its exact size: reads behind it are errors.
  const std::vector<uint8_t> bytes(current);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void RunFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  current.assign(std::istreambuf_iterator<char>(file), {});
  Run(path.filename().string());
}

/// Input number `index` of a seed: random bytes, many of them small numbers.
void RunGenerated(uint64_t seed, uint64_t index) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15u + index);
  current.resize(random() % (kMaxBytes + 1));
  const uint64_t small = random() % 4;
  for (uint8_t& byte : current) {
    const uint64_t draw = random();
    byte = static_cast<uint8_t>((draw & 3) < small ? draw >> 8 & 7 : draw >> 8);
  }
  Run(std::to_string(seed) + "-" + std::to_string(index));
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t inputs = 1000, first = 0, seed = 1;
  int files = 0;
  for (const int number : {SIGABRT, SIGALRM}) std::signal(number, OnSignal);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--inputs" && has_value) {
      inputs = std::stoull(argv[++i]);
    } else if (word == "--first" && has_value) {
      first = std::stoull(argv[++i]);
    } else if (word == "--seed" && has_value) {
      seed = std::stoull(argv[++i]);
    } else if (std::filesystem::is_directory(word)) {
      for (const auto& entry : std::filesystem::directory_iterator(word)) {
        RunFile(entry.path()), ++files;
      }
    } else {
      RunFile(word), ++files;
    }
  }
  for (uint64_t i = first; i < first + inputs; ++i) RunGenerated(seed, i);
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  std::printf("%d kept and %llu made inputs of seed %llu in %.1f s\n", files,
              static_cast<unsigned long long>(inputs),
              static_cast<unsigned long long>(seed), taken.count());
  return 0;
}
