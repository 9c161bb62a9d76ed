// The contract between the generic pool and an environment: the fields of a
// batch, the outcome of a step, and the memory for results. Environments
// include this file and no other file of the pool, so they do not depend on
// threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pool {

enum class DType : uint8_t { kBool, kUint8, kInt8, kInt32, kInt64, kFloat32 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
    case DType::kInt8:
      return 1;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
      return 8;
  }
  return 0;
}

/// One array of a batch, described per row (no batch dimension).
///
/// `name` uses EnvPool's keys: "obs" or "obs:<part>" for observations,
/// "info:<key>" for everything that lands in the info dictionary.
struct Field {
  std::string name;
  DType dtype;
  std::vector<int> shape;  // empty: one scalar per row
  double low;
  double high;
  bool bulk = false;  // true: lives in the page-aligned slab (observations)

  size_t RowBytes() const {
    size_t count = 1;
    for (int dim : shape) count *= static_cast<size_t>(dim);
    return count * SizeOf(dtype);
  }
};

/// The outcome of a step in addition to its fields. The pool itself counts
/// steps and truncates the episode at max_episode_steps.
struct Outcome {
  float reward = 0.0f;
  bool terminated = false;
  bool truncated = false;
};

/// The memory for one result of an environment: `field[i]` points to the row of
/// the i-th entry of Fields(). Valid only during the call that receives it.
struct Row {
  std::byte* const* field;

  template <class T>
  T* at(size_t i) const {
    return reinterpret_cast<T*>(field[i]);
  }
};

/// What happens to an environment's random generator when it is restored.
enum class RngMode : uint8_t { kSaved, kKeep };

/// The starts of episodes that a caller has chosen: the stages that the options
/// name, then saved states. Checked and immutable.
struct StartSet {
  int num_stages;
  /// For each start, the sum of the weights up to and including it; the last
  /// sum is > 0.
  std::vector<double> cumulative_weights;
  std::vector<std::byte> blobs;  // snapshots of the pool, each with its header
  size_t blob_bytes;
  size_t header_bytes;

  /// Returns the start that `draw`, uniform in [0, 1), selects; never a start
  /// of weight 0.
  int Pick(double draw) const {
    const double total = cumulative_weights.back();
    auto found = std::upper_bound(cumulative_weights.begin(),
                                  cumulative_weights.end(), draw * total);
    // The product of tiny numbers may round up to the total.
    if (found == cumulative_weights.end()) {
      found = std::lower_bound(cumulative_weights.begin(),
                               cumulative_weights.end(), total);
    }
    return static_cast<int>(found - cumulative_weights.begin());
  }
  /// The data that Env::Snapshot wrote for `start`, which is num_stages or
  /// more.
  const std::byte* state(int start) const {
    return blobs.data() + static_cast<size_t>(start - num_stages) * blob_bytes +
           header_bytes;
  }
};

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

// An environment type `Env` for AsyncPool<Env> has:
//
//   struct Shared;    immutable, built once per pool, shared by all workers
//   struct Scratch;   per worker, constructible from `const Shared&`
//   static std::vector<Field> Fields(const Shared&);
//   static std::vector<std::string> FieldNames();
//                   the names in Fields() under default options: EnvPool needs
//                   them as class attributes, before any Shared exists
//   static int NumActions(const Shared&);   actions are 0 .. NumActions - 1
//   static int NumStages(const Shared&);    stages that the options name
//   Env(std::shared_ptr<const Shared>, int env_id, uint64_t seed);
//   void Seed(uint64_t seed);               takes effect at the next Reset
//   static uint64_t MaxSeed(const Shared&);
//                   the largest seed; the pool refuses larger ones
//   void Reset(Scratch&, const StartSet*);
//                   draws a start from the set; null: the options decide
//   Outcome Step(int32_t action, Scratch&);
//   void Write(const Row&) const;           the fields of the last result
//   size_t SnapshotBytes() const;           equal for all envs of one Shared
//   void Snapshot(std::byte* out) const;    also before the first Reset
//   static void CheckSnapshot(const Shared&, std::span<const std::byte> blob);
//                   throws std::invalid_argument on a foreign or damaged blob
//                   and on one of another size, before it reads any of it
//   void Restore(const std::byte* blob, RngMode);   of a blob that passes
//   void Render(Scratch&, uint8_t* rgb) const;
//                   the picture, (kRenderHeight, kRenderWidth, 3) RGB
//   static constexpr int kRenderHeight, kRenderWidth;
//
// Any of these may throw; the pool rethrows the exception with the env id.

}  // namespace pool
