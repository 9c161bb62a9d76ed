#include "learner/clip.h"

#include <algorithm>
#include <cmath>

namespace learner {

namespace {

constexpr int kSums = 16;              // computed in parallel
constexpr int64_t kFloatBlock = 4096;  // numbers whose sums are float

double SumOfSquares(const float* values, int64_t size) {
  double total = 0;
  for (int64_t start = 0; start < size; start += kFloatBlock) {
    const int64_t end = std::min(size, start + kFloatBlock);
    float sums[kSums] = {};
    int64_t i = start;
    for (; i + kSums <= end; i += kSums) {
      for (int l = 0; l < kSums; ++l) sums[l] += values[i + l] * values[i + l];
    }
    for (; i < end; ++i) total += double{values[i]} * values[i];
    for (const float sum : sums) total += sum;
  }
  return total;
}

}  // namespace

float ClipNorm(std::span<const Numbers> gradients, float max_norm) {
  double squares = 0;
  for (const Numbers& part : gradients) {
    squares += SumOfSquares(part.values, part.size);
  }
  const auto norm = static_cast<float>(std::sqrt(squares));
  const float factor = max_norm / (norm + 1e-6f);
  // A norm that is not a number makes the gradients so, too.
  if (factor >= 1) return norm;
  for (const Numbers& part : gradients) {
    for (int64_t i = 0; i < part.size; ++i) part.values[i] *= factor;
  }
  return norm;
}

}  // namespace learner
