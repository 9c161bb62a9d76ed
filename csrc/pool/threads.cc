// Linux supports all functions; other systems support some of them.
#include "pool/threads.h"

#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace pool {

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
#endif
  if (cpus.empty()) {
    const int count = static_cast<int>(std::thread::hardware_concurrency());
    for (int cpu = 0; cpu < (count > 0 ? count : 1); ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

bool PinThisThread(int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
  (void)cpu;
  return false;
#endif
}

int64_t ProcessId() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

size_t PageBytes() {
#if defined(__unix__) || defined(__APPLE__)
  const long bytes = sysconf(_SC_PAGESIZE);
  if (bytes > 0) return static_cast<size_t>(bytes);
#endif
  return 4096;
}

}  // namespace pool
