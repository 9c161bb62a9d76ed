// A console with Super Mario Bros. in it, and the waits that are skipped (start
// screen, deaths, area changes), with the behaviour of gym-super-mario-bros
// 7.4.0 (gym_super_mario_bros/smb_env.py) frame by frame. Rewards, episodes and
// observations are outside this file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "mario/ram_view.h"
#include "nes/canvas.h"
#include "nes/console.h"

namespace mario {

/// A stage to load in place of the one that the game starts with. `area` counts
/// the rooms of a world; it selects the level data.
struct Target {
  int world;  // from 1; 10 to 13 are A to D of the Lost Levels
  int stage;  // from 1
  int area;   // from 1

  static constexpr int kStages = 4;  // of a world
  static constexpr int Worlds(bool lost_levels) { return lost_levels ? 13 : 8; }

  /// Returns the room in which a stage begins. Throws std::invalid_argument for
  /// a stage that does not exist.
  static Target Of(int world, int stage, bool lost_levels);
};

/// A frame that was run, with enough data to run it again and draw it.
struct FrameRecord {
  nes::State before;
  uint8_t buttons;
  uint8_t reserved[7];
};

/// Draws a frame that was run by running it again on `console`, which must not
/// be the game's own console.
void Redraw(const FrameRecord& record, nes::Console* console, uint8_t* pixels);
void Redraw(const FrameRecord& record, nes::Console* console,
            nes::Canvas* canvas);

/// Throws std::runtime_error if the program has used cartridge RAM at
/// $6000-$7FFF, which a State does not contain, so that snapshots and redrawn
/// frames would lack it. No version of the game uses cartridge RAM.
void RequireNoCartridgeRam(const nes::Console& console);

class Game {
 public:
  /// In the real game no skipped wait is longer than this.
  static constexpr int kSkipLimitFrames = 1200;
  /// The largest frame_skip.
  static constexpr int kMostFramesOfStep = 16;
  /// In the real game no wait is longer than this where waits are not cut.
  static constexpr int kPlayLimitFrames = 4000;
  /// The limit for the start screen under nes-py's timing. In the Lost Levels
  /// upstream presses Start in a rhythm that some stages of worlds A to D miss
  /// for 13,000 frames.
  static constexpr int kStartLimitFramesOfNesPy = 20'000;

  /// `env_id` is used in error messages; `remember_two` keeps two frame
  /// records.
  Game(std::shared_ptr<const nes::Cartridge> cartridge, nes::Timing timing,
       nes::Engine engine, int env_id, bool remember_two);

  RamView ram_view() const { return RamView(console_.ram()); }
  nes::Console& console() { return console_; }
  const nes::Console& console() const { return console_; }

  /// Runs one frame and keeps the state before it. `pixels` is as in
  /// nes::Console::RunFrame. Throws what RequireNoCartridgeRam throws.
  void RunFrame(uint8_t buttons, uint8_t* pixels) {
    Remember(buttons);
    console_.RunFrame(buttons, pixels);
    CountFrame();
  }
  /// Does the same and draws onto a canvas; null: draws nothing. Without
  /// `remember` the state is not kept if it can be reached again from the
  /// newest record, which takes less time; Recall makes up for that.
  void RunFrameOnto(uint8_t buttons, nes::Canvas* canvas, bool remember) {
    if (remember || remember_two_ || ram_written_ ||
        since_record_ == kMostFramesOfStep) {
      Remember(buttons);
    } else {
      buttons_since_record_[since_record_++] = buttons;
      AddToMovie(buttons);
    }
    console_.RunFrameOnto(buttons, canvas);
    CountFrame();
  }
  /// Makes the record of the newest frame if it was not remembered, by running
  /// the frames before it again on `console`.
  void Recall(nes::Console* console);

  /// Powers on with `power_on_ram` in every byte of work RAM, starts a game and
  /// waits until its clock ticks. Without a target the game begins at its first
  /// stage. Without `cut_waits` the function writes to RAM only to select the
  /// target, and the player has control when it returns.
  void StartGame(const std::optional<Target>& target, uint8_t power_on_ram,
                 bool cut_waits);

  /// To be called after a frame that did not end the episode: runs through
  /// deaths, area changes and cut-scenes. `whole_game`: also through the end of
  /// a world. `cut_waits`: writes to RAM to shorten most waits.
  void SkipWaits(bool whole_game, bool cut_waits);
  /// Kinds of waits: none, within a level, before a level or a life, or one
  /// that ends without control, such as that after the last life.
  enum class Wait : uint8_t { kNone, kInLevel, kStart, kEnd };
  /// Plays the waits at their full length, and then again with a pause in which
  /// only the random numbers go on. A level or a life begins with those that
  /// `bits_of_start` names (see random_bits; 0: no pause), and a level
  /// continues with those that it would have if the waits were cut.
  Wait PlayWaitsAndPause(const std::function<uint64_t(RamView)>& bits_of_start);
  /// Where the player has control: pauses until the random numbers are these.
  void PauseUntil(uint64_t bits);
  /// The game's register of random bits, which is never 0.
  uint64_t random_bits() const;
  /// Sets random numbers and counters to those of so many frames later.
  void AdvanceRandomNumbers(int frames);

  /// Appends the buttons of every frame from now on; null: stops.
  void set_movie(std::vector<uint8_t>* movie) { movie_ = movie; }

  /// The records of the last frames: age 0 is the newest, age 1 the one before
  /// it (only with remember_two). Both exist after StartGame.
  const FrameRecord& record(int age) const { return records_[newest_ ^ age]; }
  FrameRecord& record(int age) { return records_[newest_ ^ age]; }
  /// To be called after a jump to a state whose earlier frames are unknown: the
  /// records are of the frame that begins there, with the buttons of the pad.
  void ForgetFrames() {
    const nes::State& state = console_.state();
    for (FrameRecord& record : records_) {
      record.before = state;
      record.buttons = state.pad.buttons[0];
    }
  }
  /// The number of frames run since construction, skipped waits included.
  uint64_t frames() const { return frames_; }

 private:
  class Loop;

  void SkipEndOfWorld();
  bool IsWaiting() const;
  void PlayWaits(bool to_start = false);
  int FramesUntil(uint64_t bits) const;
  void Pause(int frames);
  void Remember(uint8_t buttons) {
    if (remember_two_) newest_ ^= 1;
    FrameRecord& record = records_[newest_];
    record.before = console_.state();
    record.buttons = buttons;
    since_record_ = 0;
    ram_written_ = false;
    AddToMovie(buttons);
  }
  void AddToMovie(uint8_t buttons) {
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
  // The frames behind the newest record, which were not remembered.
  uint8_t buttons_since_record_[kMostFramesOfStep];
  int since_record_ = 0;
  bool ram_written_ = false;  // by this class, since the newest frame
};

}  // namespace mario
