// The few things the pool asks of the operating system: which CPUs it may
// use, pinning a thread to one, the process id, and a spin-wait hint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pool {

/// CPUs this process may run on (its affinity mask where there is one).
std::vector<int> AllowedCpus();

/// Pins the calling thread; false where that is not possible.
bool PinThisThread(int cpu);

/// Identifies the process: a forked child has none of the worker threads.
int64_t ProcessId();

/// The size that page-locking works in.
size_t PageBytes();

/// Tells the CPU that this is a spin loop.
inline void SpinHint() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// How often to look for news before sleeping, some 30 us in all: a wake-up
/// through the kernel costs 5 to 50 us, about one step, so to wait longer than
/// that is not worth it.
constexpr int kSpins = 1000;

}  // namespace pool
