// The contract between the pool and a task: what a task and its environments
// do, the fields of a batch, the outcome of a step, and the memory for results.
// Tasks include this file and no other file of the pool, so they do not depend
// on threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
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

/// An option of a pool or of its task.
struct Option {
  const char* name;
  std::variant<bool*, int*, double*, std::string*, std::vector<int>*,
               std::vector<std::string>*>
      value;
  const char* help;
};

/// The memory that a worker lends to the environment that it steps.
class Scratch {
 public:
  virtual ~Scratch() = default;
};

/// One environment. Any function may throw; the pool rethrows the exception
/// with the environment's id.
class Env {
 public:
  virtual ~Env() = default;

  /// Takes effect at the next Reset.
  virtual void Seed(uint64_t seed) = 0;
  /// Draws a start from the set; null: the options decide.
  virtual void Reset(Scratch& scratch, const StartSet* starts) = 0;
  virtual Outcome Step(int32_t action, Scratch& scratch) = 0;
  /// Writes the fields of the last result.
  virtual void Write(const Row& row) const = 0;
  /// Equal for all environments of one task.
  virtual size_t SnapshotBytes() const = 0;
  /// Also before the first Reset.
  virtual void Snapshot(std::byte* out) const = 0;
  /// Restores a blob that passes Task::CheckSnapshot.
  virtual void Restore(const std::byte* blob, RngMode mode) = 0;
  /// Writes the picture, of Task::Picture(), RGB.
  virtual void Render(Scratch& scratch, uint8_t* rgb) const = 0;
};

/// What all environments of a pool share, and how they are made. Immutable, and
/// used by all workers at once.
class Task {
 public:
  struct PictureSize {
    int height, width;
  };

  virtual ~Task() = default;

  virtual std::vector<Field> Fields() const = 0;
  /// Actions are 0 .. NumActions() - 1.
  virtual int NumActions() const = 0;
  /// Stages that the options name.
  virtual int NumStages() const = 0;
  /// The largest seed; the pool refuses larger ones.
  virtual uint64_t MaxSeed() const = 0;
  virtual PictureSize Picture() const = 0;
  /// Throws std::invalid_argument on a foreign or damaged blob and on one of
  /// another size, before it reads any of it.
  virtual void CheckSnapshot(std::span<const std::byte> blob) const = 0;
  /// The task's own entries of a pool's status.
  virtual std::vector<std::pair<const char*, std::string>> Status() const {
    return {};
  }
  virtual std::unique_ptr<Scratch> MakeScratch() const = 0;
  virtual std::unique_ptr<Env> MakeEnv(int env_id, uint64_t seed) const = 0;
};

}  // namespace pool
