// The playfield's cells come from the two block buffers, the things that move
// from the object slots, with the sizes at which the game draws them.
#include "mario/tiles.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "mario/ram_map.h"
#include "nes/console.h"
#include "preprocess/frame.h"

namespace mario {

namespace {

constexpr int kCell = 16;                     // pixels
constexpr int kBufferBytes = kTileRows * 16;  // of one screen
constexpr int kSprite = 8;                    // pixels
// A cell has the things that show in it a sprite's middle, or one pixel less,
// as some are drawn before they move.
constexpr int kLeastOverlap = kSprite / 2 - 1;

constexpr const char* kNames[] = {
#define MARIO_TILE(code, name) name,
    MARIO_TILES(MARIO_TILE)
#undef MARIO_TILE
};

// ------------------------------------------------------------- background

// Metatile -> code. Only metatiles that one can touch reach the buffers.
constexpr Tile KindOfMetatile(int metatile) {
  if (metatile == 0x24 || metatile == 0x25) return kPole;
  if (metatile == 0x26) return kVine;
  if (metatile == 0x67 || metatile == 0x68) return kSpring;
  if (metatile == 0x6B || metatile == 0x6C) return kPipe;
  if (metatile == 0xC2 || metatile == 0xC3) return kCoin;
  if (metatile == 0xC0 || metatile == 0xC1) return kQuestion;
  if (metatile == 0xC5) return kAxe;
  if (metatile == 0x5F || metatile == 0x60) return kEmpty;  // hidden blocks
  if (metatile >= 0x10 && metatile <= 0x15) return kPipe;
  if (metatile >= 0x1C && metatile <= 0x21) return kPipe;
  if (metatile >= 0x51 && metatile <= 0x5E && metatile != 0x54) return kBrick;
  return metatile == 0 ? kEmpty : kSolid;
}

constexpr std::array<uint8_t, 256> kKindOfMetatile = [] {
  std::array<uint8_t, 256> kinds{};
  for (int i = 0; i < 256; ++i) {
    kinds[static_cast<size_t>(i)] = KindOfMetatile(i);
  }
  return kinds;
}();

// ----------------------------------------------------------------- things

/// Something that moves, as the screen shows it: pixels from its upper left
/// corner, speeds in 1/16 pixel (x) and whole pixels (y) a frame.
struct Thing {
  Tile kind;
  int left, top, width, height;
  int speed_x, speed_y;
  bool emerges = false;  // out of a pipe or block, which hides it
  /// The upper row of sprites: both, or only the one on this side.
  enum : uint8_t { kWide, kLeftOnly, kRightOnly } head = kWide;
};

/// Whether things that emerge from such a cell are behind it.
bool Hides(uint8_t kind) {
  return kind == kPipe || kind == kSolid || kind == kQuestion || kind == kBrick;
}

struct Things {
  // Mario, 6 slots of which firebars have up to 12 parts, 9 hammers, 2
  // fireballs.
  static constexpr int kMost = 96;
  Thing thing[kMost];
  int count = 0;
  void Add(const Thing& added) {
    if (count < kMost) thing[count++] = added;
  }
};

/// Work RAM with its names.
class Memory {
 public:
  explicit Memory(const uint8_t* ram)
      : ram_(ram),
        screen_left_(ram[ram::kScreenLeftPage] * 256 + ram[ram::kScreenLeftX]) {
  }

  uint8_t operator[](int address) const { return ram_[address]; }
  int screen_left() const { return screen_left_; }
  /// Objects have their bytes in rows, Mario's first: `slot` 0 is Mario, 1 the
  /// first enemy, and so on.
  int left(int slot) const {
    return ram_[ram::kPlayerPage + slot] * 256 + ram_[ram::kPlayerX + slot] -
           screen_left_;
  }
  int top(int slot) const {
    return (ram_[ram::kViewportY + slot] - 1) * 256 +
           ram_[ram::kPlayerY + slot];
  }
  int speed_x(int slot) const {
    return static_cast<int8_t>(ram_[ram::kSpeedX + slot]);
  }
  int speed_y(int slot) const {
    return static_cast<int8_t>(ram_[ram::kSpeedY + slot]);
  }

 private:
  const uint8_t* ram_;
  int screen_left_;
};

Thing Mario(const Memory& ram) {
  const bool small = ram[ram::kPlayerSize] != 0;
  const int power = ram[ram::kPowerStatus];
  const Tile kind = ram[ram::kStarTimer] != 0 ? kStarMario
                    : small || power == 0     ? kSmallMario
                    : power == 1              ? kTallMario
                                              : kFireMario;
  const int height = small || ram[ram::kCrouching] != 0 ? 16 : 32;
  return {kind,           ram.left(0),   ram.top(0) + 32 - height, 16, height,
          ram.speed_x(0), ram.speed_y(0)};
}

/// How the game draws an enemy of a type, and what it is to Mario.
struct Look {
  Tile kind = kEmpty;  // flags, warp zones, generators of others: nothing
  uint8_t height = 24, width = 16;
  bool has_speed = false;  // the bytes for speed hold speeds
  bool emerges = false;
  bool is_bullet = false;
  bool has_head = false;  // eight pixels wide, where it walks to
  int8_t drop = 0;        // pixels that it is drawn lower than the others
};

constexpr int kGoomba = 0x06;
constexpr int kLastKoopa = 0x04;
constexpr int kLakitu = 0x11;
constexpr int kBulletOfCannon = 0x33;

constexpr std::array<Look, 64> kLooks = [] {
  std::array<Look, 64> looks{};
  for (const int koopa : {0x00, 0x01, 0x03, 0x04}) {
    looks[koopa] = {.kind = kEnemy, .has_speed = true, .has_head = true};
  }
  looks[0x0E] = {.kind = kEnemy, .has_speed = true};  // with wings
  for (const int low : {0x02, kGoomba, 0x14}) {  // buzzy beetle, flying cheep
    looks[low] = {.kind = kEnemy, .height = 16, .has_speed = true};
  }
  for (const int bullet : {0x08, kBulletOfCannon}) {
    looks[bullet] = {.kind = kEnemy, .height = 16, .is_bullet = true};
  }
  // Hammer brother, winged koopas that fly, Lakitu.
  for (const int tall : {0x05, 0x0F, 0x10, kLakitu}) looks[tall].kind = kEnemy;
  looks[0x07] = {.kind = kEnemy, .drop = 4};  // blooper
  for (const int cheep : {0x0A, 0x0B}) {
    looks[cheep] = {.kind = kDanger, .height = 16};
  }
  for (const int jumper : {0x0C, 0x12}) {  // podoboo, spiny
    looks[jumper] = {.kind = kDanger, .height = 16, .has_speed = true};
  }
  looks[0x0D] = {.kind = kDanger, .emerges = true};  // plant
  looks[0x15] = {
      .kind = kDanger, .height = 8, .width = 24, .drop = -16};  // flame
  looks[0x2D] = {.kind = kDanger};                              // half Bowser
  looks[0x2E] = {.kind = kItem, .height = 16, .emerges = true};
  looks[0x32] = {.kind = kSpring};
  return looks;
}();

void AddLift(const Memory& ram, int slot, int type, Things* things) {
  Thing lift{kPlatform, ram.left(slot),   ram.top(slot), 48, 8,
             0,         ram.speed_y(slot)};
  if (type >= ram::kEnemySmallLift) {
    lift.width = 24;
    things->Add(lift);
    lift.top = (lift.top + 128) & 0xFF;  // drawn twice
  } else if (ram[ram::kAreaType] == ram::kAreaCastle ||
             ram[ram::kSecondaryHardMode] != 0) {
    lift.width = 32;
  }
  things->Add(lift);
}

// Balls of fire, eight pixels apart, that turn around a block: 32 angles.
void AddFirebar(const Memory& ram, int slot, int type, Things* things) {
  constexpr int kSine[9] = {0, 50, 98, 142, 181, 213, 237, 251, 256};  // / 256
  const int angle = ram[ram::kSpeedY + slot] & 31;  // "FirebarSpinState_High"
  const auto sine = [&](int at) {
    at &= 31;
    const int quarter = at & 15;
    const int value = kSine[quarter <= 8 ? quarter : 16 - quarter];
    return at < 16 ? value : -value;
  };
  const int balls = type == ram::kEnemyLongFirebar ? 12 : 6;
  for (int i = 0; i < balls; ++i) {
    const auto away = [&](int at) { return (8 * i * sine(at) + 128) >> 8; };
    things->Add({kDanger, ram.left(slot) + away(angle),
                 ram.top(slot) - away(angle + 8), 8, 8, 0, 0});
  }
}

/// Whether there is nothing to see of a slot in use.
bool IsHidden(const Memory& ram, int slot, int type, int state) {
  const uint8_t flag = ram[ram::kEnemyFlag + slot - 1];
  // The second slot of something large; of Bowser both halves are drawn.
  if ((flag & 0x80) != 0 && type != ram::kEnemyBowser) return true;
  // In the cannon still; while time stands still it is shown all the same.
  return type == kBulletOfCannon && state == 0 && ram[ram::kTimeStands] == 0;
}

void AddEnemy(const Memory& ram, int slot, Things* things) {
  const int type = ram[ram::kEnemyType + slot - 1];
  const int state = ram[ram::kEnemyState + slot - 1];
  if (IsHidden(ram, slot, type, state)) return;
  if (type >= ram::kEnemyFirstFirebar && type <= ram::kEnemyLongFirebar) {
    AddFirebar(ram, slot, type, things);
    return;
  }
  if (type >= ram::kEnemyFirstLift && type <= ram::kEnemyLastLift) {
    AddLift(ram, slot, type, things);
    return;
  }
  const Look look = kLooks[type & 63];
  // Beaten ones fall off the screen, and hurt nobody. A bullet looks as before.
  const bool beaten = (state & 0x20) != 0 && !look.is_bullet;
  const bool low = (state & 7) >= 2;  // a shell, or a goomba that was jumped on
  if (look.kind == kEmpty || beaten || (low && type == kGoomba)) return;
  // All are drawn with their feet at one place, 24 pixels and one below y.
  Thing thing{
      look.kind,  ram.left(slot), ram.top(slot) + 25 + look.drop - look.height,
      look.width, look.height,    0,
      0,          look.emerges};
  const bool is_shell = low && type <= kLastKoopa && thing.height == 24;
  const bool ducks = type == kLakitu && ram[ram::kFrenzyTimer] < 0x10;
  if (is_shell || ducks) {
    thing.top += 8, thing.height = 16;
  } else if (look.has_head) {
    const bool goes_left = ram[ram::kMovingDirection + slot - 1] == 2;
    thing.head = goes_left ? Thing::kLeftOnly : Thing::kRightOnly;
  }
  if (look.has_speed) {
    thing.speed_x = ram.speed_x(slot), thing.speed_y = ram.speed_y(slot);
    thing.top -= thing.speed_y;  // drawn before it moved
  }
  if (thing.kind == kEnemy && ram[ram::kSwimming] != 0) thing.kind = kDanger;
  things->Add(thing);
}

void FindThings(const Memory& ram, Things* things) {
  for (int i = 0; i <= ram::kEnemySlots; ++i) {  // and one for items
    if (ram[ram::kEnemyFlag + i] != 0) AddEnemy(ram, 1 + i, things);
  }
  for (int i = 0; i < ram::kHammers; ++i) {
    if ((ram[ram::kMiscState + i] & 0x80) == 0) continue;
    const int slot = ram::kFirstMiscSlot + i;
    things->Add({kDanger, ram.left(slot), ram.top(slot), 16, 16,
                 static_cast<int8_t>(ram[ram::kMiscSpeedX + i]),
                 static_cast<int8_t>(ram[ram::kMiscSpeedY + i])});
  }
}

void FindFireballs(const Memory& ram, Things* things) {
  for (int i = 0; i < ram::kFireballs; ++i) {
    const int state = ram[ram::kFireballState + i];
    if (state == 0 || (state & 0x80) != 0) continue;  // none, or exploding
    const int slot = ram::kFirstFireballSlot + i;
    things->Add({kFireball, ram.left(slot), ram.top(slot), 8, 8, 0, 0});
  }
}

}  // namespace

const char* TileName(int code) { return kNames[code]; }

void MakeTiles(const uint8_t* memory, uint8_t* grid) {
  const Memory ram(memory);
  const Thing mario = Mario(ram);
  // Columns of the level, 16 pixels each; the first one of the grid.
  const int first = ((mario.left + ram.screen_left() + 8) >> 4) - kMarioColumn;
  const int origin = first * kCell - ram.screen_left();  // on the screen
  const uint8_t nothing = memory[ram::kSwimming] != 0 ? kWater : kEmpty;
  const auto is_shown = [&](int column) {
    const int middle = origin + column * kCell + kCell / 2;
    return middle >= 0 && middle < nes::kScreenWidth;
  };
  for (int column = 0; column < kTileColumns; ++column) {
    uint8_t* to = grid + column;
    const int at = first + column;
    const uint8_t* from =
        memory + ram::kBlockBuffer + (at >> 4 & 1) * kBufferBytes + (at & 15);
    const bool shown = is_shown(column);
    for (int row = 0; row < kTileRows; ++row, to += kTileColumns, from += 16) {
      const uint8_t kind = kKindOfMetatile[*from];
      *to = kind == kEmpty ? nothing : kind;
      if (!shown) *to = kOutside;
    }
  }
  Things things;
  things.Add(mario);
  FindFireballs(ram, &things);
  FindThings(ram, &things);
  const auto fill = [&](const Thing& thing, int left, int top, int width,
                        int height) {
    const auto first_cell = [](int at) {
      return std::max((at + kLeastOverlap) >> 4, 0);
    };
    const auto last_cell = [](int end, int cells) {
      return std::min((end - kLeastOverlap) >> 4, cells - 1);
    };
    const int last_row = last_cell(top + height, kTileRows);
    const int last_column = last_cell(left + width, kTileColumns);
    for (int row = first_cell(top); row <= last_row; ++row) {
      for (int column = first_cell(left); column <= last_column; ++column) {
        uint8_t& cell = grid[row * kTileColumns + column];
        const bool hidden = thing.emerges && Hides(cell);
        if (cell != kOutside && !hidden) cell = thing.kind;
      }
    }
  };
  for (int i = 0; i < things.count; ++i) {
    const Thing& thing = things.thing[i];
    const int left = thing.left - origin,
              top = thing.top - preprocess::kHudRows;
    if (thing.head == Thing::kWide) {
      fill(thing, left, top, thing.width, thing.height);
      continue;
    }
    const int side = thing.head == Thing::kLeftOnly ? 0 : kSprite;
    fill(thing, left + side, top, kSprite, kSprite);
    fill(thing, left, top + kSprite, thing.width, thing.height - kSprite);
  }
}

void MakeMotion(const uint8_t* memory, int8_t* rows) {
  const Memory ram(memory);
  const auto narrow = [](int value) {
    return static_cast<int8_t>(std::clamp(value, -128, 127));
  };
  const Thing mario = Mario(ram);
  const int feet = mario.top + mario.height;
  const int x = mario.left + ram.screen_left();
  std::memset(rows, 0, kMotionRows * kMotionColumns);
  const int8_t own[kMotionColumns] = {
      static_cast<int8_t>(mario.kind),
      narrow((x + 8) % kCell - 8),
      narrow(feet - 128),
      narrow(mario.speed_x),
      narrow(mario.speed_y),
      static_cast<int8_t>((memory[ram::kFloatState] & 3) +
                          (memory[ram::kButtonsBefore] & 0x80 ? 4 : 0))};
  std::memcpy(rows, own, sizeof(own));

  Things things;
  FindThings(ram, &things);
  // By distance, then by all that is told of it: equal on every machine.
  const auto order = [&](const Thing& thing) {
    const int bottom = thing.top + thing.height;
    const int distance =
        std::abs(thing.left - mario.left) + std::abs(bottom - feet);
    return std::tuple(distance, thing.left, bottom, thing.kind, thing.speed_x,
                      thing.speed_y);
  };
  Thing* const end = std::partition(
      things.thing, things.thing + things.count, [](const Thing& thing) {
        return thing.left > -thing.width && thing.left < nes::kScreenWidth;
      });
  Thing* const last = things.thing + std::min<std::ptrdiff_t>(
                                         end - things.thing, kMotionRows - 1);
  std::partial_sort(
      things.thing, last, end,
      [&](const Thing& a, const Thing& b) { return order(a) < order(b); });
  for (const Thing* thing = things.thing; thing != last; ++thing) {
    rows += kMotionColumns;
    rows[0] = static_cast<int8_t>(thing->kind);
    rows[1] = narrow(thing->left - mario.left);
    rows[2] = narrow(thing->top + thing->height - feet);
    rows[3] = narrow(thing->speed_x);
    rows[4] = narrow(thing->speed_y);
  }
}

}  // namespace mario
