// An environment that counts. Its results are known in advance, so tests can
// detect a lost, doubled or reordered step. A step costs next to nothing, so a
// benchmark measures the pool alone. The observation starts with the counters;
// the rest is filled with a byte of the history.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "pool/spec.h"

namespace pool {

struct CountingConfig {
  std::vector<int> obs_shape = {4, 84, 84};
  int num_actions = 4;
  int num_stages = 1;
  int episode_steps = 10;
  int truncate_steps = 0;
  int throw_env = -1;
  int throw_step = -1;
  int throw_construct_env = -1;
  int max_sleep_us = 0;
  std::string label = "count";

  std::vector<Option> Options() {
    return {
        {"obs_shape", &obs_shape, "shape of the uint8 observation"},
        {"num_actions", &num_actions, "actions are 0 to this minus 1"},
        {"num_stages", &num_stages, "stages that episodes can begin at"},
        {"episode_steps", &episode_steps,
         "steps after which an episode terminates"},
        {"truncate_steps", &truncate_steps,
         "steps after which it is truncated; 0: never"},
        {"throw_env", &throw_env, "environment that throws; -1: none"},
        {"throw_step", &throw_step,
         "step of its life at which it throws; 0: a reset"},
        {"throw_construct_env", &throw_construct_env,
         "environment that cannot be made; -1: none"},
        {"max_sleep_us", &max_sleep_us, "sleep up to this long in each step"},
        {"label", &label, "stored in snapshots; another label is refused"},
    };
  }
};

class CountingEnv final : public Env {
 public:
  struct Shared final : Task, std::enable_shared_from_this<Shared> {
    CountingConfig config;
    size_t obs_bytes;

    explicit Shared(CountingConfig given) : config(std::move(given)) {
      obs_bytes = ObsField(config).RowBytes();
      if (config.num_actions < 1 || config.num_stages < 1 ||
          config.episode_steps < 1 || obs_bytes < sizeof(Counters)) {
        throw std::invalid_argument(
            "a counting env needs num_actions, num_stages and episode_steps of "
            "1 or more and an observation of at least " +
            std::to_string(sizeof(Counters)) + " bytes");
      }
    }
    std::vector<Field> Fields() const override {
      constexpr double kBig = 2147483647.0;
      return {ObsField(config),
              {"info:episode", DType::kInt32, {}, 0, kBig},
              {"info:total", DType::kInt64, {}, 0, kBig},
              {"info:hash", DType::kInt64, {}, -9.2e18, 9.2e18},
              {"info:status", DType::kInt8, {}, -128, 127},
              {"info:pair", DType::kInt32, {2}, 0, kBig},
              {"info:half", DType::kFloat32, {}, 0, kBig},
              {"info:start", DType::kInt32, {}, -1, kBig}};
    }
    int NumActions() const override { return config.num_actions; }
    int NumStages() const override { return config.num_stages; }
    uint64_t MaxSeed() const override {
      return std::numeric_limits<uint64_t>::max();
    }
    PictureSize Picture() const override {
      return {kRenderHeight, kRenderWidth};
    }
    void CheckSnapshot(std::span<const std::byte> blob) const override {
      if (blob.size() != kLabelBytes + sizeof(Counters)) {
        throw std::invalid_argument(
            "this snapshot has " + std::to_string(blob.size()) +
            " bytes, but this environment's snapshots have " +
            std::to_string(kLabelBytes + sizeof(Counters)));
      }
      const Label label = LabelOf(*this);
      if (std::memcmp(blob.data(), label.text, kLabelBytes) == 0) return;
      throw std::invalid_argument("saved under another label than " +
                                  config.label);
    }
    std::unique_ptr<Scratch> MakeScratch() const override {
      return std::make_unique<Scratch>();
    }
    std::unique_ptr<Env> MakeEnv(int env_id, uint64_t seed) const override {
      return std::make_unique<CountingEnv>(shared_from_this(), env_id, seed);
    }
  };
  static constexpr int kRenderHeight = 6;
  static constexpr int kRenderWidth = 8;

  static std::vector<std::string> FieldNames() {
    return {"obs",         "info:episode", "info:total", "info:hash",
            "info:status", "info:pair",    "info:half",  "info:start"};
  }

  CountingEnv(std::shared_ptr<const Shared> shared, int env_id, uint64_t seed)
      : shared_(std::move(shared)), env_id_(env_id) {
    Seed(seed);
    if (env_id == shared_->config.throw_construct_env) {
      throw std::runtime_error("told to fail in its constructor");
    }
  }

  void Seed(uint64_t seed) override {
    counters_.seed = seed;
    counters_.rng = Mix(seed);  // neighbouring seeds share no draws
  }

  void Reset(Scratch&, const StartSet* starts) override {
    MaybeThrow(0);
    counters_.step = 0;
    ++counters_.episode;
    counters_.start = -1;
    if (starts != nullptr) {
      counters_.start =
          starts->Pick(static_cast<double>(Draw() >> 11) * 0x1p-53);
    }
    if (starts != nullptr && counters_.start >= starts->num_stages) {
      counters_.hash = Read(starts->state(counters_.start)).hash;
    } else {
      // Depends only on the seed and the number of draws, like the random start
      // of a game.
      counters_.hash = Draw();
    }
  }

  Outcome Step(int32_t action, Scratch&) override {
    const CountingConfig& config = shared_->config;
    if (config.max_sleep_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(
          Mix(counters_.hash) % static_cast<uint64_t>(config.max_sleep_us)));
    }
    ++counters_.step;
    ++counters_.total;
    MaybeThrow(counters_.total);
    counters_.hash = Mix(counters_.hash ^ static_cast<uint64_t>(action));
    const auto step = static_cast<int>(counters_.step);
    return {static_cast<float>(action) + 0.5f, step >= config.episode_steps,
            config.truncate_steps > 0 && step >= config.truncate_steps};
  }

  void Write(const Row& row) const override {
    std::memset(row.at<uint8_t>(0), static_cast<uint8_t>(counters_.hash),
                shared_->obs_bytes);
    std::memcpy(row.at<uint8_t>(0), &counters_, sizeof(counters_));
    *row.at<int32_t>(1) = static_cast<int32_t>(counters_.episode);
    *row.at<int64_t>(2) = static_cast<int64_t>(counters_.total);
    *row.at<int64_t>(3) = static_cast<int64_t>(counters_.hash);
    *row.at<int8_t>(4) = static_cast<int8_t>(counters_.step);
    row.at<int32_t>(5)[0] = static_cast<int32_t>(counters_.step);
    row.at<int32_t>(5)[1] = static_cast<int32_t>(counters_.step) + 1;
    *row.at<float>(6) = static_cast<float>(counters_.step) / 2;
    *row.at<int32_t>(7) = counters_.start;
  }

  size_t SnapshotBytes() const override {
    return kLabelBytes + sizeof(counters_);
  }

  void Snapshot(std::byte* out) const override {
    const Label label = LabelOf(*shared_);
    std::memcpy(out, label.text, kLabelBytes);
    std::memcpy(out + kLabelBytes, &counters_, sizeof(counters_));
  }

  void Restore(const std::byte* blob, RngMode rng) override {
    const uint64_t kept = counters_.rng;
    counters_ = Read(blob);
    if (rng == RngMode::kKeep) counters_.rng = kept;
  }

  void Render(Scratch&, uint8_t* rgb) const override {
    for (int i = 0; i < kRenderHeight * kRenderWidth; ++i) {
      rgb[3 * i] = static_cast<uint8_t>(env_id_);
      rgb[3 * i + 1] = static_cast<uint8_t>(counters_.step);
      rgb[3 * i + 2] = static_cast<uint8_t>(i);
    }
  }

 private:
  struct Counters {
    uint64_t seed = 0;
    uint64_t rng = 0;
    uint64_t hash = 0;
    uint64_t total = 0;
    uint32_t episode = 0;
    uint32_t step = 0;
    int32_t start = -1;
    uint32_t reserved = 0;
  };
  static_assert(std::has_unique_object_representations_v<Counters>,
                "a snapshot contains values only, no padding");
  static constexpr size_t kLabelBytes = 16;
  struct Label {
    char text[kLabelBytes] = {};
  };

  static Field ObsField(const CountingConfig& config) {
    return {"obs", DType::kUint8, config.obs_shape, 0, 255, true};
  }

  static uint64_t Mix(uint64_t value) {  // splitmix64
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

  uint64_t Draw() { return Mix(counters_.rng++); }

  static Counters Read(const std::byte* blob) {
    Counters counters;
    std::memcpy(&counters, blob + kLabelBytes, sizeof(counters));
    return counters;
  }

  static Label LabelOf(const Shared& shared) {
    Label label;
    const std::string& text = shared.config.label;
    std::memcpy(label.text, text.data(), std::min(text.size(), kLabelBytes));
    return label;
  }

  void MaybeThrow(uint64_t life_step) const {
    const CountingConfig& config = shared_->config;
    if (env_id_ == config.throw_env &&
        static_cast<int64_t>(life_step) == config.throw_step) {
      throw std::runtime_error("told to fail at step " +
                               std::to_string(life_step));
    }
  }

  std::shared_ptr<const Shared> shared_;
  int env_id_;
  Counters counters_;
};

}  // namespace pool
