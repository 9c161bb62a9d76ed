// Checks the weights of SetStarts and sums them up.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pool {

/// Returns the running sums of the weights of `num_stages` stages and
/// `num_snapshots` snapshots. Throws std::invalid_argument if there is not one
/// weight per stage and snapshot, if a weight is negative or not finite, or if
/// their sum is 0 or not finite.
inline std::vector<double> CumulativeWeights(std::span<const double> weights,
                                             int num_stages,
                                             size_t num_snapshots) {
  const size_t expected = static_cast<size_t>(num_stages) + num_snapshots;
  if (weights.size() != expected) {
    throw std::invalid_argument(
        "set_starts: got " + std::to_string(weights.size()) +
        " weights; give one for each stage and snapshot, here " +
        std::to_string(num_stages) + " + " + std::to_string(num_snapshots));
  }
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t i = 0; i < expected; ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw std::invalid_argument("set_starts: weight " + std::to_string(i) +
                                  " is " + std::to_string(weights[i]) +
                                  "; weights are finite and 0 or more");
    }
    cumulative.push_back(sum += weights[i]);
  }
  if (!(sum > 0) || std::isinf(sum)) {
    throw std::invalid_argument(
        "set_starts: the weights add up to " + std::to_string(sum) +
        "; at least one must be positive, and their sum must be finite");
  }
  return cumulative;
}

}  // namespace pool
