// Turns work RAM into what a player sees: the kinds of the cells around Mario,
// and positions and speeds of the moving objects. These are pure functions of
// RAM; nothing is drawn. docs/observations.md has the legend for users.
//
// Sources: the block buffers, object slots and metatile numbers as in
// doppelganger's commented disassembly (names in quotes are its).
#pragma once

#include <cstdint>

namespace mario {

/// The contents of a cell, and their names. Python gets the names through
/// TileName; mario_envpool/tiles.py has their meanings and colours.
#define MARIO_TILES(X)                                         \
  X(kEmpty, "empty")     /* nothing, or scenery */             \
  X(kOutside, "outside") /* beyond the screen's left, right */ \
  X(kSolid, "solid")                                           \
  X(kBrick, "brick")                                           \
  X(kQuestion, "question")                                     \
  X(kCoin, "coin")                                             \
  X(kPipe, "pipe")                                             \
  X(kWater, "water") /* to swim in */                          \
  X(kPole, "pole")                                             \
  X(kVine, "vine")                                             \
  X(kAxe, "axe")                                               \
  X(kSpring, "spring")                                         \
  X(kPlatform, "platform")                                     \
  X(kItem, "item")                                             \
  X(kFireball, "fireball") /* Mario's own */                   \
  X(kEnemy, "enemy")       /* may be jumped on */              \
  X(kDanger, "danger")     /* may not be touched at all */     \
  X(kSmallMario, "small mario")                                \
  X(kTallMario, "tall mario")                                  \
  X(kFireMario, "fire mario")                                  \
  X(kStarMario, "star mario") /* invincible */

enum Tile : uint8_t {
#define MARIO_TILE(code, name) code,
  MARIO_TILES(MARIO_TILE)
#undef MARIO_TILE
      kTileCount
};

/// The name of a code below kTileCount.
const char* TileName(int code);

constexpr int kTileRows = 13;  // of 16 pixels, from under the status bar down
constexpr int kTileColumns = 16;
/// Mario's column; the middle of his body is always in it.
constexpr int kMarioColumn = 5;

/// Writes (kTileRows, kTileColumns) codes. `ram` is the 2 KiB of work RAM.
void MakeTiles(const uint8_t* ram, uint8_t* grid);

/// Mario and the objects nearest to him, one row each.
constexpr int kMotionRows = 8;
/// The columns of a row: code of the object (kEmpty: no object), x, y, speed to
/// the right, speed down, state. docs/observations.md has the units.
constexpr int kMotionColumns = 6;

/// Writes (kMotionRows, kMotionColumns) numbers.
void MakeMotion(const uint8_t* ram, int8_t* rows);

/// Marks the world: about the size of other numbers after a network has scaled
/// them.
constexpr int kThisWorld = 8;

/// Writes the world into the states of the objects, which are 0 otherwise: in
/// world w, row w has kThisWorld. Worlds from kMotionRows on have none.
void MakeWorld(const uint8_t* ram, int8_t* rows);

/// The most moving objects: 6 slots whose firebars have up to 12 parts, 9
/// hammers, and what a wrong RAM may have.
constexpr int kMaxObjects = 96;
/// The columns of a row: code of the object, its type as the game numbers it
/// (kHammerType: a hammer), x and y as in motion, width, height, speeds.
constexpr int kObjectColumns = 8;
constexpr int kHammerType = 0x40;

/// Writes a row of kObjectColumns numbers for each object, also those beyond
/// the screen, in the order of the game's memory. Returns how many.
int MakeObjects(const uint8_t* ram, int16_t* rows);

}  // namespace mario
