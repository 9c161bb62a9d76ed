// The addresses in work RAM of Super Mario Bros. that the task reads or writes.
// Names in quotes are those of doppelganger's commented disassembly; the
// meaning of each address is also on the Data Crystal RAM map page of the game.
#pragma once

#include <cstdint>

namespace mario::ram {

constexpr uint16_t kPlayerState = 0x000E;  // "GameEngineSubroutine", see below
constexpr uint16_t kButtonsBefore = 0x000D;  // A and B of the last frame
constexpr uint16_t kEnemyFlag = 0x000F;      // not 0: the slot is in use
constexpr uint16_t kEnemyType = 0x0016;      // "Enemy_ID", five slots
constexpr int kEnemySlots = 5;               // and a sixth for items
constexpr uint16_t kFloatState = 0x001D;  // "Player_State"; 3: on pole or vine
constexpr uint16_t kEnemyState = 0x001E;
constexpr uint16_t kFireballState = 0x0024;
constexpr int kFireballs = 2;
constexpr uint16_t kMiscState = 0x002A;  // hammers, and coins out of blocks
constexpr int kHammers = 9;
constexpr uint16_t kFirebarDirection = 0x0034;  // "FirebarSpinDirection"
constexpr uint16_t kMovingDirection = 0x0046;   // of enemies; 1 right, 2 left
// Bytes of objects are stored in rows: Mario's byte, those of six enemies, then
// others.
constexpr uint16_t kSpeedX = 0x0057;
constexpr uint16_t kMiscSpeedX = 0x0064;
constexpr uint16_t kPlayerPage = 0x006D;  // x position, high byte
constexpr uint16_t kPlayerX = 0x0086;     // x position, low byte
constexpr uint16_t kSpeedY = 0x009F;
constexpr uint16_t kMiscSpeedY = 0x00AC;
constexpr uint16_t kViewportY = 0x00B5;  // 0 above, 1 on, 2.. below the screen
constexpr uint16_t kPlayerY = 0x00CE;    // y position on the screen, low byte
constexpr int kFirstFireballSlot = 7;
constexpr int kFirstMiscSlot = 13;
constexpr uint16_t kBowserSpeed =
    0x0365;  // "BowserMovementSpeed", see tiles.cc
constexpr uint16_t kBowserFront = 0x0368;   // slot of his front half
constexpr uint16_t kFirebarSpeed = 0x0388;  // "FirebarSpinSpeed", of each enemy
constexpr uint16_t kPixelY = 0x03B8;        // y on the screen
constexpr uint16_t kSpeedYPart = 0x0433;    // "Y_MoveForce": 1/256 of kSpeedY

constexpr uint16_t kBlockBuffer = 0x0500;  // two screens of 13 rows of 16 bytes
constexpr uint16_t kSecondaryHardMode = 0x06CC;
constexpr uint16_t kLoopCorrect = 0x06D9;      // "MultiLoopCorrectCntr"
constexpr uint16_t kLoopPass = 0x06DA;         // "MultiLoopPassCntr"
constexpr uint16_t kChangeAreaTimer = 0x06DE;  // "ChangeAreaTimer"
constexpr uint16_t kSwimming = 0x0704;
constexpr uint16_t kCrouching = 0x0714;
constexpr uint16_t kScreenLeftPage = 0x071A;
constexpr uint16_t kScreenLeftX = 0x071C;
constexpr uint16_t kLoopCommand = 0x0745;  // "LoopCommand"
constexpr uint16_t kTimeStands = 0x0747;   // "TimerControl"; Mario changes size
// The room whose data is loaded, in two parts. "AreaPointer" at $0750 does not
// serve: it names the room behind the next pipe as soon as that pipe is in
// sight.
constexpr uint16_t kAreaType = 0x074E;     // "AreaType": water, ground, ...
constexpr uint16_t kAreaOfType = 0x074F;   // "AreaAddrsLOffset"
constexpr uint16_t kPlayerSize = 0x0754;   // 0 tall, 1 small
constexpr uint16_t kPowerStatus = 0x0756;  // 0 small, 1 tall, 2 fireball
constexpr uint16_t kLives = 0x075A;        // lives left; $FF: game over
constexpr uint16_t kStage = 0x075C;        // shown stage - 1
constexpr uint16_t kWorld = 0x075F;        // shown world - 1
constexpr uint16_t kArea = 0x0760;         // room of the world, counted on
constexpr uint16_t kOperMode = 0x0770;     // see below
constexpr uint16_t kFrenzyTimer = 0x078F;  // "FrenzyEnemyTimer"
constexpr uint16_t kStarTimer = 0x079F;
constexpr uint16_t kPrelevelTimer = 0x07A0;  // "ScreenTimer"

// Numbers of the status bar: decimal digits, one byte each.
constexpr uint16_t kScore = 0x07DE;
constexpr int kScoreDigits = 6;
constexpr uint16_t kCoins = 0x07ED;
constexpr int kCoinDigits = 2;
constexpr uint16_t kTime = 0x07F8;
constexpr int kTimeDigits = 3;

// Values of kPlayerState.
constexpr uint8_t kStateDead = 0x06;
constexpr uint8_t kStateNormal = 0x08;
constexpr uint8_t kStateDying = 0x0B;

// Values of kOperMode.
constexpr uint8_t kModePlaying = 1;
constexpr uint8_t kModeWorldOver = 2;

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
