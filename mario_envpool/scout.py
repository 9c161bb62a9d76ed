"""Finds places in the game where an episode can begin, by entering and testing them.

The game can load any room at any page when Mario takes a pipe: bytes of work RAM have
the number of the room, the page and the way in. The level data, which pointers in the
zero page point to, has the pages of a room and the rooms behind its pipes. So the scout
enters each place as if from a pipe, or walks to it from the previous place. It keeps a
place if Mario stands there, survives for a while without a button, and makes progress
in at least one of several pseudo-random walks to the right.

Addresses and formats are those of the game's public disassembly (doppelganger, 2012)
and of csrc/mario/ram_map.inc. Everything is read from and played on the user's own ROM.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from . import _core, nes

# Work RAM.
_ADDRESS = _core.ram_addresses
_STATE = _ADDRESS["PlayerState"]
_AREA_DATA, _ENEMY_DATA = _ADDRESS["AreaData"], _ADDRESS["EnemyData"]  # pointers
_PAGE, _X = _ADDRESS["PlayerPage"], _ADDRESS["PlayerX"]
_SCREEN_Y, _Y = _ADDRESS["ViewportY"], _ADDRESS["PlayerY"]
_BLOCK_BUFFER = _ADDRESS["BlockBuffer"]  # two screens of 13 rows of 16; 0 is air
_IN_AIR = _ADDRESS["FloatState"]
_SPRITE_0 = _ADDRESS["SpriteZero"]
_AREA_TYPE, _AREA_OF_TYPE = _ADDRESS["AreaType"], _ADDRESS["AreaOfType"]
_AREA_POINTER, _ENTRANCE_PAGE = _ADDRESS["AreaPointer"], _ADDRESS["EntrancePage"]
_WAY_IN, _HALFWAY_PAGE = _ADDRESS["WayIn"], _ADDRESS["HalfwayPage"]
_LIVES, _WORLD = _ADDRESS["Lives"], _ADDRESS["World"]
_MODE, _TASK = _ADDRESS["OperMode"], _ADDRESS["OperModeTask"]
_SCREEN_OFF = _ADDRESS["DisableScreenFlag"]
_NORMAL, _PLAYING = 8, 1

# Ways to enter: from the left, falling or on the ground; 40 pixels further right; out
# of a pipe. The first way that leads to a good place is taken.
_WAYS_IN = (1, 3, 2)
_LOADING_FRAMES = 300  # at most
_SETTLING_FRAMES = 120  # at most, until Mario stands; water has no ground
# Frames of standing that are kept: a real frame stack up to frame_skip * stack_num =
# 32.
_STANDING_FRAMES = 32
_IDLE_FRAMES = 60  # that Mario must survive
_TRIES = 12  # walks to the right, to test a place
_WALKS = 60  # walks towards a page that cannot be entered
_TRY_FRAMES = 240
_PROGRESS_PIXELS = 64
_LOOK_FRAMES = 4  # between two checks whether Mario lives

# Level data: object rows below 12 are positions, other rows are commands.
_AREA_END, _ENEMY_END = 0xFD, 0xFF
_ROW_PIPE, _ROW_PAGE = 14, 15  # of enemies
_ROW_SPECIAL = 13
_FLAGPOLE, _AXE = 1, 2


@dataclass(frozen=True)
class Place:
    """A place where an episode can begin.

    Attributes:
        name: such as "1-1/page-03" or "1-1/room-66/page-00".
        save: a console state some frames before the place (``nes.Console.save``).
        buttons: the pad byte of each frame since the save, two frames or more.
    """

    name: str
    save: bytes
    buttons: bytes


@dataclass(frozen=True)
class _Room:
    """A room as its level data describes it."""

    pointer: int
    last_page: int
    exits: list[tuple[int, int, int]]  # page, room behind the pipe, its page


def places(image: bytes, stage: str, lost_levels: bool = False) -> Iterator[Place]:
    """Yields the places of a level, in the order of the game.

    Args:
        image: the iNES image.
        stage: a level such as "4-2".
        lost_levels: whether the image is the Lost Levels.
    """
    options = {"stages": [stage], "lost_levels": lost_levels, "obs_type": "ram"}
    env = _core._MarioEnv(image, options)
    env.reset()
    start = env.save_console()
    yield Place(f"{stage}/start", start, bytes(2))
    yield from _along(nes.Console(image), stage, start)


def _along(console: nes.Console, stage: str, start: bytes) -> Iterator[Place]:
    """Yields the good places of a level: main room first, then rooms behind pipes."""
    console.load(start)
    main = _read_room(console)
    waiting = [(main.pointer, 0, main.last_page + 1, main.exits)]
    seen = {main.pointer}
    while waiting:
        pointer, first, end, exits = waiting.pop(0)
        is_main = pointer == main.pointer
        room = "" if is_main else f"room-{pointer:02d}/"
        place = Place("", start, bytes(2)) if is_main else None
        for page in range(first, end + (not is_main)):
            found = None
            if page < max(end, first + 1):
                found = _try_page(console, start, pointer, page)
            if found is None and place is not None:
                found = _walk_on(console, place, page)
            if found is None:
                continue
            place = Place(f"{stage}/{room}page-{page:02d}", *found)
            yield place
        for _, behind, page in exits:
            if behind in seen:
                continue
            seen.add(behind)
            if not _enter(console, start, behind, page, 1):
                continue
            sub = _read_room(console)
            # Several levels share a room: each level has the pages before its next
            # exit. It has the page of the exit only if Mario can walk there.
            ways_on = [way for way in sub.exits if way[0] >= page]
            end = min((way[0] for way in ways_on), default=sub.last_page + 1)
            waiting.append((behind, page, end, [w for w in ways_on if w[0] == end]))


def _try_page(
    console: nes.Console, start: bytes, pointer: int, page: int
) -> tuple[bytes, bytes] | None:
    """Enters a page; returns save and buttons of a good place, else None."""
    for way_in in _WAYS_IN:
        if not _enter(console, start, pointer, page, way_in):
            continue
        save = console.save()
        frames = _settle(console)
        if frames and _is_good(console, f"{pointer}/{page}/{way_in}"):
            return save, bytes(frames)
    return None


def _walk_on(
    console: nes.Console, place: Place, page: int
) -> tuple[bytes, bytes] | None:
    """Plays from a place until Mario stands on a page; returns as ``_try_page``."""
    console.load(place.save)
    console.step_many(place.buttons)
    here = console.save()
    ram = console.ram
    lives, pointer = int(ram[_LIVES]), _pointer(console)
    drawn = random.Random(f"{place.name} to {page}")
    for _ in range(_WALKS):
        console.load(here)
        buttons = _way_right(drawn)
        for at in range(_LOOK_FRAMES, len(buttons), _LOOK_FRAMES):
            console.step_many(buttons[at - _LOOK_FRAMES : at])
            if not _lives(console, lives) or _pointer(console) != pointer:
                break
            if ram[_PAGE] == page and at >= _STANDING_FRAMES and _stands(console):
                there = console.save()
                if _is_good(console, f"{place.name} to {page}"):
                    console.load(here)
                    console.step_many(buttons[: at - _STANDING_FRAMES])
                    return console.save(), buttons[at - _STANDING_FRAMES : at]
                console.load(there)
    return None


def _enter(
    console: nes.Console, start: bytes, pointer: int, page: int, way_in: int
) -> bool:
    """Loads a room at a page; returns whether Mario can be controlled there."""
    console.load(start)
    ram = console.ram
    ram[_AREA_POINTER] = pointer
    ram[_ENTRANCE_PAGE] = page
    ram[_WAY_IN] = way_in
    ram[_HALFWAY_PAGE] = 0
    ram[_TASK] = 0
    ram[_SPRITE_0] = 0
    ram[_SCREEN_OFF] = 1
    lives = int(ram[_LIVES])
    for _ in range(_LOADING_FRAMES):
        console.step(0, False)
        if ram[_TASK] == 3 and ram[_STATE] == _NORMAL:
            return _lives(console, lives)
    return False


def _settle(console: nes.Console) -> int:
    """Waits until Mario has stood for a while; returns the frames, 0 if he dies."""
    ram = console.ram
    lives = int(ram[_LIVES])
    for frame in range(_SETTLING_FRAMES):
        if _stands(console) and frame > 0:
            break
        console.step(0, False)
        if not _lives(console, lives):
            return 0
    for _ in range(_STANDING_FRAMES):
        console.step(0, False)
        if not _lives(console, lives):
            return 0
    return frame + _STANDING_FRAMES


def _is_good(console: nes.Console, seed: str) -> bool:
    """Whether Mario survives there for a while and can continue to the right."""
    if _is_walled_in(console):
        return False
    here = console.save()
    ram = console.ram
    lives = int(ram[_LIVES])
    if not _plays(console, bytes(_IDLE_FRAMES), lives):
        return False
    drawn = random.Random(seed)
    for _ in range(_TRIES):
        console.load(here)
        before, pointer = _position(console), _pointer(console)
        if not _plays(console, _way_right(drawn), lives):
            continue
        gain = _position(console) - before
        if gain >= _PROGRESS_PIXELS or _pointer(console) != pointer:
            return True
    return False


def _way_right(drawn: random.Random) -> bytes:
    """Returns buttons of one walk to the right: running, with jumps of any length."""
    buttons = bytearray()
    while len(buttons) < _TRY_FRAMES:
        run = nes.RIGHT | (nes.B if drawn.random() < 0.7 else 0)
        buttons += bytes([run]) * drawn.randrange(1, 25)
        buttons += bytes([run | nes.A]) * drawn.randrange(4, 30)
    return bytes(buttons[:_TRY_FRAMES])


def _plays(console: nes.Console, buttons: bytes, lives: int) -> bool:
    """Plays the buttons; returns whether Mario survives."""
    for at in range(0, len(buttons), _LOOK_FRAMES):
        console.step_many(buttons[at : at + _LOOK_FRAMES])
        if not _lives(console, lives, in_control=False):
            return False
    return True


def _lives(console: nes.Console, lives: int, in_control: bool = True) -> bool:
    ram = console.ram
    if ram[_LIVES] != lives or ram[_SCREEN_Y] > 1 or ram[_STATE] in (6, 11):
        return False
    return not in_control or bool(ram[_STATE] == _NORMAL and ram[_MODE] == _PLAYING)


def _stands(console: nes.Console) -> bool:
    return bool(console.ram[_IN_AIR] == 0)


def _is_walled_in(console: nes.Console) -> bool:
    """Whether the middle of Mario's body is in a block; the game pushes him out."""
    ram = console.ram
    x = _position(console) + 8
    row = (int(ram[_Y]) + 24 - 32) // 16
    at = (x >> 8 & 1) * 0xD0 + row * 16 + (x >> 4 & 15)
    return 0 <= row < 13 and bool(ram[_BLOCK_BUFFER + at] != 0)


def _position(console: nes.Console) -> int:
    return int(console.ram[_PAGE]) * 256 + int(console.ram[_X])


def _pointer(console: nes.Console) -> int:
    """Returns the loaded room, in the numbers of ``info["area_pointer"]``."""
    ram = console.ram
    return (int(ram[_AREA_TYPE]) & 3) << 5 | int(ram[_AREA_OF_TYPE]) & 31


def _read_room(console: nes.Console) -> _Room:
    """Reads the level data of the room that is loaded."""
    world = int(console.ram[_WORLD])
    return _Room(_pointer(console), _last_page(console), _exits(console, world))


def _last_page(console: nes.Console) -> int:
    """Returns the page of the flagpole or axe, else of the last object."""
    page = last = 0
    data = _follow(console, _AREA_DATA)
    for first, second in zip(data, data, strict=False):
        if first == _AREA_END:
            break
        page += second >> 7
        if first & 15 != _ROW_SPECIAL:
            last = page
        elif not second & 0x40:
            page = second & 31
        elif second & 63 in (_FLAGPOLE, _AXE):
            return page
    return last


def _exits(console: nes.Console, world: int) -> list[tuple[int, int, int]]:
    """Lists (page, room behind the pipe, its page) of the exits in a world."""
    page = 0
    exits = []
    data = _follow(console, _ENEMY_DATA)
    for first, second in zip(data, data, strict=False):
        if first == _ENEMY_END:
            break
        if first & 15 == _ROW_PAGE:
            page = second & 63
            continue
        page += second >> 7
        if first & 15 == _ROW_PIPE:
            third = next(data, 0)
            if third >> 5 == world:
                exits.append((page, second & 127, third & 31))
    return exits


def _follow(console: nes.Console, pointer: int) -> Iterator[int]:
    """Yields the bytes that a pointer of the zero page points to."""
    ram = console.ram
    at = int(ram[pointer]) | int(ram[pointer + 1]) << 8
    for offset in range(256):  # the game's own index is a byte
        yield console.peek(at + offset & 0xFFFF)
