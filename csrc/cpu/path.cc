// Detects the features of the CPU at run time.
#include "cpu/path.h"

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

namespace cpu {
namespace {

bool MachineHas(Path path) {
  switch (path) {
    case Path::kScalar:
      return true;
#if defined(CPU_X86)
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512f");
    case Path::kAvx512Vbmi:
      return __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi");
    case Path::kAvx512Bf16:
      return __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bf16");
#elif defined(CPU_NEON)  // which every CPU of this kind has
    case Path::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

/// The most that MARIO_CPU allows; nothing: it names no path.
std::optional<Path> MostAllowed() {
  const char* const value = std::getenv("MARIO_CPU");
  if (value == nullptr || *value == '\0') return {};
  const std::string name = value;
  for (const Path path : {Path::kScalar, Path::kAvx2, Path::kAvx512}) {
    if (name != Name(path)) continue;
    if (!MachineHas(path)) {
      throw std::invalid_argument("MARIO_CPU=" + name +
                                  ": this CPU has no such instructions; choose "
                                  "another path or unset MARIO_CPU");
    }
    return path == Path::kAvx512 ? Path::kAvx512Bf16 : path;
  }
  throw std::invalid_argument(
      "MARIO_CPU=" + name + " is not possible; choose scalar, avx2 or avx512");
}

const std::optional<Path>& Chosen() {
  static const std::optional<Path> most = MostAllowed();
  return most;
}

}  // namespace

bool Supports(Path path) {
  return path <= Chosen().value_or(path) && MachineHas(path);
}

bool IsChosen() { return Chosen().has_value(); }

Path Best(std::span<const Path> paths) {
  Path best = Path::kScalar;
  for (const Path path : paths) {
    if (Supports(path)) best = path;
  }
  return best;
}

const char* Name(Path path) {
  constexpr const char* kNames[] = {"scalar", "neon",        "avx2",
                                    "avx512", "avx512_vbmi", "avx512_bf16"};
  return kNames[static_cast<size_t>(path)];
}

}  // namespace cpu
