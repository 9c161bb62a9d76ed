"""Pictures of whole rooms, drawn by the game itself while its screen moves along.

A level has one room or several: caves, water, bonus rooms behind pipes. The player
moves through a room high above the screen, where nothing reaches him, and every frame
adds the columns that are new. Sprites (enemies, lifts) are left out. Pictures are drawn
on demand from the user's ROM and never stored.

Names in quotes come from doppelganger's commented disassembly; the RAM map of the game
at Data Crystal also explains each address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config.tasks import game_of

# The status bar, above the room.
HUD_ROWS = 32

# Values written to work RAM before every frame, by address. They keep the player one
# screen above this one, without vertical speed, at his highest horizontal speed (2.5
# pixels per frame), under control and without collisions. The screen is not locked, no
# maze throws him back, and no colour cycles.
_HELD = {
    0x000E: 8,  # "GameEngineSubroutine": under control
    0x00B5: 0,  # "Player_Y_HighPos"
    0x00CE: 160,  # "Player_Y_Position"
    0x009F: 0,  # "Player_Y_Speed"
    0x0057: 40,  # "Player_X_Speed"
    0x0716: 1,  # "DisableCollisionDet"
    0x0723: 0,  # "ScrollLock"
    0x0745: 0,  # "LoopCommand"
    0x06D4: 0,  # "ColorRotateOffset"
}
_HELD_AT, _HELD_VALUES = np.array(list(_HELD)), np.array(list(_HELD.values()), np.uint8)

# "Sprite_Y_Position" of all sprites but the first, which marks the end of the status
# bar for the game; and a row below the screen.
_SPRITES, _BELOW = slice(0x0204, 0x0300, 4), 248

_AREA_POINTER = 0x0750  # "AreaPointer": the room to load
_ENTRANCE = [0x0751, 0x0752, 0x075B]  # "EntrancePage" and two others: 0 is its left end
_TASK, _PLAYING = 0x0772, 3  # "OperMode_Task": 0 loads the room
_CAMERA = 0x071A, 0x071C  # "ScreenLeft_PageLoc", "ScreenLeft_X_Pos"
_BUILDING = 0x0725, 0x0726  # "CurrentPageLoc", "CurrentColumnPos": what is built next
_OBJECTS = slice(0x0730, 0x0733)  # "AreaObjectLength", $FF where none is being built
_DATA, _OFFSET = (0x00E7, 0x00E8), 0x072C  # "AreaData", "AreaDataOffset"
_END_OF_DATA = 0xFD

_LOADING_STEPS = 100  # more than the game needs

_COLUMN = 16  # pixels
_MARGIN = 64  # after the last object: the rest of a castle, for example
_SCREEN = 256
_LAST_X = 32 * _SCREEN  # no room has more pages
_SLOWEST = 2  # pixels a frame, on average
_RIGHT_AND_B = 0x82

# A console image: 16 bytes, then what the processor sees from $8000 on.
_HEADER, _PROGRAM = 16, 0x8000


def room_picture(
    task: str, level: str, area: int, rom_path: str = ""
) -> npt.NDArray[np.uint8]:
    """A picture of a whole room, without status bar and sprites."""
    from mario_envpool import _core, rom
    from mario_envpool.registration import TASKS

    options = dict(TASKS[game_of(task)])
    image = rom.load(options.pop("rom"), rom_path)
    options |= {"stages": [level], "frame_skip": 1, "action_set": "raw"}
    env = _core._MarioEnv(image, options)
    env.reset()
    _enter(env, area)
    return _scan(env, image)


def _enter(env: Any, area: int) -> None:
    """Goes to the left end of a room."""
    env.ram[_AREA_POINTER] = area
    env.ram[_ENTRANCE] = 0
    env.ram[_TASK] = 0
    for _ in range(_LOADING_STEPS):
        if env.ram[_TASK] == _PLAYING:
            return
        env.step(0)
    raise RuntimeError(f"there is no room {area:#04x}")


def _scan(env: Any, image: bytes) -> npt.NDArray[np.uint8]:
    """Pictures side by side, up to the end of the room's data."""
    ram = env.ram
    picture = np.zeros((240 - HUD_ROWS, _LAST_X, 3), np.uint8)
    done, end = 0, None
    for _ in range(_LAST_X // _SLOWEST):
        ram[_HELD_AT] = _HELD_VALUES
        ram[_SPRITES] = _BELOW
        camera = _word(ram, *_CAMERA)
        env.step(_RIGHT_AND_B)
        if end is None and _is_complete(ram, image):
            page, column = (int(ram[at]) for at in _BUILDING)
            end = max(_SCREEN, page * _SCREEN + column * _COLUMN + _MARGIN)
        # Whole columns only, so that a block comes from one frame.
        new = min(camera + _SCREEN, _LAST_X) // _COLUMN * _COLUMN
        if new > done:
            screen = env.render()[HUD_ROWS:]
            picture[:, done:new] = screen[:, done - camera : new - camera]
            done = new
        if end is not None and done >= end:
            return picture[:, :end].copy()
    raise RuntimeError(f"the room does not end within {_LAST_X} pixels")


def _word(ram: npt.NDArray[np.uint8], high: int, low: int) -> int:
    return int(ram[high]) << 8 | int(ram[low])


def _is_complete(ram: npt.NDArray[np.uint8], image: bytes) -> bool:
    """Whether every object of the room's data has been built."""
    low, high = _DATA
    at = _word(ram, high, low) + int(ram[_OFFSET]) - _PROGRAM + _HEADER
    return image[at] == _END_OF_DATA and bool((ram[_OBJECTS] == 0xFF).all())
