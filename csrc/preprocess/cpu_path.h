// Which vector instructions preprocessing uses on this machine.
#pragma once

#include <cstdint>

// The compilers that this project has x86 and ARM code for: GCC and Clang.
#if defined(__x86_64__) && defined(__GNUC__)
#define PREPROCESS_X86 1
#elif defined(__aarch64__) && defined(__GNUC__)
#define PREPROCESS_NEON 1
#endif

namespace preprocess {

/// Instruction sets with separate code. All give equal results.
enum class Path : uint8_t { kScalar, kAvx2, kAvx512, kNeon };
constexpr Path kPaths[] = {Path::kScalar, Path::kAvx2, Path::kAvx512,
                           Path::kNeon};

bool Supports(Path path);
Path BestPath();
const char* Name(Path path);
/// Name of the path this machine uses: "scalar", "avx2", "avx512" or "neon".
inline const char* CpuPath() { return Name(BestPath()); }

}  // namespace preprocess
