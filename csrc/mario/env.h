// The Super Mario Bros. task for a pool (contract: pool/spec.h): frame skip,
// rewards, ends of episodes, info, observations and snapshots. Reward and
// episode semantics are those of gym-super-mario-bros 7.4.0; what goes beyond
// it is off by default. Of the pool it knows spec.h and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mario/config.h"
#include "mario/game.h"
#include "mario/observation.h"
#include "mario/random.h"
#include "mario/rewards.h"
#include "nes/console.h"
#include "pool/spec.h"

namespace mario {

/// Why an episode ended; info:end_reason holds the number.
enum class EndReason : uint8_t {
  kNone = 0,
  kDeath = 1,      // single stage
  kFlag = 2,       // stage finished; in the whole game: the last castle
  kGameOver = 3,   // whole game: no life left
  kLife = 4,       // whole game with episodic_life: a life was lost
  kWrongPass = 5,  // end_on_wrong_pass
  kStall = 6,      // stall_steps (a truncation)
};

/// The info fields of one result, in the order of Fields().
struct Info {
  // gym-super-mario-bros 7.4.0
  int32_t coins, life, score, stage, time, world, x_pos, y_pos;
  // beyond it
  int32_t area;          // room of the world, as upstream counts
  int32_t area_pointer;  // which room's data is loaded
  int32_t best_x;        // best x_pos in this (level, area) so far
  int32_t loop;          // see Facts::loop
  int32_t start = -1;    // number in the pool::StartSet, -1 without one
  int8_t status;         // 0 small, 1 tall, 2 fireball
  int8_t end_reason;
  uint8_t flag_get;
  uint8_t wrong_pass;  // a maze was passed the wrong way in this step
  RewardParts reward;
};

/// Everything that changes beside console, frames and generators; plain data.
struct Episode {
  FrameCounter counter;
  Info info;
  int32_t steps_without_progress;
  uint8_t buttons_last;  // what sticky actions repeat
  uint8_t plays_on;      // the next reset goes on after a lost life
  uint8_t reserved[6];
};
static_assert(sizeof(Episode) % 8 == 0, "no padding behind it in a snapshot");

class Env {
 public:
  static constexpr int kRenderHeight = nes::kScreenHeight;
  static constexpr int kRenderWidth = nes::kScreenWidth;

  /// A game at the point where an episode begins, with its observation.
  struct StartPoint {
    nes::State state;
    FrameRecord records[2];
    std::optional<Observation> observation;
  };

  /// What all environments of a pool have in common. Thread-safe.
  class Shared {
   public:
    /// Throws std::invalid_argument on an option outside its range.
    Shared(Config config, std::shared_ptr<const nes::Cartridge> cartridge);
    // Observations point into it.
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    const Config& config() const { return config_; }
    const std::shared_ptr<const nes::Cartridge>& cartridge() const {
      return cartridge_;
    }
    const ObservationSpec& observation() const { return observation_; }
    const std::vector<uint8_t>& buttons() const { return buttons_; }
    bool whole_game() const { return whole_game_; }
    RewardKind reward() const { return reward_; }
    uint64_t sticky_threshold() const { return sticky_threshold_; }
    /// FNV-1a over every option that changes what an environment does.
    uint64_t config_hash() const { return config_hash_; }

    /// Stages to choose from; empty for the whole game.
    const std::vector<Target>& stages() const { return stages_; }
    /// The same for the whole game, which is one.
    int num_stages() const { return static_cast<int>(starts_.size()); }
    /// Where episodes of stages()[index] begin (0 for the whole game);
    /// played once, by the first environment that asks.
    const StartPoint& start(int index, int env_id) const;

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
    uint64_t sticky_threshold_ = 0;
    uint64_t config_hash_ = 0;

    struct LazyStart {
      std::once_flag once;
      StartPoint point;
    };
    mutable std::vector<std::unique_ptr<LazyStart>> starts_;
  };

  /// What a worker lends to the environment it is stepping.
  struct Scratch {
    explicit Scratch(const Shared& shared);
    nes::Console console;  // runs remembered frames again, with pixels
    std::vector<uint8_t> pixels[2];
    /// Not null: Step appends the picture of each of its frames.
    std::vector<uint8_t>* film = nullptr;
    /// Not null: Step leaves the work RAM here from which it read the info; a
    /// skipped wait changes the game's own after that.
    uint8_t* info_ram = nullptr;
  };

  static std::vector<pool::Field> Fields(const Shared& shared);
  static std::vector<std::string> FieldNames();
  static int NumActions(const Shared& shared) {
    return static_cast<int>(shared.buttons().size());
  }
  static int NumStages(const Shared& shared) { return shared.num_stages(); }

  Env(std::shared_ptr<const Shared> shared, int env_id, uint64_t seed);

  void Seed(uint64_t seed);
  void Reset(Scratch& scratch, const pool::StartSet* starts = nullptr);
  /// A reset to number `stage` of Shared::stages(), whatever the options say.
  void ResetToStage(int stage, Scratch& scratch);
  /// An episode that begins where a console's save (nes::Console::Save) stands
  /// after some frames, two at least: what a pool with any options would have
  /// observed of them is its frame stack, the first of it repeated if they are
  /// fewer. Throws std::invalid_argument for another ROM's save.
  void ResetToConsoleSave(std::span<const std::byte> save,
                          std::span<const uint8_t> buttons, Scratch& scratch);
  pool::Outcome Step(int32_t action, Scratch& scratch);
  void Write(const pool::Row& row) const;

  size_t SnapshotBytes() const;
  void Snapshot(std::byte* out) const;
  static void CheckSnapshot(const Shared& shared, const std::byte* blob);
  void Restore(const std::byte* blob, pool::RngMode mode);
  /// The picture of the last frame that was run, (240, 256, 3) RGB.
  void Render(Scratch& scratch, uint8_t* rgb) const;
  /// Palette indices, `count` of them, to RGB.
  static void ToRgb(const uint8_t* pixels, size_t count, uint8_t* rgb);

  const Info& info() const { return episode_.info; }
  Game& game() { return game_; }

 private:
  /// Which frame (Game::frames) each of the scratch's pictures shows.
  struct Drawn {
    uint64_t frame[2] = {0, 0};
  };
  struct SnapshotParts;

  void ApplySeed();
  int ChooseStage();
  bool PlaysOn(Scratch& scratch);
  void BeginEpisode();
  void ResetToSnapshot(const std::byte* blob);
  int ChooseNoops();
  void RunNoops(int stage);
  void LoadStart(int stage);
  uint8_t Sticky(uint8_t buttons);
  EndReason FindEnd(const Facts& facts, const Tally& tally) const;
  void ReadInfo(const Facts& facts);
  void Observe(const Drawn& drawn, Scratch& scratch);
  void LoadGame(const SnapshotParts& parts);

  std::shared_ptr<const Shared> shared_;
  int env_id_;
  Game game_;
  Observation observation_;
  Episode episode_{};
  pool::Outcome outcome_;
  Random random_{};
  LegacyRandomState stage_random_{};
  bool reseed_ = false;
  uint64_t seed_ = 0;
};

}  // namespace mario
