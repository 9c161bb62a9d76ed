// The portable twin of the optimiser's vector kernels.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "learner/vector_kernels.h"

namespace learner {

extern const VectorKernels kScalarVectorKernels;

namespace {

#define OP inline
#define ENTRY
#define UNROLL

constexpr int kRows = 2;
constexpr int kWide = 1;
constexpr int kTallRows = 2;

#include "cpu/lanes_scalar.inc"
#include "learner/vector_kernels.inc"

}  // namespace

constexpr VectorKernels kScalarVectorKernels = kTable;

}  // namespace learner
