// Detects the features of the CPU at run time.
#include "preprocess/cpu_path.h"

#include <initializer_list>

namespace preprocess {

bool Supports(Path path) {
  switch (path) {
    case Path::kScalar:
      return true;
#if defined(PREPROCESS_X86)
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2");
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi");
#elif defined(PREPROCESS_NEON)  // which every CPU of this kind has
    case Path::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

Path BestPath() {
  for (const Path path : {Path::kAvx512, Path::kAvx2, Path::kNeon}) {
    if (Supports(path)) return path;
  }
  return Path::kScalar;
}

const char* Name(Path path) {
  switch (path) {
    case Path::kAvx2:
      return "avx2";
    case Path::kAvx512:
      return "avx512";
    case Path::kNeon:
      return "neon";
    case Path::kScalar:
      break;
  }
  return "scalar";
}

}  // namespace preprocess
