// Which vector instructions the encoders use on this machine.
#pragma once

#include <cstdint>

// The compilers that this project has x86 kernels for: GCC and Clang.
#if defined(__x86_64__) && defined(__GNUC__)
#define ENCODERS_X86 1
#endif

namespace encoders {

/// Instruction sets with separate code. All give equal results.
enum class Path : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

inline constexpr Path kPaths[] = {Path::kScalar, Path::kAvx2, Path::kAvx512,
                                  Path::kAvx512Bf16};

bool Supports(Path path);
Path BestPath();
/// "scalar", "avx2", "avx512" or "avx512_bf16".
const char* Name(Path path);

}  // namespace encoders
