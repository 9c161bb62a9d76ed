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

struct Lanes {
  __m256 low, high;
};

OP Lanes Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

OP Lanes Load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

OP void Store(float* to, Lanes a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}

OP Lanes Broadcast(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}

OP Lanes MulAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low),
          _mm256_fmadd_ps(a.high, b.high, c.high)};
}

OP Lanes Mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

OP Lanes Sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

OP Lanes Div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

OP Lanes Sqrt(Lanes a) {
  return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)};
}

OP void TransposeBlock(const float* from, int64_t from_stride, float* to,
                       int64_t to_stride) {
  cpu::TransposeAvx2(from, from_stride, to, to_stride);
}

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

struct Lanes {
  __m512 value;
};

OP Lanes Zero() { return {_mm512_setzero_ps()}; }
OP Lanes Load(const float* from) { return {_mm512_loadu_ps(from)}; }
OP void Store(float* to, Lanes a) { _mm512_storeu_ps(to, a.value); }
OP Lanes Broadcast(float value) { return {_mm512_set1_ps(value)}; }

OP Lanes MulAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.value, b.value, c.value)};
}

OP Lanes Mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.value, b.value)}; }
OP Lanes Sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.value, b.value)}; }
OP Lanes Div(Lanes a, Lanes b) { return {_mm512_div_ps(a.value, b.value)}; }
OP Lanes Sqrt(Lanes a) { return {_mm512_sqrt_ps(a.value)}; }

OP void TransposeBlock(const float* from, int64_t from_stride, float* to,
                       int64_t to_stride) {
  cpu::TransposeAvx512(from, from_stride, to, to_stride);
}

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

#else

namespace learner {

extern const VectorKernels kScalarVectorKernels;

const VectorKernels& VectorKernelsFor(cpu::Path) {
  return kScalarVectorKernels;
}

}  // namespace learner

#endif  // CPU_X86
