// Shared by the files with code for ARM: intrinsics and loops that the compiler
// unrolls. Include it only in those .cc files, inside CPU_NEON.
#pragma once

#include <arm_neon.h>

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
