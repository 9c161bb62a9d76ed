// The options of a pool, with EnvPool's names, order and defaults, and their
// checks. This file does not depend on the environment that runs in the pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

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

  /// Calls visit(name, member, help) for every option, in EnvPool's order.
  template <class Visitor>
  void Visit(Visitor&& visit) {
    visit("num_envs", num_envs, "environments in the pool");
    visit("batch_size", batch_size,
          "rows that recv returns; 0 or num_envs: all");
    visit("num_threads", num_threads,
          "worker threads; 0: min(batch_size, usable CPUs)");
    visit("max_num_players", max_num_players, "always 1");
    visit("thread_affinity_offset", thread_affinity_offset,
          "first CPU to pin worker threads to (status() lists their CPUs); -1: "
          "no "
          "pinning");
    visit("base_path", base_path, "set by EnvPool's registry; unused");
    visit("seed", seed, "environment i is seeded with seed + i");
    visit("env_seed", env_seed, "one seed per environment, in place of seed");
    visit("gym_reset_return_info", gym_reset_return_info,
          "set by EnvPool's registry; always true");
    visit("max_episode_steps", max_episode_steps,
          "steps after which an episode is truncated");
  }

  /// Throws std::invalid_argument with what was given and what is allowed;
  /// replaces batch_size 0 by num_envs.
  void Validate() {
    const auto require = [](bool ok, const std::string& text) {
      if (!ok) throw std::invalid_argument(text);
    };
    require(num_envs >= 1 && num_envs <= kMaxEnvs,
            "num_envs must be 1 to " + std::to_string(kMaxEnvs) + ", got " +
                std::to_string(num_envs));
    require(
        0 <= batch_size && batch_size <= num_envs,
        "batch_size must be 0 (all) to num_envs = " + std::to_string(num_envs) +
            ", got " + std::to_string(batch_size));
    require(num_threads >= 0 && num_threads <= kMaxThreads,
            "num_threads must be 0 (choose) to " + std::to_string(kMaxThreads) +
                ", got " + std::to_string(num_threads));
    require(max_num_players == 1,
            "max_num_players must be 1: environments have one player; got " +
                std::to_string(max_num_players));
    require(thread_affinity_offset >= -1,
            "thread_affinity_offset must be -1 (no pinning) or a CPU index, "
            "got " +
                std::to_string(thread_affinity_offset));
    require(env_seed.empty() || env_seed.size() == size_t(num_envs),
            "env_seed must have one seed for each of the " +
                std::to_string(num_envs) + " envs, got " +
                std::to_string(env_seed.size()));
    require(max_episode_steps >= 1,
            "max_episode_steps must be at least 1, got " +
                std::to_string(max_episode_steps));
    if (batch_size == 0) batch_size = num_envs;
  }

  bool is_sync() const { return batch_size == num_envs; }

  uint64_t SeedOf(int env_id) const {
    const int64_t value =
        env_seed.empty() ? int64_t{seed} + env_id : env_seed[size_t(env_id)];
    return static_cast<uint64_t>(value);
  }
};

}  // namespace pool
