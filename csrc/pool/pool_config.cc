// The texts of a pool's options, and their checks.
#include "pool/pool_config.h"

#include <stdexcept>

namespace pool {

std::vector<Option> PoolConfig::Options() {
  return {
      {"num_envs", &num_envs, "environments in the pool"},
      {"batch_size", &batch_size, "rows that recv returns; 0 or num_envs: all"},
      {"num_threads", &num_threads,
       "worker threads; 0: min(batch_size, usable CPUs)"},
      {"max_num_players", &max_num_players, "always 1"},
      {"thread_affinity_offset", &thread_affinity_offset,
       "first CPU to pin worker threads to (status() lists their CPUs); -1: "
       "no pinning"},
      {"base_path", &base_path, "set by EnvPool's registry; unused"},
      {"seed", &seed, "environment i is seeded with seed + i"},
      {"env_seed", &env_seed, "one seed per environment, in place of seed"},
      {"gym_reset_return_info", &gym_reset_return_info,
       "set by EnvPool's registry; always true"},
      {"max_episode_steps", &max_episode_steps,
       "steps after which an episode is truncated"},
  };
}

void PoolConfig::Validate() {
  const auto require = [](bool ok, const std::string& text) {
    if (!ok) throw std::invalid_argument(text);
  };
  require(num_envs >= 1 && num_envs <= kMaxEnvs,
          "num_envs must be 1 to " + std::to_string(kMaxEnvs) + ", got " +
              std::to_string(num_envs));
  require(0 <= batch_size && batch_size <= num_envs,
          "batch_size must be 0 (all) to num_envs = " +
              std::to_string(num_envs) + ", got " + std::to_string(batch_size));
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
  require(max_episode_steps >= 1, "max_episode_steps must be at least 1, got " +
                                      std::to_string(max_episode_steps));
  if (batch_size == 0) batch_size = num_envs;
}

}  // namespace pool
