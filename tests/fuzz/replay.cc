// Runs a fuzz target without libFuzzer, with any compiler and sanitizer: kept
// inputs first, then inputs made from a seed. An input that ends the process
// is written to a file, which belongs into regressions/<target>/ afterwards.
//
//   fuzz_<target> [--inputs N] [--first I] [--seed S] [--verbose]
//                 [--collect FOLDER] [FILE | FOLDER]...
//
// --verbose prints the message with which each kept input is refused. --collect
// writes, for each new refusal, the first generated input, shortened to the
// bytes that the refusal needs, under a name made from the message.
// regressions/ was filled in this way.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "fuzz.h"

// Sanitizers call these functions: their findings end in abort(), and so in
// OnSignal.
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
constexpr size_t kMaxName = 60;

std::vector<uint8_t> current;
std::string current_name;

void KeepInput() {
  const std::string path = "crash-" + current_name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", path.c_str());
}

// Strictly not safe in a signal handler, but the process ends anyway.
extern "C" void OnSignal(int number) {
  std::signal(number, SIG_DFL);
  std::fprintf(stderr, "signal %d%s\n", number,
               number == SIGALRM ? ": one input takes too long" : "");
  KeepInput();
  std::raise(number == SIGALRM ? SIGABRT : number);
}

void Run(const std::string& name) {
  current_name = name;
  fuzz::refusals.clear();
  alarm(kHangSeconds);
  // A copy of exactly its size, so that reads beyond the end are errors.
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

/// The words of a refusal without the given values: no digits, no quotations.
std::string NameOf(const std::string& refusal) {
  std::string name;
  bool quoted = false;
  for (const char c : refusal) {
    if (c == '\'') quoted = !quoted;
    const bool letter = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
    if (quoted || name.size() == kMaxName) continue;
    if (letter) name += c;
    if (!letter && !name.empty() && name.back() != '-') name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

bool IsRefusedAs(const std::string& name) {
  return std::any_of(
      fuzz::refusals.begin(), fuzz::refusals.end(),
      [&](const std::string& text) { return NameOf(text) == name; });
}

/// Keeps the input that has just been run for each new refusal in it.
void Collect(const std::filesystem::path& folder,
             std::set<std::string>& collected) {
  const std::vector<uint8_t> whole = current;
  const std::vector<std::string> texts = fuzz::refusals;
  for (const std::string& text : texts) {
    const std::string name = NameOf(text);
    if (!collected.insert(name).second) continue;
    for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
      current.assign(whole.begin(),
                     whole.begin() + static_cast<ptrdiff_t>(bytes));
      Run(name);
      if (IsRefusedAs(name)) break;
    }
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(current.data()),
               static_cast<std::streamsize>(current.size()));
  }
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
  bool verbose = false;
  std::filesystem::path folder;
  std::set<std::string> collected;
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
    } else if (word == "--collect" && has_value) {
      folder = argv[++i];
    } else if (word == "--verbose") {
      verbose = true;
    } else if (std::filesystem::is_directory(word)) {
      const int before = files;
      for (const auto& entry : std::filesystem::directory_iterator(word)) {
        RunFile(entry.path()), ++files;
        if (!verbose) continue;
        for (const std::string& text : fuzz::refusals) {
          std::printf("%s: %s\n", current_name.c_str(), text.c_str());
        }
      }
      if (files > before) continue;
      std::fprintf(stderr, "no kept inputs in %s\n", word.c_str());
      return 2;
    } else {
      RunFile(word), ++files;
    }
  }
  for (uint64_t i = first; i < first + inputs; ++i) {
    RunGenerated(seed, i);
    if (!folder.empty()) Collect(folder, collected);
  }
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  std::printf("%d kept and %llu made inputs of seed %llu in %.1f s\n", files,
              static_cast<unsigned long long>(inputs),
              static_cast<unsigned long long>(seed), taken.count());
  return 0;
}
