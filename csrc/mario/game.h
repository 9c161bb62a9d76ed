// A console with Super Mario Bros. in it, and the waits that are skipped (start
// screen, deaths, area changes), with the behaviour of
// gym-super-mario-bros 7.4.0 (gym_super_mario_bros/smb_env.py) frame by frame.
// It knows nothing of rewards, episodes or observations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "mario/ram_view.h"
#include "nes/canvas.h"
#include "nes/console.h"

namespace mario {

/// A stage to be loaded instead of the one the game would start with.
/// `area` counts the rooms of a world: it is what selects the level data.
struct Target {
  int world;  // from 1; 10 to 13 are A to D of the Lost Levels
  int stage;  // from 1
  int area;   // from 1

  static constexpr int kStages = 4;  // of a world
  static constexpr int Worlds(bool lost_levels) { return lost_levels ? 13 : 8; }

  /// The room in which a stage begins. Throws std::invalid_argument for a
  /// stage that does not exist.
  static Target Of(int world, int stage, bool lost_levels);
};

/// A frame that was run: enough to run it again with pixels.
struct FrameRecord {
  nes::State before;
  uint8_t buttons;
  uint8_t reserved[7];
};

/// Draws a frame that was run: runs it once more, on `console`, which is
/// another one than the game's.
void Redraw(const FrameRecord& record, nes::Console* console, uint8_t* pixels);
void Redraw(const FrameRecord& record, nes::Console* console,
            nes::Canvas* canvas);

/// Throws std::runtime_error if the program has used RAM of the cartridge at
/// $6000-$7FFF, which is in no State: snapshots and redrawn frames would lack
/// it. No version of the game has any.
void RequireNoCartridgeRam(const nes::Console& console);

class Game {
 public:
  /// No skipped wait is longer than this in the real game.
  static constexpr int kSkipLimitFrames = 1200;
  /// Nor longer than this, where waits are not cut.
  static constexpr int kPlayLimitFrames = 4000;
  /// But for the start screen of the Lost Levels under nes-py's timing:
  /// upstream presses Start in a rhythm that some stages of worlds A to D miss
  /// for 13,000 frames.
  static constexpr int kStartLimitFramesOfNesPy = 20'000;

  /// `env_id` stands in error messages; `remember_two` keeps two frame records.
  Game(std::shared_ptr<const nes::Cartridge> cartridge, nes::Timing timing,
       nes::Engine engine, int env_id, bool remember_two);

  RamView ram_view() const { return RamView(console_.ram()); }
  nes::Console& console() { return console_; }
  const nes::Console& console() const { return console_; }

  /// Runs one frame and remembers the state before it. `pixels` as in
  /// nes::Console::RunFrame. Throws as RequireNoCartridgeRam.
  void RunFrame(uint8_t buttons, uint8_t* pixels) {
    Remember(buttons);
    console_.RunFrame(buttons, pixels);
    CountFrame();
  }
  /// The same, drawn onto a canvas, or onto none.
  void RunFrameOnto(uint8_t buttons, nes::Canvas* canvas) {
    Remember(buttons);
    console_.RunFrameOnto(buttons, canvas);
    CountFrame();
  }

  /// Switches on with `power_on_ram` in every byte of work RAM, starts a game,
  /// waits until its clock ticks. Without a target the game begins at its
  /// first stage. Without `cut_waits` RAM is written to for the target alone,
  /// and the player stands there when it returns.
  void StartGame(const std::optional<Target>& target, uint8_t power_on_ram,
                 bool cut_waits);

  /// What follows a frame that did not end the episode: runs through deaths,
  /// area changes and cut-scenes. `whole_game`: also through the end of a
  /// world. `cut_waits`: writes to RAM so that most are short.
  void SkipWaits(bool whole_game, bool cut_waits);

  /// Appends the buttons of every frame from now on; null: not any more.
  void set_movie(std::vector<uint8_t>* movie) { movie_ = movie; }

  /// The frames run last: age 0 is the newest, age 1 the one before it (only
  /// with remember_two). Both are there after StartGame.
  const FrameRecord& record(int age) const { return records_[newest_ ^ age]; }
  FrameRecord& record(int age) { return records_[newest_ ^ age]; }
  /// Frames run in all, skipped ones included.
  uint64_t frames() const { return frames_; }

 private:
  class Loop;

  void SkipEndOfWorld();
  void PlayWaits();
  void Remember(uint8_t buttons) {
    if (remember_two_) newest_ ^= 1;
    FrameRecord& record = records_[newest_];
    record.before = console_.state();
    record.buttons = buttons;
    if (movie_ != nullptr) [[unlikely]]
      movie_->push_back(buttons);
  }
  void CountFrame() {
    ++frames_;
    if (console_.uses_prg_ram()) [[unlikely]]
      RequireNoCartridgeRam(console_);
  }

  nes::Console console_;
  int env_id_;
  bool remember_two_;
  int newest_ = 0;
  uint64_t frames_ = 0;
  std::vector<uint8_t>* movie_ = nullptr;
  FrameRecord records_[2]{};
};

}  // namespace mario
