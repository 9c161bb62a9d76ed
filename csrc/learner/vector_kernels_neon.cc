// The optimiser's vector kernels for ARM.
#include "learner/vector_kernels.h"

#ifdef CPU_NEON
#include "cpu/arm.h"

namespace learner {

extern const VectorKernels kScalarVectorKernels;

namespace {

#define OP __attribute__((always_inline)) inline
#define ENTRY

constexpr int kRows = 4;
constexpr int kWide = 1;
constexpr int kTallRows = 4;

#include "cpu/lanes_neon.inc"
#include "learner/vector_kernels.inc"

#undef OP
#undef ENTRY

}  // namespace

const VectorKernels& VectorKernelsFor(cpu::Path path) {
  return path == cpu::Path::kNeon ? kTable : kScalarVectorKernels;
}

}  // namespace learner

#endif  // CPU_NEON
