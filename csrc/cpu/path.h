// Which vector instructions this process uses: the best of the machine, or
// those that the environment variable MARIO_CPU (scalar, avx2, avx512) names.
#pragma once

#include <cstdint>
#include <span>

// The compilers that this project has vector code for: GCC and Clang.
#if defined(__x86_64__) && defined(__GNUC__)
#define CPU_X86 1
#elif defined(__aarch64__) && defined(__GNUC__)
#define CPU_NEON 1
#endif

namespace cpu {

/// Floats in the `Lanes` of lanes_*.inc, on every path.
inline constexpr int kLanes = 16;

/// Instruction sets with separate code, the better ones last. All give equal
/// results.
enum class Path : uint8_t {
  kScalar,
  kNeon,
  kAvx2,
  kAvx512,
  kAvx512Vbmi,
  kAvx512Bf16
};

/// Whether the machine has these instructions and MARIO_CPU allows them. Throws
/// std::invalid_argument if MARIO_CPU names none, or some that the machine
/// lacks.
bool Supports(Path path);
/// The last supported of `paths`, of which kScalar is one.
Path Best(std::span<const Path> paths);
/// Whether MARIO_CPU names a path. Throws as `Supports` does.
bool IsChosen();
/// "scalar", "neon", "avx2", "avx512", "avx512_vbmi" or "avx512_bf16".
const char* Name(Path path);

}  // namespace cpu
