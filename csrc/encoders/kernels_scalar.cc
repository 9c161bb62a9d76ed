// The portable twin of the vector kernels.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "encoders/bfloat16.h"
#include "encoders/kernels.h"

namespace encoders {

extern const Kernels kScalarKernels;

namespace {

#define OP inline
#define ENTRY
#define UNROLL

constexpr int kRows = 2;
constexpr int kBlocks = 1;

using Operand = float;

#include "cpu/lanes_scalar.inc"

// Loads the first n values, followed by zeros.
Lanes LoadSome(const float* from, int n) {
  Lanes result{};
  std::memcpy(&result, from, n * sizeof(float));
  return result;
}

void StoreSome(float* to, const float* from, int n) {
  std::memcpy(to, from, n * sizeof(float));
}

Lanes LoadBf16(const uint16_t* from) {
  Lanes result;
  for (int i = 0; i < kLanes; ++i) result.value[i] = FromBf16(from[i]);
  return result;
}

Lanes Relu(Lanes a) {  // NaN remains
  for (float& value : a.value) value = 0.0f > value ? 0.0f : value;
  return a;
}

Lanes KeepActive(Lanes a, const uint16_t* active) {
  for (int i = 0; i < kLanes; ++i) {
    if (active[i] == 0) a.value[i] = 0.0f;
  }
  return a;
}

Lanes KeepPositive(Lanes a, const Lanes& output) {
  for (int i = 0; i < kLanes; ++i) {
    if (output.value[i] <= 0.0f) a.value[i] = 0.0f;
  }
  return a;
}

Lanes Centred(const uint8_t* pixels) {
  Lanes result;
  for (int i = 0; i < kLanes; ++i) {
    result.value[i] = static_cast<float>(pixels[i] - 144) * (1.0f / 64.0f);
  }
  return result;
}

void StoreRounded(uint16_t* to, const Lanes& a) {
  for (int i = 0; i < kLanes; ++i) to[i] = RoundToBf16(a.value[i]);
}

void StoreRoundedPairs(float* to, const Lanes& a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) {
    to[i] = std::bit_cast<float>(RoundPair(a.value[i], b.value[i]));
  }
}

Operand ToOperand(uint16_t bits) { return FromBf16(bits); }

void StoreExact(Operand* to, const Lanes& a) { Store(to, a); }

void StoreExactPairs(Operand* to, const Lanes& a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) {
    to[2 * i] = a.value[i];
    to[2 * i + 1] = b.value[i];
  }
}

void StorePacked(const void* pairs, float* to) {
  uint32_t words[kLanes];
  std::memcpy(words, pairs, sizeof(words));
  for (int i = 0; i < kLanes; ++i) {
    to[i] = std::bit_cast<float>(words[i] & 0xFFFF0000u);
    to[kLanes + i] = std::bit_cast<float>(words[i] << 16);
  }
}

void StorePackedPairs(const uint16_t* first, const uint16_t* second,
                      float* to) {
  Store(to, LoadBf16(second));
  Store(to + kLanes, LoadBf16(first));
}

template <int R, int L, int C>
void AddProducts(const Operand* const (&x)[R], int64_t at, const float* weights,
                 int64_t next, Lanes (&sums)[R * L][C]) {
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      for (int l = 0; l < L; ++l) {
        const Operand* pair = x[r] + at + 2 * l;
        float* sum = sums[r * L + l][c].value;
        for (int i = 0; i < kLanes; ++i) {
          const float* right = weights + c * next + i;
          sum[i] = (sum[i] + pair[1] * right[0]) + pair[0] * right[kLanes];
        }
      }
    }
  }
}

#include "encoders/kernels.inc"

}  // namespace

const Kernels kScalarKernels = kTable;

}  // namespace encoders
