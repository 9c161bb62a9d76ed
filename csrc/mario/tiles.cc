// The cells of the playfield come from the two block buffers. Moving objects
// come from the object slots, with the sizes at which the game draws them.
#include "mario/tiles.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <tuple>

#include "mario/ram_map.h"
#include "mario/ram_view.h"
#include "nes/console.h"
#include "preprocess/frame.h"

namespace mario {

namespace {

constexpr int kCell = 16;                     // pixels
constexpr int kBufferBytes = kTileRows * 16;  // of one screen
constexpr int kSprite = 8;                    // pixels
constexpr int kSixteenths = 16;               // of a pixel: the unit of speeds
// An object is in a cell if half a sprite of it is shown there, or one pixel
// less, because some objects are drawn before they move.
constexpr int kMinOverlap = kSprite / 2 - 1;

constexpr const char* kNames[] = {
#define MARIO_TILE(code, name) name,
    MARIO_TILES(MARIO_TILE)
#undef MARIO_TILE
};

// ------------------------------------------------------------- background

// Metatile -> code. The buffers contain only metatiles that Mario can touch.
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

// ---------------------------------------------------------------- objects

/// A moving object as the screen shows it: position in pixels from the upper
/// left corner of the screen, speed in 1/16 pixel per frame.
struct Object {
  Tile kind;
  int left, top, width, height;
  int speed_x, speed_y;
  bool emerges = false;  // out of a pipe or block, which hides it
  /// The upper row of sprites: both sprites, or only the one on this side.
  enum : uint8_t { kWide, kLeftOnly, kRightOnly } head = kWide;
  int type = kHammerType;  // as the game numbers enemies
};

/// Whether objects that emerge from such a cell are behind it.
bool Hides(uint8_t kind) {
  return kind == kPipe || kind == kSolid || kind == kQuestion || kind == kBrick;
}

struct ObjectList {
  Object object[kMaxObjects];
  int count = 0;
  void Add(const Object& added) {
    if (count < kMaxObjects) object[count++] = added;
  }
};

/// Reads the positions of objects from work RAM.
class ObjectRam {
 public:
  explicit ObjectRam(const uint8_t* ram)
      : ram_(ram),
        screen_left_(ram[ram::kScreenLeftPage] * 256 + ram[ram::kScreenLeftX]) {
  }

  uint8_t operator[](int address) const { return ram_[address]; }
  int screen_left() const { return screen_left_; }
  /// Bytes of objects are stored in rows, Mario's first: `slot` 0 is Mario, 1
  /// the first enemy, and so on.
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
  /// In whole pixels, rounded down.
  int pixels_y(int slot) const {
    return static_cast<int8_t>(ram_[ram::kSpeedY + slot]);
  }
  int speed_y(int slot) const {
    return pixels_y(slot) * kSixteenths + ram_[ram::kSpeedYPart + slot] / 16;
  }

 private:
  const uint8_t* ram_;
  int screen_left_;
};

Object Mario(const ObjectRam& ram) {
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

/// How the game draws an enemy of a type, and what it does to Mario.
struct EnemyTraits {
  Tile kind = kEmpty;  // kEmpty: flags, warp zones, generators
  uint8_t height = 24, width = 16;
  bool has_speed_x = false;  // its byte in RAM is the speed
  bool has_speed_y = false;  // the same; the enemy is drawn before it moves
  bool emerges = false;
  bool is_bullet = false;
  bool has_head = false;  // eight pixels wide, on the side it walks to
  int8_t drop = 0;        // pixels by which it is drawn lower than others
};

constexpr std::array<EnemyTraits, 64> kEnemyTraits = [] {
  using Types = std::initializer_list<int>;
  std::array<EnemyTraits, 64> traits{};
  for (const int koopa : Types{0x00, 0x01, 0x03, 0x04}) {
    traits[koopa] = {.kind = kEnemy,
                     .has_speed_x = true,
                     .has_speed_y = true,
                     .has_head = true};
  }
  // Koopas with wings that jump, hammer brothers.
  for (const int jumper : Types{0x0E, 0x05}) {
    traits[jumper] = {.kind = kEnemy, .has_speed_x = true, .has_speed_y = true};
  }
  // Buzzy beetle, goomba, flying cheep.
  for (const int low : Types{0x02, ram::kEnemyGoomba, 0x14}) {
    traits[low] = {
        .kind = kEnemy, .height = 16, .has_speed_x = true, .has_speed_y = true};
  }
  for (const int bullet : Types{0x08, ram::kEnemyCannonBullet}) {
    traits[bullet] = {
        .kind = kEnemy, .height = 16, .has_speed_x = true, .is_bullet = true};
  }
  traits[0x0F] = {.kind = kEnemy, .has_speed_y = true};  // flies up and down
  traits[ram::kEnemyFlyingKoopa].kind = kEnemy;          // left and right
  traits[ram::kEnemyLakitu] = {.kind = kEnemy, .has_speed_x = true};
  traits[ram::kEnemyBlooper] = {.kind = kEnemy, .drop = 4};
  for (const int cheep : Types{ram::kEnemyGreyCheep, ram::kEnemyRedCheep}) {
    traits[cheep] = {.kind = kDanger, .height = 16};
  }
  for (const int jumper : Types{0x0C, 0x12}) {  // podoboo, spiny
    traits[jumper] = {.kind = kDanger,
                      .height = 16,
                      .has_speed_x = true,
                      .has_speed_y = true};
  }
  traits[ram::kEnemyPlant] = {.kind = kDanger, .emerges = true};
  traits[ram::kEnemyFlame] = {
      .kind = kDanger, .height = 8, .width = 24, .drop = -16};
  traits[ram::kEnemyBowser] = {.kind = kDanger};  // one half of him
  traits[0x2E] = {
      .kind = kItem, .height = 16, .has_speed_x = true, .emerges = true};
  traits[0x32] = {.kind = kSpring};
  return traits;
}();

struct Speed {
  int x = 0, y = 0;  // 1/16 pixel a frame, to the right and down
};

/// The speed of enemies that move to and fro: "XMoveSecondaryCounter" is the
/// speed, a bit of "XMovePrimaryCounter" the direction.
Speed ToAndFro(const ObjectRam& ram, int slot) {
  const bool goes_right = (ram[ram::kSpeedY + slot] & 2) != 0;
  return {goes_right ? ram.speed_x(slot) : -ram.speed_x(slot), 0};
}

/// A blooper swims up in strokes, towards Mario's side, and sinks by half
/// pixels.
Speed SpeedOfBlooper(const ObjectRam& ram, int slot) {
  const bool sinks = (ram[ram::kSpeedY + slot] & 2) != 0;  // its counter
  if (sinks) return {0, kSixteenths / 2};
  const int speed = ram.speed_x(slot) * kSixteenths;
  const bool goes_right = ram[ram::kMovingDirection + slot - 1] == 1;
  return {goes_right ? speed : -speed, -speed};
}

/// Bowser walks every fourth frame, and his speed of falling or jumping is kept
/// while he stands. His rear half follows the front half.
Speed SpeedOfBowser(const ObjectRam& ram) {
  constexpr int kGround = 0x80;  // the y at which he stands
  const int slot = 1 + ram[ram::kBowserFront] % (ram::kEnemySlots + 1);
  const int y = ram.speed_y(slot);
  const bool stands = ram[ram::kPlayerY + slot] >= kGround && y > 0;
  return {static_cast<int8_t>(ram[ram::kBowserSpeed]) * kSixteenths / 4,
          stands ? 0 : y};
}

/// The speeds of an enemy or lift, derived from the variables that the game
/// keeps.
Speed SpeedOf(const ObjectRam& ram, int slot, int type) {
  // Measured speeds of objects without a variable, to the left. A flame's speed
  // is 20 to 25, depending on the ROM's revision and the world.
  constexpr int kGreyCheep = -4, kRedCheep = -8, kFlame = -22;
  const EnemyTraits& traits = kEnemyTraits[type & 63];
  switch (type) {
    case ram::kEnemyFlyingKoopa:
    case ram::kEnemyLiftToAndFro:
      return ToAndFro(ram, slot);
    case ram::kEnemyBlooper:
      return SpeedOfBlooper(ram, slot);
    case ram::kEnemyGreyCheep:
      return {kGreyCheep, 0};
    case ram::kEnemyRedCheep:
      return {kRedCheep, 0};
    case ram::kEnemyFlame:
      return {kFlame, 0};
    case ram::kEnemyBowser:
      return SpeedOfBowser(ram);
    case ram::kEnemyPlant: {
      // A plant moves by half pixels while "PiranhaPlant_MoveFlag" is set.
      const bool moves = ram[ram::kSpeedY + slot] != 0;
      return {0, moves ? ram.speed_x(slot) * kSixteenths / 2 : 0};
    }
    case ram::kEnemyLiftDown:
    case ram::kEnemySmallLiftDown:
      return {0, kSixteenths};
    case ram::kEnemyLiftRight:
      return {ram.speed_x(slot), 0};
    default:
      break;
  }
  const bool is_lift =
      ram::kEnemyFirstLift <= type && type <= ram::kEnemyLastLift;
  return {traits.has_speed_x ? ram.speed_x(slot) : 0,
          traits.has_speed_y || is_lift ? ram.speed_y(slot) : 0};
}

void AddLift(const ObjectRam& ram, int slot, int type, ObjectList* objects) {
  const Speed speed = SpeedOf(ram, slot, type);
  Object lift{kPlatform, ram.left(slot), ram.top(slot), 48,
              8,         speed.x,        speed.y};
  if (type >= ram::kEnemySmallLift) {
    lift.width = 24;
    objects->Add(lift);
    lift.top = (lift.top + 128) & 0xFF;  // drawn twice
  } else if (ram[ram::kAreaType] == ram::kAreaCastle ||
             ram[ram::kSecondaryHardMode] != 0) {
    lift.width = 32;
  }
  objects->Add(lift);
}

// Balls of fire, eight pixels apart, that turn around a block: 32 angles.
void AddFirebar(const ObjectRam& ram, int slot, int type, ObjectList* objects) {
  constexpr int kSine[9] = {0, 50, 98, 142, 181, 213, 237, 251, 256};  // / 256
  const int angle = ram[ram::kSpeedY + slot] & 31;  // "FirebarSpinState_High"
  const auto sine = [&](int at) {
    at &= 31;
    const int quarter = at & 15;
    const int value = kSine[quarter <= 8 ? quarter : 16 - quarter];
    return at < 16 ? value : -value;
  };
  // 32 * 256 units of the angle are a turn; pi / 8192 is 402 / 2^20.
  const int spin = ram[ram::kFirebarDirection + slot - 1] == 0
                       ? ram[ram::kFirebarSpeed + slot - 1]
                       : -ram[ram::kFirebarSpeed + slot - 1];
  const int balls = type == ram::kEnemyLongFirebar ? 12 : 6;
  for (int i = 0; i < balls; ++i) {
    const auto away = [&](int at) { return (8 * i * sine(at) + 128) >> 8; };
    const auto speed = [&](int at) {
      return (i * spin * sine(at) * 402 + (1 << 19)) >> 20;
    };
    objects->Add({kDanger, ram.left(slot) + away(angle),
                  ram.top(slot) - away(angle + 8), 8, 8, speed(angle + 8),
                  speed(angle)});
  }
}

/// Whether the object of a slot in use is invisible.
bool IsHidden(const ObjectRam& ram, int slot, int type, int state) {
  const uint8_t flag = ram[ram::kEnemyFlag + slot - 1];
  // The second slot of a large object is not drawn, but both halves of Bowser
  // are.
  if ((flag & 0x80) != 0 && type != ram::kEnemyBowser) return true;
  // A bullet inside the cannon is hidden, but it is shown while time stands
  // still.
  return type == ram::kEnemyCannonBullet && state == 0 &&
         ram[ram::kTimeStands] == 0;
}

void AddEnemy(const ObjectRam& ram, int slot, ObjectList* objects) {
  const int type = ram[ram::kEnemyType + slot - 1];
  const int state = ram[ram::kEnemyState + slot - 1];
  if (IsHidden(ram, slot, type, state)) return;
  if (type >= ram::kEnemyFirstFirebar && type <= ram::kEnemyLongFirebar) {
    AddFirebar(ram, slot, type, objects);
    return;
  }
  if (type >= ram::kEnemyFirstLift && type <= ram::kEnemyLastLift) {
    AddLift(ram, slot, type, objects);
    return;
  }
  const EnemyTraits traits = kEnemyTraits[type & 63];
  // Beaten enemies fall off the screen and hurt nobody. A beaten bullet looks
  // as before.
  const bool beaten = (state & 0x20) != 0 && !traits.is_bullet;
  const bool low = (state & 7) >= 2;  // a shell, or a goomba that was jumped on
  const bool flat = low && type == ram::kEnemyGoomba;
  if (traits.kind == kEmpty || beaten || flat) return;
  // All are drawn with their feet at the same height, 25 pixels below y.
  Object object{traits.kind,
                ram.left(slot),
                ram.top(slot) + 25 + traits.drop - traits.height,
                traits.width,
                traits.height,
                0,
                0,
                traits.emerges};
  const bool is_shell =
      low && type <= ram::kEnemyLastKoopa && object.height == 24;
  const bool ducks = type == ram::kEnemyLakitu && ram[ram::kFrenzyTimer] < 0x10;
  if (is_shell || ducks) {
    object.top += 8, object.height = 16;
  } else if (traits.has_head) {
    const bool goes_left = ram[ram::kMovingDirection + slot - 1] == 2;
    object.head = goes_left ? Object::kLeftOnly : Object::kRightOnly;
  }
  const Speed speed = SpeedOf(ram, slot, type);
  object.speed_x = speed.x, object.speed_y = speed.y;
  if (traits.has_speed_y) object.top -= ram.pixels_y(slot);
  if (object.kind == kEnemy && ram[ram::kSwimming] != 0) object.kind = kDanger;
  objects->Add(object);
}

void FindObjects(const ObjectRam& ram, ObjectList* objects) {
  for (int i = 0; i <= ram::kEnemySlots; ++i) {  // and one for items
    if (ram[ram::kEnemyFlag + i] == 0) continue;
    const int first = objects->count;
    AddEnemy(ram, 1 + i, objects);
    for (int added = first; added < objects->count; ++added) {
      objects->object[added].type = ram[ram::kEnemyType + i];
    }
  }
  for (int i = 0; i < ram::kHammers; ++i) {
    if ((ram[ram::kMiscState + i] & 0x80) == 0) continue;
    const int slot = ram::kFirstMiscSlot + i;
    objects->Add(
        {kDanger, ram.left(slot), ram.top(slot), 16, 16,
         static_cast<int8_t>(ram[ram::kMiscSpeedX + i]),
         static_cast<int8_t>(ram[ram::kMiscSpeedY + i]) * kSixteenths});
  }
}

void FindFireballs(const ObjectRam& ram, ObjectList* objects) {
  for (int i = 0; i < ram::kFireballs; ++i) {
    const int state = ram[ram::kFireballState + i];
    if (state == 0 || (state & 0x80) != 0) continue;  // none, or exploding
    const int slot = ram::kFirstFireballSlot + i;
    objects->Add({kFireball, ram.left(slot), ram.top(slot), 8, 8, 0, 0});
  }
}

}  // namespace

const char* TileName(int code) { return kNames[code]; }

void MakeTiles(const uint8_t* memory, uint8_t* grid) {
  const ObjectRam ram(memory);
  const Object mario = Mario(ram);
  // Columns of the level, 16 pixels each; the first one of the grid.
  const int first = ((mario.left + ram.screen_left() + 8) >> 4) - kMarioColumn;
  const int origin = first * kCell - ram.screen_left();  // on the screen
  const uint8_t nothing = RamView(memory).swimming() ? kWater : kEmpty;
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
  ObjectList objects;
  objects.Add(mario);
  FindFireballs(ram, &objects);
  FindObjects(ram, &objects);
  const auto fill = [&](const Object& object, int left, int top, int width,
                        int height) {
    const auto first_cell = [](int at) {
      return std::max((at + kMinOverlap) >> 4, 0);
    };
    const auto last_cell = [](int end, int cells) {
      return std::min((end - kMinOverlap) >> 4, cells - 1);
    };
    const int last_row = last_cell(top + height, kTileRows);
    const int last_column = last_cell(left + width, kTileColumns);
    for (int row = first_cell(top); row <= last_row; ++row) {
      for (int column = first_cell(left); column <= last_column; ++column) {
        uint8_t& cell = grid[row * kTileColumns + column];
        const bool hidden = object.emerges && Hides(cell);
        if (cell != kOutside && !hidden) cell = object.kind;
      }
    }
  };
  for (int i = 0; i < objects.count; ++i) {
    const Object& object = objects.object[i];
    const int left = object.left - origin,
              top = object.top - preprocess::kHudRows;
    if (object.head == Object::kWide) {
      fill(object, left, top, object.width, object.height);
      continue;
    }
    const int side = object.head == Object::kLeftOnly ? 0 : kSprite;
    fill(object, left + side, top, kSprite, kSprite);
    fill(object, left, top + kSprite, object.width, object.height - kSprite);
  }
}

void MakeMotion(const uint8_t* memory, int8_t* rows) {
  const ObjectRam ram(memory);
  const auto narrow = [](int value) {
    return static_cast<int8_t>(std::clamp(value, -128, 127));
  };
  const Object mario = Mario(ram);
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
                          (RamView(memory).a_held() ? 4 : 0))};
  std::memcpy(rows, own, sizeof(own));

  ObjectList objects;
  FindObjects(ram, &objects);
  // The order is by distance, then by all other values, so that it is equal on
  // every machine.
  const auto order = [&](const Object& object) {
    const int bottom = object.top + object.height;
    const int distance =
        std::abs(object.left - mario.left) + std::abs(bottom - feet);
    return std::tuple(distance, object.left, bottom, object.kind,
                      object.speed_x, object.speed_y);
  };
  Object* const end = std::partition(
      objects.object, objects.object + objects.count, [](const Object& object) {
        return object.left > -object.width && object.left < nes::kScreenWidth;
      });
  Object* const last =
      objects.object +
      std::min<std::ptrdiff_t>(end - objects.object, kMotionRows - 1);
  std::partial_sort(
      objects.object, last, end,
      [&](const Object& a, const Object& b) { return order(a) < order(b); });
  for (const Object* object = objects.object; object != last; ++object) {
    rows += kMotionColumns;
    rows[0] = static_cast<int8_t>(object->kind);
    rows[1] = narrow(object->left - mario.left);
    rows[2] = narrow(object->top + object->height - feet);
    rows[3] = narrow(object->speed_x);
    rows[4] = narrow(object->speed_y);
  }
}

void MakeWorld(const uint8_t* memory, int8_t* rows) {
  const int world = RamView(memory).world();
  for (int row = 1; row < kMotionRows; ++row) {
    rows[row * kMotionColumns + kMotionColumns - 1] =
        row == world ? kThisWorld : 0;
  }
}

int MakeObjects(const uint8_t* memory, int16_t* rows) {
  const ObjectRam ram(memory);
  const Object mario = Mario(ram);
  ObjectList objects;
  FindObjects(ram, &objects);
  for (int i = 0; i < objects.count; ++i) {
    const Object& object = objects.object[i];
    const int y = object.top + object.height - (mario.top + mario.height);
    for (const int value :
         {int{object.kind}, object.type, object.left - mario.left, y,
          object.width, object.height, object.speed_x, object.speed_y}) {
      *rows++ =
          static_cast<int16_t>(std::clamp<int>(value, INT16_MIN, INT16_MAX));
    }
  }
  return objects.count;
}

}  // namespace mario
