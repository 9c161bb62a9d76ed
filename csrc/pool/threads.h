// The few functions of the operating system that the pool uses: allowed CPUs,
// pinning of threads, the process id, and a spin-wait hint.
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

/// The size of a memory page.
size_t PageBytes();

/// Tells the CPU that this is a spin loop.
inline void SpinHint() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// How often a thread polls before it sleeps, about 30 us in all. A wake-up
/// through the kernel costs 5 to 50 us, about one step, so polling for longer
/// does not pay off.
constexpr int kSpins = 1000;

}  // namespace pool
