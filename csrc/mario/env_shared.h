// The data that all environments of a pool share: checked options, tables, and
// games prepared at the points where episodes begin.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mario/config.h"
#include "mario/game.h"
#include "mario/observation.h"
#include "mario/rewards.h"
#include "nes/cartridge.h"
#include "nes/state.h"
#include "nes/timing.h"
#include "pool/spec.h"

namespace mario {

/// A game at the point where an episode begins, with its observation.
struct StartPoint {
  nes::State state;
  FrameRecord records[2];
  std::optional<Observation> observation;
  std::vector<uint8_t> movie;  // buttons of all frames since power-on
};

/// The data that all environments of a pool share. Thread-safe.
class EnvShared final : public pool::Task,
                        public std::enable_shared_from_this<EnvShared> {
 public:
  /// Throws std::invalid_argument on an option outside its range, and on a
  /// cartridge with CHR RAM.
  EnvShared(Config config, std::shared_ptr<const nes::Cartridge> cartridge);
  // Observations point into this object.
  EnvShared(const EnvShared&) = delete;
  EnvShared& operator=(const EnvShared&) = delete;

  std::vector<pool::Field> Fields() const override;
  int NumActions() const override { return static_cast<int>(buttons_.size()); }
  /// 1 for the whole game.
  int NumStages() const override { return static_cast<int>(starts_.size()); }
  /// The generator that draws the stages takes seeds of 32 bits, as NumPy's
  /// RandomState does.
  uint64_t MaxSeed() const override {
    return config_.random_stages ? UINT32_MAX : UINT64_MAX;
  }
  PictureSize Picture() const override {
    return {nes::kScreenHeight, nes::kScreenWidth};
  }
  void CheckSnapshot(std::span<const std::byte> blob) const override;
  std::vector<std::pair<const char*, std::string>> Status() const override;
  std::unique_ptr<pool::Scratch> MakeScratch() const override;
  std::unique_ptr<pool::Env> MakeEnv(int env_id, uint64_t seed) const override;

  const Config& config() const { return config_; }
  const std::shared_ptr<const nes::Cartridge>& cartridge() const {
    return cartridge_;
  }
  const ObservationSpec& observation() const { return observation_; }
  const std::vector<uint8_t>& buttons() const { return buttons_; }
  bool whole_game() const { return whole_game_; }
  RewardKind reward() const { return reward_; }
  nes::Timing timing() const { return timing_; }
  nes::Engine engine() const { return engine_; }
  /// Why the interpreter runs in place of engine(); empty if it does not.
  const std::string& engine_problem() const { return engine_problem_; }
  uint64_t sticky_threshold() const { return sticky_threshold_; }
  /// FNV-1a over the options that change the behaviour of an environment and
  /// differ from their defaults.
  uint64_t config_hash() const { return config_hash_; }

  /// The stages to choose from; empty for the whole game.
  const std::vector<Target>& stages() const { return stages_; }
  /// Where episodes of stages()[index] begin (index 0 for the whole game). The
  /// game is played up to this point once, by the first environment that asks
  /// for it.
  const StartPoint& start(int index, int env_id) const;
  /// Game::random_bits where the task of a stage alone begins; 0 if there is no
  /// such stage. The world and the stage are those of `view`.
  uint64_t RandomBitsOf(RamView view, int env_id) const;

 private:
  void ChooseStages();
  StartPoint MakeStart(int index, int env_id) const;

  Config config_;
  std::shared_ptr<const nes::Cartridge> cartridge_;
  ObservationSpec observation_;
  std::vector<uint8_t> buttons_;
  std::vector<Target> stages_;
  bool whole_game_ = false;
  RewardKind reward_;
  nes::Timing timing_;
  nes::Engine engine_;
  std::string engine_problem_;
  uint64_t sticky_threshold_ = 0;
  uint64_t config_hash_ = 0;

  struct LazyStart {
    std::once_flag once;
    StartPoint point;
  };
  mutable std::vector<std::unique_ptr<LazyStart>> starts_;
  mutable std::mutex random_bits_mutex_;
  mutable std::map<std::pair<int, int>, uint64_t> random_bits_;
};

}  // namespace mario
