// What the files with code for x86 share: intrinsics, and loops that the
// compiler writes out. Only for these .cc files, behind ENCODERS_X86.
#pragma once

#include <immintrin.h>

// GCC 12 takes the deliberately undefined sources inside its own AVX-512
// headers for our uninitialised variables (GCC bug 105593).
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
