// What the CPU says of itself, asked when the program runs.
#include "preprocess/cpu_path.h"

namespace preprocess {

bool Supports(Path path) {
#ifdef PREPROCESS_X86
  switch (path) {
    case Path::kScalar:
      return true;
    case Path::kAvx2:
      return __builtin_cpu_supports("avx2");
    case Path::kAvx512:
      return __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return path == Path::kScalar;
}

Path BestPath() {
  if (Supports(Path::kAvx512)) return Path::kAvx512;
  if (Supports(Path::kAvx2)) return Path::kAvx2;
  return Path::kScalar;
}

const char* Name(Path path) {
  switch (path) {
    case Path::kAvx2:
      return "avx2";
    case Path::kAvx512:
      return "avx512";
    case Path::kScalar:
      break;
  }
  return "scalar";
}

}  // namespace preprocess
