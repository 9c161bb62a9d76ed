// The portable twin of the vector kernels: sixteen floats in plain loops.
#include <bit>
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

struct Lanes {
  float value[kLanes];
};
struct Pairs {
  uint32_t word[kLanes];
};

Lanes Zero() { return {}; }

Lanes Load(const float* from) {
  Lanes result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

// Loads the first n values, followed by zeros.
Lanes LoadSome(const float* from, int n) {
  Lanes result{};
  std::memcpy(&result, from, n * sizeof(float));
  return result;
}

void StoreSome(float* to, const uint32_t* from, int n) {
  std::memcpy(to, from, n * sizeof(float));
}

void Store(float* to, const Lanes& a) { std::memcpy(to, &a, sizeof(a)); }

template <typename From, typename To>
void CopyWords(const From* from, To* to) {
  std::memcpy(to, from, kLanes * sizeof(uint32_t));
}

Lanes LoadBf16(const uint16_t* from) {
  Lanes result;
  for (int i = 0; i < kLanes; ++i) result.value[i] = FromBf16(from[i]);
  return result;
}

Lanes Add(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.value[i] += b.value[i];
  return a;
}

Lanes Multiply(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.value[i] *= b.value[i];
  return a;
}

Lanes Fill(float value) {
  Lanes result;
  for (float& each : result.value) each = value;
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

void StoreRoundedPairs(uint32_t* to, const Lanes& a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) to[i] = RoundPair(a.value[i], b.value[i]);
}

void StoreExactPairs(uint32_t* to, const Lanes& a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) {
    to[i] = (std::bit_cast<uint32_t>(a.value[i]) >> 16) |
            (std::bit_cast<uint32_t>(b.value[i]) & 0xFFFF0000u);
  }
}

void InterleaveLanes(const uint16_t* a, const uint16_t* b, uint32_t* to) {
  for (int i = 0; i < kLanes; ++i) {
    to[i] = a[i] | (static_cast<uint32_t>(b[i]) << 16);
  }
}

void Transpose16(uint32_t* words) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const uint32_t word = words[i * kLanes + j];
      words[i * kLanes + j] = words[j * kLanes + i];
      words[j * kLanes + i] = word;
    }
  }
}

Pairs LoadPairs(const uint32_t* from) {
  Pairs result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

template <typename T>
Pairs Broadcast(const T* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  Pairs result;
  for (uint32_t& value : result.word) value = word;
  return result;
}

Lanes AddProducts(Lanes sum, const Pairs& a, const Pairs& b) {
  for (int i = 0; i < kLanes; ++i) {
    const float upper = std::bit_cast<float>(a.word[i] & 0xFFFF0000u) *
                        std::bit_cast<float>(b.word[i] & 0xFFFF0000u);
    const float lower = std::bit_cast<float>(a.word[i] << 16) *
                        std::bit_cast<float>(b.word[i] << 16);
    sum.value[i] = (sum.value[i] + upper) + lower;
  }
  return sum;
}

template <int R, int C>
void DotStep(const uint16_t* const (&x)[R], int64_t at, const uint32_t* weights,
             int64_t next, Lanes (&sums)[R][C]) {
  for (int c = 0; c < C; ++c) {
    const Pairs right = LoadPairs(weights + c * next);
    for (int r = 0; r < R; ++r) {
      sums[r][c] = AddProducts(sums[r][c], Broadcast(x[r] + at), right);
    }
  }
}

#include "encoders/kernels.inc"

}  // namespace

const Kernels kScalarKernels = kTable;

}  // namespace encoders
