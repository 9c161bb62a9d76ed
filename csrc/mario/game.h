// A console with Super Mario Bros. in it: the facts that work RAM holds, and
// the waits that are skipped (start screen, deaths, area changes), with the
// behaviour of gym-super-mario-bros 7.4.0 (gym_super_mario_bros/smb_env.py)
// frame by frame. It knows nothing of rewards, episodes or observations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include "mario/ram_map.h"
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

/// Work RAM read as facts. A view: valid as long as the RAM it was made from.
class Facts {
 public:
  explicit Facts(const uint8_t* ram) : ram_(ram) {}

  int x() const { return ram_[ram::kPlayerPage] * 256 + ram_[ram::kPlayerX]; }
  /// The same, and 0 where the player leans out of the room's left end by some
  /// pixels: x is near 65535 there, which would be the best position ever.
  int x_in_room() const { return x() < 0x8000 ? x() : 0; }
  /// Distance from the bottom of the screen; above 255 over its top.
  int y() const {
    const int y = 255 - ram_[ram::kPixelY];
    return ram_[ram::kViewportY] < 1 ? 255 + y : y;
  }
  int world() const { return ram_[ram::kWorld] + 1; }
  int stage() const { return ram_[ram::kStage] + 1; }
  int area() const { return ram_[ram::kArea] + 1; }
  /// The loaded room as the game's tables number it: type * 32 + number.
  int area_pointer() const {
    return (ram_[ram::kAreaType] & 3) << 5 | (ram_[ram::kAreaOfType] & 31);
  }
  int lives() const { return ram_[ram::kLives]; }
  int time() const { return Digits<3>(ram::kTime); }
  int score() const { return Digits<6>(ram::kScore); }
  int coins() const { return Digits<2>(ram::kCoins); }
  /// 0 small, 1 tall, 2 fireball.
  int status() const {
    return ram_[ram::kPowerStatus] < 2 ? ram_[ram::kPowerStatus] : 2;
  }

  bool dying() const {
    return ram_[ram::kPlayerState] == ram::kStateDying ||
           ram_[ram::kViewportY] > 1;
  }
  bool dead() const { return ram_[ram::kPlayerState] == ram::kStateDead; }
  bool game_over() const { return lives() == ram::kGameOverLives; }
  /// Entering pipes, climbing, walking by itself, between lives.
  bool busy() const {
    const uint8_t state = ram_[ram::kPlayerState];
    return state <= 0x05 || state == 0x07;
  }
  bool world_over() const {
    return ram_[ram::kOperMode] == ram::kModeWorldOver;
  }
  bool flag_get() const { return world_over() || stage_over(); }
  /// Under the player's control in a stage: positions mean something.
  bool in_control() const {
    return ram_[ram::kPlayerState] == ram::kStateNormal &&
           ram_[ram::kOperMode] == ram::kModePlaying;
  }
  /// World, stage and room in one number.
  uint32_t room_key() const {
    return static_cast<uint32_t>(ram_[ram::kWorld]) << 16 |
           static_cast<uint32_t>(ram_[ram::kStage]) << 8 |
           static_cast<uint32_t>(area_pointer());
  }
  int page() const { return ram_[ram::kPlayerPage]; }
  int loop_command() const { return ram_[ram::kLoopCommand]; }
  int loop_correct() const { return ram_[ram::kLoopCorrect]; }
  int loop_pass() const { return ram_[ram::kLoopPass]; }
  /// How far through a maze with several checks the player is: 16 times those
  /// passed, and those passed on the right lane. 0 where there is none.
  int loop() const { return 16 * loop_pass() + loop_correct(); }

 private:
  bool stage_over() const {
    for (int slot = 0; slot < ram::kEnemySlots; ++slot) {
      const uint8_t type = ram_[ram::kEnemyType + slot];
      if (type == ram::kEnemyBowser || type == ram::kEnemyFlagpole) {
        return ram_[ram::kFloatState] == ram::kFloatStateFlagpole;
      }
    }
    return false;
  }

  // Upstream joins the bytes' decimal texts, so a byte of 10 and more (blank
  // tiles stand there before a game begins) shifts by its own width.
  template <int kCount>
  int Digits(uint16_t address) const {
    int64_t value = 0;
    for (int i = 0; i < kCount; ++i) {
      const int digit = ram_[address + i];
      value = value * (digit < 10 ? 10 : digit < 100 ? 100 : 1000) + digit;
    }
    return static_cast<int>(value > INT32_MAX ? INT32_MAX : value);
  }

  const uint8_t* ram_;
};

/// A frame that was run: enough to run it again with pixels.
struct FrameRecord {
  nes::State before;
  uint8_t buttons;
  uint8_t reserved[7];
};

class Game {
 public:
  /// No skipped wait is longer than this in the real game.
  static constexpr int kSkipLimitFrames = 1200;

  /// `env_id` stands in error messages; `remember_two` keeps two frame records.
  Game(std::shared_ptr<const nes::Cartridge> cartridge, int env_id,
       bool remember_two);

  Facts facts() const { return Facts(console_.ram()); }
  nes::Console& console() { return console_; }
  const nes::Console& console() const { return console_; }

  /// Runs one frame and remembers the state before it. `pixels` as in
  /// nes::Console::RunFrame.
  void RunFrame(uint8_t buttons, uint8_t* pixels) {
    if (remember_two_) newest_ ^= 1;
    FrameRecord& record = records_[newest_];
    record.before = console_.state();
    record.buttons = buttons;
    console_.RunFrame(buttons, pixels);
    ++frames_;
  }

  /// Switches on with `power_on_ram` in every byte of work RAM, starts a game,
  /// waits until its clock ticks. Without a target the game begins at its
  /// first stage.
  void StartGame(const std::optional<Target>& target, uint8_t power_on_ram);

  /// What follows a frame that did not end the episode: cuts death short and
  /// runs through area changes and cut-scenes. `whole_game`: also through the
  /// end of a world.
  void SkipWaits(bool whole_game);

  /// The frames run last: age 0 is the newest, age 1 the one before it (only
  /// with remember_two). Both are there after StartGame.
  const FrameRecord& record(int age) const { return records_[newest_ ^ age]; }
  FrameRecord& record(int age) { return records_[newest_ ^ age]; }
  /// Frames run in all, skipped ones included.
  uint64_t frames() const { return frames_; }

 private:
  class Loop;

  void SkipEndOfWorld();

  nes::Console console_;
  int env_id_;
  bool remember_two_;
  int newest_ = 0;
  uint64_t frames_ = 0;
  FrameRecord records_[2]{};
};

}  // namespace mario
