// The optimiser's vector kernels for x86, compiled for their instruction sets
// and chosen when the program runs.
#include "learner/vector_kernels.h"

#ifdef CPU_X86
#include "cpu/x86.h"

namespace learner {

extern const VectorKernels kScalarVectorKernels;

namespace avx2 {
namespace {

#define OP __attribute__((target("avx2,fma"), always_inline)) inline
#define ENTRY __attribute__((target("avx2,fma")))

constexpr int kRows = 4;
constexpr int kWide = 1;
constexpr int kTallRows = 4;

#include "cpu/lanes_avx2.inc"
#include "learner/vector_kernels.inc"

#undef OP
#undef ENTRY

}  // namespace
}  // namespace avx2

namespace avx512 {
namespace {

#define OP __attribute__((target("avx512f"), always_inline)) inline
#define ENTRY __attribute__((target("avx512f")))

constexpr int kRows = 8;
constexpr int kWide = 2;
constexpr int kTallRows = 16;

#include "cpu/lanes_avx512.inc"
#include "learner/vector_kernels.inc"

#undef OP
#undef ENTRY

}  // namespace
}  // namespace avx512

const VectorKernels& VectorKernelsFor(cpu::Path path) {
  switch (path) {
    case cpu::Path::kAvx2:
      return avx2::kTable;
    case cpu::Path::kAvx512:
    case cpu::Path::kAvx512Bf16:
      return avx512::kTable;
    default:
      return kScalarVectorKernels;
  }
}

}  // namespace learner

#elif !defined(CPU_NEON)

namespace learner {

extern const VectorKernels kScalarVectorKernels;

const VectorKernels& VectorKernelsFor(cpu::Path) {
  return kScalarVectorKernels;
}

}  // namespace learner

#endif  // CPU_X86
