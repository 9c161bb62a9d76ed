// Shared by the files with code for x86: intrinsics, and loops that the
// compiler unrolls. Include it only in those .cc files, inside ENCODERS_X86.
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
