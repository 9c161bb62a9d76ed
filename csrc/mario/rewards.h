// The reward of a step: FrameCounter adds its frames one by one to StepStats,
// and SumReward computes one of three rewards from the sums.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "mario/config.h"
#include "mario/game.h"
#include "mario/packed.h"

namespace mario {

enum class RewardKind : uint8_t {
  kClassic,   // gym-super-mario-bros 7.4.0
  kProgress,  // ours: new best positions, and the weights of the options
  kV9,        // gym-super-mario-bros 9.1.0
};

/// Throws std::invalid_argument on an unknown name.
RewardKind ParseReward(const std::string& name);

/// The parts of a step's reward; their sum is the reward. Parts that a reward
/// does not have stay 0.
struct RewardParts {
  float progress, clock, death, score, step, flag, wrong_pass, coins, powerup;
  float clipped;  // what clipping added or removed
};
template <>
inline constexpr bool kIsPacked<RewardParts> =
    IsFilledBy<RewardParts, &RewardParts::progress, &RewardParts::clock,
               &RewardParts::death, &RewardParts::score, &RewardParts::step,
               &RewardParts::flag, &RewardParts::wrong_pass,
               &RewardParts::coins, &RewardParts::powerup,
               &RewardParts::clipped>();

/// The best position in each room seen in an episode.
struct BestPositions {
  static constexpr int kRooms = 128;
  uint32_t key[kRooms];
  int32_t best[kRooms];
  int32_t count;
  int32_t current;  // index of the room of the last update

  /// Forgets all rooms. The arrays are cleared too, because snapshots contain
  /// them and equal states must have equal bytes.
  void Clear() { *this = {}; }
  int32_t best_here() const { return count > 0 ? best[current] : 0; }
  /// Pixels by which x beats the best of its room; 0 in a room's first frame.
  /// `is_new_room` becomes true when the room was not seen before.
  int Update(uint32_t room, int x, bool* is_new_room);
};

/// The sums over the frames of one step.
struct StepStats {
  int dx = 0;            // without jumps
  int64_t ticks = 0;     // <= 0
  int deaths = 0;        // frames in which the player was dying or dead
  int room_gain = 0;     // pixels of new best positions, by room
  int episode_gain = 0;  // the same over all rooms, without jumps
  int wrong_passes = 0;
  int flags = 0;
  int completions = 0;  // the first flag of the episode
  int coins = 0;
  int power_levels = 0;  // negative when some were lost
  int64_t points = 0;
  int classic = 0;        // the classic reward, clipped in each frame
  int v9_hundredths = 0;  // the v9 reward in hundredths, likewise
  bool progressed = false;
};

/// The state that counting keeps from frame to frame; plain data.
struct FrameCounter {
  BestPositions positions;
  int32_t x_last, x_best, time_last, score_last, coins_last;
  uint8_t page_last, loop_command_last, loop_correct_last, loop_pass_last;
  uint8_t power_last, flag_last, completed;
  uint8_t reserved;

  /// Starts an episode at this state. Only this function clears the counts: the
  /// whole game continues to count after a lost life, as upstream does.
  void Begin(const RamView& view);
  /// Adds one frame to `stats`, before the waits that follow it are skipped.
  void Count(const RamView& view, StepStats* stats);
  /// Whether every number is in the range that indices and sums need.
  bool IsPlausible() const;

 private:
  bool SeeWrongPass(const RamView& view);
};
static_assert(std::is_trivially_copyable_v<FrameCounter>);

/// The scale that reward_scale=0 stands for.
double NaturalScale(RewardKind kind);

/// Returns the reward of a step and fills in its parts. `config` has the
/// weights of kProgress, reward_scale and reward_clip.
float SumReward(RewardKind kind, const Config& config, const StepStats& stats,
                RewardParts* parts);

}  // namespace mario
