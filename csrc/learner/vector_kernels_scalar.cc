// The portable twin of the optimiser's vector kernels: sixteen floats in plain
// loops.
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

struct Lanes {
  float value[kLanes];
};

Lanes Zero() { return {}; }

Lanes Load(const float* from) {
  Lanes result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

void Store(float* to, const Lanes& a) { std::memcpy(to, &a, sizeof(a)); }

Lanes Broadcast(float value) {
  Lanes result;
  for (float& lane : result.value) lane = value;
  return result;
}

Lanes MulAdd(const Lanes& a, const Lanes& b, Lanes c) {
  for (int i = 0; i < kLanes; ++i) {
    c.value[i] = std::fma(a.value[i], b.value[i], c.value[i]);
  }
  return c;
}

Lanes Mul(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.value[i] *= b.value[i];
  return a;
}

Lanes Sub(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.value[i] -= b.value[i];
  return a;
}

Lanes Div(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.value[i] /= b.value[i];
  return a;
}

Lanes Sqrt(Lanes a) {
  for (float& value : a.value) value = std::sqrt(value);
  return a;
}

void TransposeBlock(const float* from, int64_t from_stride, float* to,
                    int64_t to_stride) {
  for (int i = 0; i < kLanes; ++i) {
    for (int l = 0; l < kLanes; ++l) {
      to[l * to_stride + i] = from[i * from_stride + l];
    }
  }
}

#include "learner/vector_kernels.inc"

}  // namespace

constexpr VectorKernels kScalarVectorKernels = kTable;

}  // namespace learner
