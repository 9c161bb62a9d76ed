// Reads the game's variables from work RAM: position, clock, score, states.
// ram_map.h has the addresses. Bytes are combined as in gym-super-mario-bros
// 7.4.0 (gym_super_mario_bros/smb_env.py).
#pragma once

#include <cstdint>

#include "mario/ram_map.h"

namespace mario {

/// Valid as long as the RAM that it reads.
class RamView {
 public:
  explicit RamView(const uint8_t* ram) : ram_(ram) {}

  int x() const { return ram_[ram::kPlayerPage] * 256 + ram_[ram::kPlayerX]; }
  /// Returns x, or 0 where the player is a few pixels beyond the left end of
  /// the room: x is near 65535 there and would count as the best position.
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
  int time() const { return Digits(ram::kTime, ram::kTimeDigits); }
  int score() const { return Digits(ram::kScore, ram::kScoreDigits); }
  int coins() const { return Digits(ram::kCoins, ram::kCoinDigits); }
  /// 0 small, 1 tall, 2 fireball.
  int status() const {
    return ram_[ram::kPowerStatus] < 2 ? ram_[ram::kPowerStatus] : 2;
  }

  bool swimming() const { return ram_[ram::kSwimming] != 0; }
  /// Whether A must be released before it is a jump or a stroke.
  bool a_held() const { return (ram_[ram::kButtonsBefore] & 0x80) != 0; }
  bool dying() const {
    return ram_[ram::kPlayerState] == ram::kStateDying ||
           ram_[ram::kViewportY] > 1;
  }
  bool dead() const { return ram_[ram::kPlayerState] == ram::kStateDead; }
  bool game_over() const { return lives() == ram::kGameOverLives; }
  /// Whether the game moves the player: in pipes, on poles, on automatic walks,
  /// between lives.
  bool busy() const {
    const uint8_t state = ram_[ram::kPlayerState];
    return state <= 0x05 || state == 0x07;
  }
  bool world_over() const {
    return ram_[ram::kOperMode] == ram::kModeWorldOver;
  }
  bool flag_get() const { return world_over() || stage_over(); }
  /// Whether the player controls Mario in a stage, so that positions are
  /// meaningful.
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
  /// Progress through a maze with several checks: 16 times the checks passed,
  /// plus the checks passed on the right lane. 0 outside such mazes.
  int loop() const { return 16 * loop_pass() + loop_correct(); }

  /// The largest number that `count` bytes of digits can give.
  static constexpr int LargestNumber(int count) {
    int64_t value = 0;
    for (int i = 0; i < count; ++i) value = AppendDigit(value, 255);
    return Clamped(value);
  }

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

  int Digits(uint16_t address, int count) const {
    int64_t value = 0;
    for (int i = 0; i < count; ++i) {
      value = AppendDigit(value, ram_[address + i]);
    }
    return Clamped(value);
  }

  // Upstream joins the bytes' decimal texts, so a byte of 10 and more (blank
  // tiles stand there before a game begins) shifts by its own width.
  static constexpr int64_t AppendDigit(int64_t value, int digit) {
    return value * (digit < 10 ? 10 : digit < 100 ? 100 : 1000) + digit;
  }
  static constexpr int Clamped(int64_t value) {
    return static_cast<int>(value > INT32_MAX ? INT32_MAX : value);
  }

  const uint8_t* ram_;
};

}  // namespace mario
