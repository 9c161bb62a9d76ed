// The options of a pool, with EnvPool's names, order and defaults.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "pool/spec.h"

namespace pool {

struct PoolConfig {
  /// More than any machine can hold, and few enough that sums of counts fit an
  /// int.
  static constexpr int kMaxEnvs = 1 << 20;

  /// More than the cores of any machine, and near the most threads that a
  /// system grants.
  static constexpr int kMaxThreads = 4096;

  int num_envs = 1;
  int batch_size = 0;
  int num_threads = 0;
  int max_num_players = 1;
  int thread_affinity_offset = -1;
  std::string base_path = "mario_envpool";
  int seed = 42;
  std::vector<int> env_seed = {};
  bool gym_reset_return_info = true;
  int max_episode_steps = std::numeric_limits<int>::max();

  /// Every option, in EnvPool's order.
  std::vector<Option> Options();

  /// Throws std::invalid_argument with what was given and what is allowed;
  /// replaces batch_size 0 by num_envs.
  void Validate();

  bool is_sync() const { return batch_size == num_envs; }

  uint64_t SeedOf(int env_id) const {
    const int64_t value =
        env_seed.empty() ? int64_t{seed} + env_id : env_seed[size_t(env_id)];
    return static_cast<uint64_t>(value);
  }
};

}  // namespace pool
