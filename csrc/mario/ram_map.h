// Work RAM of Super Mario Bros. as far as the task reads or writes it. Names
// in quotes are those of doppelganger's commented disassembly; the meaning of
// each address is also on the Data Crystal RAM map page of the game.
#pragma once

#include <cstdint>

namespace mario::ram {

constexpr uint16_t kPlayerState = 0x000E;  // "GameEngineSubroutine", see below
constexpr uint16_t kEnemyType = 0x0016;    // "Enemy_ID", five slots
constexpr int kEnemySlots = 5;
constexpr uint16_t kFloatState = 0x001D;  // "Player_State"; 3: on pole or vine
constexpr uint16_t kPlayerPage = 0x006D;  // x position, high byte
constexpr uint16_t kPlayerX = 0x0086;     // x position, low byte
constexpr uint16_t kViewportY = 0x00B5;   // 0 above, 1 on, 2.. below the screen
constexpr uint16_t kPixelY = 0x03B8;      // y on the screen

constexpr uint16_t kLoopCorrect = 0x06D9;      // "MultiLoopCorrectCntr"
constexpr uint16_t kLoopPass = 0x06DA;         // "MultiLoopPassCntr"
constexpr uint16_t kChangeAreaTimer = 0x06DE;  // "ChangeAreaTimer"
constexpr uint16_t kLoopCommand = 0x0745;      // "LoopCommand"
// The room whose data is loaded, in two parts. "AreaPointer" at $0750 is no
// help: it names the room behind the next pipe from when that is in sight.
constexpr uint16_t kAreaType = 0x074E;       // "AreaType": water, ground, ...
constexpr uint16_t kAreaOfType = 0x074F;     // "AreaAddrsLOffset"
constexpr uint16_t kPowerStatus = 0x0756;    // 0 small, 1 tall, 2 fireball
constexpr uint16_t kLives = 0x075A;          // lives left; $FF: game over
constexpr uint16_t kStage = 0x075C;          // shown stage - 1
constexpr uint16_t kWorld = 0x075F;          // shown world - 1
constexpr uint16_t kArea = 0x0760;           // room of the world, counted on
constexpr uint16_t kOperMode = 0x0770;       // see below
constexpr uint16_t kPrelevelTimer = 0x07A0;  // "ScreenTimer"
constexpr uint16_t kScore = 0x07DE;          // six decimal digits
constexpr uint16_t kCoins = 0x07ED;          // two decimal digits
constexpr uint16_t kTime = 0x07F8;           // three decimal digits

// Values of kPlayerState.
constexpr uint8_t kStateDead = 0x06;
constexpr uint8_t kStateNormal = 0x08;
constexpr uint8_t kStateDying = 0x0B;

// Values of kOperMode.
constexpr uint8_t kModePlaying = 1;
constexpr uint8_t kModeWorldOver = 2;

// Enemy types that stand at the end of a stage.
constexpr uint8_t kEnemyBowser = 0x2D;
constexpr uint8_t kEnemyFlagpole = 0x31;

constexpr uint8_t kFloatStateFlagpole = 3;
constexpr uint8_t kGameOverLives = 0xFF;

}  // namespace mario::ram
