"""Tiles and motion: they show what the picture shows, known from the picture alone.

The picture's side is what the console draws from: the name tables, by the patterns of
the 8x8 tiles, and the sprites in OAM, by theirs. Neither knows the game's object slots
or block buffers, from which tiles and motion are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from screens import LEVELS, PAGES, start

from mario_envpool import _core, nes, tiles

Ram = np.ndarray[Any, np.dtype[np.uint8]]
CODE = {name: code for code, name in enumerate(tiles.NAMES)}
SEEDS = (0, 4)
STATES = 2000
LARGEST_EXTRA = 0.01

# Background patterns, by the four 8x8 tiles of a cell: upper left, upper right, lower
# left, lower right.
BRICKS = {(0x47, 0x47, 0x47, 0x47), (0x45, 0x45, 0x47, 0x47)}
QUESTIONS = {(0x53, 0x54, 0x55, 0x56)}
# Of all castles (scenery whose walls look like bricks): battlements, windows, doors.
CASTLES = {
    (0x9D, 0x9E, 0x47, 0x47),
    (0xA9, 0xAA, 0x47, 0x47),
    (0x9B, 0x9C, 0x27, 0x27),
    (0x27, 0x27, 0x27, 0x27),
    (0x27, 0x47, 0x27, 0x47),
    (0x47, 0x27, 0x47, 0x27),
}
SOLIDS = {
    (0xB4, 0xB5, 0xB6, 0xB7),  # ground
    (0x5D, 0x5D, 0x5E, 0x5E),  # castle
    (0x82, 0x84, 0x83, 0x85),  # sea bed
    (0xAB, 0xAD, 0xAC, 0xAE),  # stairs
    (0x4B, 0x4D, 0x4C, 0x4E),  # trees: left, middle, right
    (0x4D, 0x4D, 0x4F, 0x4F),
    (0x4D, 0x50, 0x4E, 0x51),
    (0x6B, 0x2C, 0x70, 0x2D),  # mushrooms: left, middle, right
    (0x6C, 0x6D, 0x71, 0x72),
    (0x6E, 0x6F, 0x73, 0x74),
    (0x57, 0x58, 0x59, 0x5A),  # used block
    (0xC6, 0xC7, 0xC8, 0xC9),  # cannon
    (0xCA, 0xCB, 0xCC, 0xCD),
    (0x2A, 0x40, 0x2A, 0x40),
    (0xC1, 0xC1, 0x24, 0x24),  # bridge
    (0x77, 0x77, 0x79, 0x79),
    (0xA4, 0xEA, 0xE9, 0xEB),  # coral
}
HARMLESS_SPRITES = {
    *range(0x50),  # Mario
    *range(0x54, 0x5B),  # flag of a castle
    *range(0x60, 0x64),  # coins
    *range(0x66, 0x69),  # explosions
    *range(0x76, 0x7A),  # mushrooms
    *(0x5B, 0x75),  # lifts
    *(0x74, 0x7E, 0x7F, 0x84, 0x85, 0x86, 0x87),  # bubble, flag, blocks that are hit
    *(0x8D, 0xE4, 0xD6, 0xD9),  # star, flower
    *(0x9E, 0x9F, 0xFC, 0xFF),  # Mario, blank, the coin of the status bar
    *(0xE0, 0xE1),  # vine
    *(0xF0, 0xF1, 0xF2, 0xF3, 0xF4),  # spring
    *range(0xF6, 0xFE),  # points
    *(0xCD, 0xCE, 0xCF),
}
BLOCKS = {0x85, 0x86, 0x87}  # that are hit: away from the background for a moment
# The sprites of Mario's fireballs are those of firebars.
FIREBALLS = (0x64, 0x65)


State = tuple[Ram, Ram]  # work RAM, and the name tables of the picture of it


def states(rom: bytes, seed: int) -> Iterator[State]:
    """Random play, mostly to the right, from several screens of every level."""
    rng = np.random.default_rng(seed)
    for world, stage in LEVELS:
        for page in PAGES:
            console = start(rom, world, stage, page)
            if console is None:
                continue
            ram = console.ram
            buttons = nes.RIGHT
            for frame in range(160):
                if frame % 10 == 0:
                    buttons = int(rng.choice((128, 129, 130, 131, 131, 64, 0)))
                console.step(buttons, False)
                if ram[0x0E] != 8:  # not in play any more
                    break
                if frame % 20 != 19:
                    continue
                save, seen = console.save(), ram.copy()
                console.step(0, False)  # the next frame shows what RAM says now
                yield seen, console.nametable
                console.load(save)


def corner(ram: Ram) -> tuple[int, int]:
    """The level column that the grid begins with, and its pixel on the screen."""
    first = (int(ram[0x6D]) * 256 + int(ram[0x86]) + 8) // 16 - tiles.MARIO_COLUMN
    return first, first * 16 - int(ram[0x71A]) * 256 - int(ram[0x71C])


def patterns(ram: Ram, nametable: Ram) -> dict[tuple[int, int], tuple[int, ...]]:
    """(row, column) of the grid -> the four tiles that the background has there."""
    tables = nametable.reshape(2, 1024)[:, :960].reshape(2, 30, 32)
    first, _ = corner(ram)
    found = {}
    for column in range(16):
        at = first + column
        for row in range(13):
            cell = tables[at >> 4 & 1, 4 + 2 * row :, (at & 15) * 2 :][:2, :2]
            found[row, column] = tuple(int(tile) for tile in cell.ravel())
    return found


def without_castles(
    cells: dict[tuple[int, int], tuple[int, ...]],
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Leaves out bricks that hang together with a castle's battlements or door."""
    left = dict(cells)
    edge = [at for at, pattern in cells.items() if pattern in CASTLES]
    while edge:
        row, column = edge.pop()
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            at = row + down, column + right
            if left.get(at) in BRICKS:
                del left[at]
                edge.append(at)
    return left


def sprites(
    ram: Ram,
) -> Iterator[tuple[int, int, set[tuple[int, int]], tuple[int, int]]]:
    """Pattern, attributes, cells of the grid and cell of the middle, of each sprite."""
    _, origin = corner(ram)
    for y, tile, attributes, x in ram[0x200:0x300].reshape(64, 4).astype(int).tolist():
        if y >= 0xEF:  # off the screen
            continue
        top, left = y + 1 - 32, x - origin
        cells = {
            (row, column)
            for row in (top >> 4, (top + 7) >> 4)
            for column in (left >> 4, (left + 7) >> 4)
            if 0 <= row < 13 and 0 <= column < 16
        }
        yield tile, attributes, cells, ((top + 4) >> 4, (left + 4) >> 4)


def compare_background(state: State, seen: Counter[str]) -> None:
    ram, nametable = state
    grid = _core.tiles(ram)
    hit = set().union(*(s[2] for s in sprites(ram) if s[0] in BLOCKS))
    moving = {CODE[name] for name in tiles.NAMES[CODE["spring"] :]}
    cells = {
        at: pattern
        for at, pattern in without_castles(patterns(ram, nametable)).items()
        if grid[at] != CODE["outside"] and grid[at] not in moving and at not in hit
    }
    for kind, looks in (("brick", BRICKS), ("question", QUESTIONS), ("solid", SOLIDS)):
        for at, pattern in cells.items():
            is_there, is_told = pattern in looks, bool(grid[at] == CODE[kind])
            seen[kind] += is_there
            seen[f"{kind} missing"] += is_there and not is_told
            seen[f"{kind} extra"] += is_told and not is_there


def compare_enemies(state: State, seen: Counter[str]) -> None:
    ram, nametable = state
    grid = _core.tiles(ram)
    cells = patterns(ram, nametable)
    enemies = (CODE["enemy"], CODE["danger"])
    thrown = ram[[0x24, 0x25]].any()
    touched: set[tuple[int, int]] = set()
    for tile, attributes, overlap, middle in sprites(ram):
        if tile in HARMLESS_SPRITES or (thrown and tile in FIREBALLS):
            continue
        touched |= overlap
        if middle not in overlap or grid[middle] == CODE["outside"]:
            continue
        if attributes & 0x20 and cells[middle] != (0x24,) * 4:
            continue  # behind a pipe
        if attributes & 0x80:
            continue  # upside down: it has been beaten
        seen["enemy"] += 1
        seen["enemy missing"] += all(grid[at] not in enemies for at in overlap)
    for row, column in np.argwhere(np.isin(grid, enemies)).tolist():
        seen["enemy cells"] += 1
        seen["enemy extra"] += (row, column) not in touched


@pytest.fixture(scope="module")
def random_states(load_rom: Callable[[str], bytes]) -> list[State]:
    rom = load_rom("vanilla")
    found = [state for seed in SEEDS for state in states(rom, seed)]
    print(len(found))
    assert len(found) >= STATES
    return found


@pytest.mark.slow
@pytest.mark.rom
def test_background_agrees_with_the_picture(random_states: list[State]) -> None:
    seen: Counter[str] = Counter()
    for state in random_states:
        compare_background(state, seen)
    print(dict(seen))
    for kind in ("brick", "question", "solid"):
        assert seen[kind] > 100
        assert seen[f"{kind} missing"] == 0
        assert seen[f"{kind} extra"] <= LARGEST_EXTRA * seen[kind]


@pytest.mark.slow
@pytest.mark.rom
def test_enemies_agree_with_the_picture(random_states: list[State]) -> None:
    seen: Counter[str] = Counter()
    for state in random_states:
        compare_enemies(state, seen)
    print(dict(seen))
    assert seen["enemy"] > 500
    assert seen["enemy missing"] == 0
    assert seen["enemy extra"] <= LARGEST_EXTRA * seen["enemy cells"]
