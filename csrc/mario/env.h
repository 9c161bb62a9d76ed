// The Super Mario Bros. task for a pool (contract: pool/spec.h): frame skip,
// rewards, ends of episodes, info, observations and snapshots. Reward and
// episode semantics are those of gym-super-mario-bros 7.4.0; additions are off
// by default. The task depends on spec.h of the pool and on no other file of
// the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mario/env_shared.h"
#include "mario/game.h"
#include "mario/observation.h"
#include "mario/packed.h"
#include "mario/pictures.h"
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
  // additions
  int32_t area;          // room of the world, as upstream counts
  int32_t area_pointer;  // which room's data is loaded
  int32_t best_x;        // best x_pos in this (level, area) so far
  int32_t loop;          // see RamView::loop
  int32_t start = -1;    // number in the pool::StartSet, -1 without one
  int8_t status;         // 0 small, 1 tall, 2 fireball
  int8_t end_reason;
  uint8_t flag_get;
  uint8_t wrong_pass;  // a maze was passed the wrong way in this step
  RewardParts reward;
};
template <>
inline constexpr bool kIsPacked<Info> =
    IsFilledBy<Info, &Info::coins, &Info::life, &Info::score, &Info::stage,
               &Info::time, &Info::world, &Info::x_pos, &Info::y_pos,
               &Info::area, &Info::area_pointer, &Info::best_x, &Info::loop,
               &Info::start, &Info::status, &Info::end_reason, &Info::flag_get,
               &Info::wrong_pass, &Info::reward>();

/// The state of an episode other than console, frames and generators; plain
/// data.
struct Episode {
  FrameCounter counter;
  Info info;
  int32_t steps_without_progress;
  uint8_t buttons_last;  // the buttons that sticky actions repeat
  uint8_t continues;     // the next reset continues after a lost life
  uint8_t frames_of_a;   // frames that A has been held, for turbo_swim
  uint8_t reserved[5];
};
template <>
inline constexpr bool kIsPacked<Episode> =
    IsFilledBy<Episode, &Episode::counter, &Episode::info,
               &Episode::steps_without_progress, &Episode::buttons_last,
               &Episode::continues, &Episode::frames_of_a,
               &Episode::reserved>();

struct SnapshotParts;  // snapshot.cc

class Env final : public pool::Env {
 public:
  using Shared = EnvShared;

  /// Memory that a worker lends to the environment that it steps.
  struct Scratch final : pool::Scratch {
    explicit Scratch(const Shared& shared);
    nes::Console redraw_console;  // see Redraw
    Pictures pictures;
    /// Pictures for people: frame number n is in pixels[n & 1].
    std::vector<uint8_t> pixels[2];
  };

  /// The names in EnvShared::Fields() under default options: EnvPool needs them
  /// as class attributes, before any EnvShared exists.
  static std::vector<std::string> FieldNames();

  Env(std::shared_ptr<const Shared> shared, int env_id, uint64_t seed);

  void Seed(uint64_t seed) override;
  /// `scratch` is an Env::Scratch, here and below.
  void Reset(pool::Scratch& scratch,
             const pool::StartSet* starts = nullptr) override;
  /// Resets to entry `stage` of Shared::stages(), regardless of the options.
  void ResetToStage(int stage, Scratch& scratch);
  /// Begins an episode at the state that a console's save (nes::Console::Save)
  /// reaches after the given frames, at least two. The frame stack holds these
  /// frames as a pool with any options would have observed them; if they are
  /// too few, the first one is repeated. The save was taken under
  /// Timing::kConsole, regardless of the option `timing`. Throws
  /// std::invalid_argument for the save of another ROM and for a save with
  /// cartridge RAM.
  void ResetToConsoleSave(std::span<const std::byte> save,
                          std::span<const uint8_t> buttons, Scratch& scratch);
  /// Begins an episode at the state of such a save, under this environment's
  /// timing, without running a frame. The save lacks the picture of the frame
  /// before it, so picture and frame stack show the frame that begins there.
  void ResetToConsole(std::span<const std::byte> save, Scratch& scratch);
  pool::Outcome Step(int32_t action, pool::Scratch& scratch) override;
  void Write(const pool::Row& row) const override;

  /// Does the same as Step and keeps data for a viewer. `info_ram`,
  /// nes::kRamBytes long, receives work RAM at the moment at which the info was
  /// read (a skipped wait changes the game's RAM after that). The picture of
  /// each frame is appended to `film` unless it is null. Without `skip_waits`
  /// no wait is skipped; the caller may run SkipWaits after the step.
  pool::Outcome StepForViewer(int32_t action, Scratch& scratch,
                              uint8_t* info_ram, std::vector<uint8_t>* film,
                              bool skip_waits);
  /// Returns whether a wait was skipped that ends a step (step_ends_at_waits).
  bool SkipWaits();

  size_t SnapshotBytes() const override;
  void Snapshot(std::byte* out) const override;
  void Restore(const std::byte* blob, pool::RngMode mode) override;
  /// Writes the picture of the last frame that was run, (240, 256, 3) RGB.
  void Render(pool::Scratch& scratch, uint8_t* rgb) const override;
  /// Converts `count` palette indices to RGB.
  static void ToRgb(const uint8_t* pixels, size_t count, uint8_t* rgb);

  Game& game() { return game_; }
  FrameCounter& counter() { return episode_.counter; }

 private:
  /// Numbers (Game::frames) of the frames of a step that have been drawn.
  struct DrawnFrames {
    uint64_t kept = 0;  // by Pictures::Keep
    uint64_t made = 0;  // by Pictures::Make, complete with its maximum
    // For viewers: which frame each of the scratch's pixels shows.
    bool watched = false;
    uint64_t number[2] = {0, 0};
  };
  /// A step under way.
  struct StepProgress {
    uint8_t buttons;
    int frames = 0;  // run so far, without skipped waits
    bool is_over = false;
    EndReason end = EndReason::kNone;
    StepStats stats;
    DrawnFrames drawn;
  };
  void ApplySeed();
  int ChooseStage();
  bool ContinueGame(Scratch& scratch);
  void BeginEpisode();
  void ResetToSnapshot(const std::byte* blob);
  int ChooseAge();
  int ChooseNoops();
  void RunNoops(int stage);
  void LoadStart(int stage);
  uint8_t ButtonsOfFrame(uint8_t buttons);
  uint8_t ApplyTurbo(uint8_t buttons);
  bool IsObserved(const StepProgress& step) const;
  void RunFrameOfStep(StepProgress* step, Scratch& scratch);
  void RunFrameToWatch(StepProgress* step, bool draw, Scratch& scratch);
  void CountFrameOfStep(StepProgress* step);
  bool SkipWaitsOfStep(StepProgress* step);
  pool::Outcome FinishStep(const StepProgress& step, Scratch& scratch);
  EndReason FindEnd(const RamView& view, const StepStats& stats) const;
  void ReadInfo(const RamView& view);
  void RedrawAndObserve(const DrawnFrames& drawn, Scratch& scratch);
  void MakeFrames(const DrawnFrames& drawn, Scratch& scratch);
  void MakeFramesWatched(const DrawnFrames& drawn, Scratch& scratch);
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
