// Detects the features of the CPU at run time.
#include "encoders/cpu_path.h"

namespace encoders {

bool Supports(Path path) {
#ifdef ENCODERS_X86
  switch (path) {
    case Path::kScalar:
      return true;
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512f");
    case Path::kAvx512Bf16:
      return __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bf16");
  }
#endif
  return path == Path::kScalar;
}

Path BestPath() {
  Path best = Path::kScalar;
  for (const Path path : kPaths) {
    if (Supports(path)) best = path;
  }
  return best;
}

const char* Name(Path path) {
  switch (path) {
    case Path::kAvx2:
      return "avx2";
    case Path::kAvx512:
      return "avx512";
    case Path::kAvx512Bf16:
      return "avx512_bf16";
    case Path::kScalar:
      break;
  }
  return "scalar";
}

}  // namespace encoders
