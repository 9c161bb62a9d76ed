// Work RAM of Super Mario Bros.: addresses, and values that they take.
#pragma once

#include <cstdint>

namespace mario::ram {

#define RAM(name, address) constexpr uint16_t name = address;
#include "mario/ram_map.inc"

constexpr int kEnemySlots = 5;  // and a sixth for items
constexpr int kFireballs = 2;
constexpr int kHammers = 9;
constexpr int kFirstFireballSlot = 7;
constexpr int kFirstMiscSlot = 13;
constexpr int kRandomBytes = 7;
// Frames after which the random numbers repeat.
constexpr int kRandomPeriod = 32767;
// In the program: what kIntervalCounter begins with, 20 or, in the European
// revision, 17.
constexpr uint16_t kIntervalReload = 0x8108;
constexpr int kScoreDigits = 6;
constexpr int kCoinDigits = 2;
constexpr int kTimeDigits = 3;

// Values of kPlayerState.
constexpr uint8_t kStateDead = 0x06;
constexpr uint8_t kStateNormal = 0x08;
constexpr uint8_t kStateDying = 0x0B;

// Values of kOperMode.
constexpr uint8_t kModePlaying = 1;
constexpr uint8_t kModeWorldOver = 2;

// A value of kOperModeTask in kModePlaying.
constexpr uint8_t kTaskPlaying = 3;

// Enemy types at the end of a stage.
constexpr uint8_t kEnemyBowser = 0x2D;
constexpr uint8_t kEnemyFlagpole = 0x31;

// Other enemy types that differ from the rest.
constexpr uint8_t kEnemyLastKoopa = 0x04;
constexpr uint8_t kEnemyGoomba = 0x06;
constexpr uint8_t kEnemyBlooper = 0x07;
constexpr uint8_t kEnemyGreyCheep = 0x0A;
constexpr uint8_t kEnemyRedCheep = 0x0B;
constexpr uint8_t kEnemyPlant = 0x0D;
constexpr uint8_t kEnemyFlyingKoopa = 0x10;
constexpr uint8_t kEnemyLakitu = 0x11;
constexpr uint8_t kEnemyFlame = 0x15;
constexpr uint8_t kEnemyFirstFirebar = 0x1B;
constexpr uint8_t kEnemyLongFirebar = 0x1F;
constexpr uint8_t kEnemyFirstLift = 0x24;
constexpr uint8_t kEnemyLiftDown = 0x27;
constexpr uint8_t kEnemyLiftToAndFro = 0x28;
constexpr uint8_t kEnemyLiftRight = 0x2A;
constexpr uint8_t kEnemySmallLift = 0x2B;
constexpr uint8_t kEnemySmallLiftDown = 0x2C;
constexpr uint8_t kEnemyLastLift = 0x2C;
constexpr uint8_t kEnemyCannonBullet = 0x33;

constexpr uint8_t kAreaCastle = 3;
constexpr uint8_t kFloatStateFlagpole = 3;
constexpr uint8_t kGameOverLives = 0xFF;

}  // namespace mario::ram
