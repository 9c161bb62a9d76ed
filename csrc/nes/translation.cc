// The memory of translated programs, which is never writable and executable at
// the same time, and the choice of the engine.
#include "nes/translation.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "nes/translator.h"

#if defined(__linux__) && defined(__LP64__) && \
    (defined(__x86_64__) || defined(__aarch64__))
#include <sys/mman.h>
#include <unistd.h>
#define NES_TRANSLATES 1
#elif defined(__APPLE__) && defined(__aarch64__)
#include <libkern/OSCacheControl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#define NES_TRANSLATES 1
#endif

namespace nes {
namespace {

// Address space that is used page by page, about 15 times what a game needs.
// When a program with many jumps has used all of it, the interpreter runs the
// rest.
constexpr size_t kMemoryBytes = size_t{4} << 20;

#ifdef NES_TRANSLATES

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t WholePages(size_t bytes) {
  return (bytes + PageBytes() - 1) / PageBytes() * PageBytes();
}
void Free(uint8_t* memory, size_t bytes) { munmap(memory, bytes); }

#if defined(__APPLE__)

// Apple, "Porting just-in-time compilers to Apple silicon": pages of MAP_JIT
// are writable or executable for each thread by itself. Untested: written to
// the documentation.
uint8_t* Reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_JIT, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}
/// Copies code into whole pages that are still unused.
bool MakeExecutable(uint8_t* pages, const std::vector<uint8_t>& code) {
  pthread_jit_write_protect_np(0);
  std::memcpy(pages, code.data(), code.size());
  pthread_jit_write_protect_np(1);
  sys_icache_invalidate(pages, code.size());
  return true;
}

#else

uint8_t* Reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}
/// Copies code into whole pages that are still unused.
bool MakeExecutable(uint8_t* pages, const std::vector<uint8_t>& code) {
  const size_t bytes = WholePages(code.size());
  if (mprotect(pages, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  std::memcpy(pages, code.data(), code.size());
  if (mprotect(pages, bytes, PROT_READ | PROT_EXEC) != 0) return false;
  // For caches of instructions that do not follow those of data, as on ARM.
  auto* const begin = reinterpret_cast<char*>(pages);
  __builtin___clear_cache(begin, begin + code.size());
  return true;
}

#endif

#else

size_t WholePages(size_t bytes) { return bytes; }
uint8_t* Reserve(size_t) { return nullptr; }
void Free(uint8_t*, size_t) {}
bool MakeExecutable(uint8_t*, const std::vector<uint8_t>&) { return false; }

#endif

}  // namespace

Engine EngineByName(const std::string& name) {
  if (name == "translated") return Engine::kTranslated;
  if (name == "interpreter") return Engine::kInterpreter;
  throw std::invalid_argument(
      "engine='" + name +
      "' is not possible; choose translated or interpreter");
}

const char* NameOf(Engine engine) {
  return engine == Engine::kTranslated ? "translated" : "interpreter";
}

Engine DefaultEngine() {
  const char* const name = std::getenv("MARIO_ENGINE");
  if (name == nullptr || *name == '\0') return Engine::kTranslated;
  try {
    return EngineByName(name);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("MARIO_ENGINE: " + std::string(error.what()));
  }
}

bool HasTranslator() {
#ifdef NES_TRANSLATES
  return true;
#else
  return false;
#endif
}

std::string WhyNotTranslated() {
#ifdef NES_TRANSLATES
  uint8_t* const memory = Reserve(kMemoryBytes);
  if (memory == nullptr) return "there is no memory for machine code";
  const bool may_run = MakeExecutable(memory, {0});
  Free(memory, kMemoryBytes);
  return may_run ? "" : "this system does not let programs create machine code";
#else
  return "programs are translated on Linux (x86-64, ARM64) and macOS (ARM64)";
#endif
}

std::unique_ptr<Translation> Translation::Make(const TranslationSource& source,
                                               uint8_t misses) {
  std::unique_ptr<Translation> made(new Translation(source, misses));
  return made->enter_ != nullptr ? std::move(made) : nullptr;
}

Translation::Translation(const TranslationSource& source, uint8_t misses)
    : source_(source), most_misses_(misses), memory_(Reserve(kMemoryBytes)) {
  if (memory_ == nullptr) return;
  Translator translator(source_, memory_);
  stubs_ = translator.MakeStubs();
  for (auto& block : blocks_) {
    block.store(stubs_.leave_miss, std::memory_order_relaxed);
  }
  if (!Take(translator.code())) return;
  // The language has no cast from data to a function pointer.
  std::memcpy(&enter_, &stubs_.enter, sizeof(enter_));
}

Translation::~Translation() {
  if (memory_ != nullptr) Free(memory_, kMemoryBytes);
}

bool Translation::Take(const std::vector<uint8_t>& code) {
  if (WholePages(code.size()) > kMemoryBytes - used_ ||
      !MakeExecutable(memory_ + used_, code)) {
    return false;
  }
  size_.code_bytes += code.size();
  used_ += WholePages(code.size());
  return true;
}

const uint8_t* Translation::FindMissed(unsigned pc, bool jumped) {
  // An event may stop the program anywhere, and the next block is near.
  if (!jumped && inside_[pc - kRomBase].load(std::memory_order_relaxed)) {
    return nullptr;
  }
  auto& misses = misses_[pc - kRomBase];
  const uint8_t before = misses.load(std::memory_order_relaxed);
  if (before + 1 < most_misses_) {
    misses.store(static_cast<uint8_t>(before + 1), std::memory_order_relaxed);
    return nullptr;
  }
  if (full_.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto block_at = [this](unsigned at) -> const uint8_t* {
    const uint8_t* const block = blocks_[at - kRomBase].load();
    return block != stubs_.leave_miss ? block : nullptr;
  };
  if (const uint8_t* const block = block_at(pc)) return block;
  const auto begin = std::chrono::steady_clock::now();
  uint8_t* const at = memory_ + used_;
  Translator translator(source_, at);
  translator.MakeBlocks(pc, stubs_, block_at);
  if (!Take(translator.code())) {
    full_.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  for (const Translator::Block& block : translator.blocks()) {
    blocks_[block.pc - kRomBase].store(at + block.offset,
                                       std::memory_order_release);
  }
  for (const unsigned inside : translator.inside()) {
    inside_[inside - kRomBase].store(true, std::memory_order_relaxed);
  }
  size_.blocks += translator.blocks().size();
  ++size_.batches;
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - begin;
  size_.seconds += passed.count();
  return block_at(pc);
}

Translation::Size Translation::size() const {
  const std::lock_guard lock(mutex_);
  Size size = size_;
  size.memory_bytes = used_ + sizeof(*this);
  return size;
}

}  // namespace nes
