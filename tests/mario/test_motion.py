"""The speeds in `motion` against how far things move in the frames around a moment.

RAM is shown to `motion` with one thing in it at a time, so that it is known which row
is which thing before and after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from screens import LEVELS, PAGES, start

from mario_envpool import _core

Ram = np.ndarray[Any, np.dtype[np.uint8]]
FRAMES = 4  # before and after a moment
SIXTEENTHS = 16  # the unit of speeds
# Addresses: slots in use, their types, hammers, whether time stands still.
IN_USE, TYPES, HAMMERS, STANDS = 0x0F, 0x16, 0x2A, 0x747
SLOTS, FIREBARS = 6, range(0x1B, 0x20)
# Type -> (name, largest median error to the right, and down, in 1/16 pixel a frame).
# Plants and bloopers move by half pixels, Bowser walks every fourth frame.
KNOWN = {
    0x00: ("koopa", 1, 1),
    0x05: ("hammer brother", 1, 4),
    0x06: ("goomba", 1, 1),
    0x07: ("blooper", 4, 4),
    0x08: ("bullet", 1, 1),
    0x0A: ("grey cheep", 1, 2),
    0x0B: ("red cheep", 1, 2),
    0x0D: ("plant", 1, 4),
    0x0E: ("jumping koopa", 1, 8),
    0x11: ("lakitu", 2, 1),
    0x14: ("flying cheep", 1, 4),
    0x28: ("lift to and fro", 2, 1),
    0x2D: ("bowser", 8, 8),
    0x33: ("bullet of a cannon", 1, 1),
}


def moments(rom: bytes) -> Iterator[tuple[Ram, Ram, Ram]]:
    """RAM before a moment, at it and after it, in random play in every level."""
    rng = np.random.default_rng(0)
    for world, stage in LEVELS:
        for page in PAGES:
            console = start(rom, world, stage, page)
            if console is None:
                continue
            seen: list[Ram] = []
            for frame in range(200):
                if frame % 10 == 0:
                    buttons = int(rng.choice((128, 129, 130, 131, 131, 64, 0)))
                console.step(buttons, False)
                if console.ram[0x0E] != 8:  # not in play any more
                    break
                seen.append(console.ram.copy())
                around = seen[-2 * FRAMES - 1 :]
                if frame % 5 != 4 or len(around) <= 2 * FRAMES:
                    continue
                if not any(ram[STANDS] for ram in around):
                    yield around[0], around[FRAMES], around[-1]


def alone(ram: Ram, slot: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """The rows of `motion` that one thing has; Mario's is the first."""
    shown = ram.copy()
    shown[[IN_USE + other for other in range(SLOTS) if other != slot]] = 0
    shown[HAMMERS : HAMMERS + 9] = 0
    rows = _core.motion(shown)
    return rows[rows[:, 0] != 0]


def place(ram: Ram, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(things, 2) pixels in the level; a number at the end of its range is nan."""
    away = rows[1:, 1:3].astype(float)
    away[np.abs(away) > 125] = np.nan
    mario = np.array([int(ram[0x6D]) * 256 + int(ram[0x86]), int(rows[0, 2])])
    return away + mario


@pytest.fixture(scope="module")
def seen(load_rom: Callable[[str], bytes]) -> dict[int, list[Any]]:
    """Type -> the speeds that are told, and places before, at and after a moment."""
    found: dict[int, list[Any]] = defaultdict(list)
    for rams in moments(load_rom("vanilla")):
        for slot in range(SLOTS):
            kinds = {int(ram[TYPES + slot]) for ram in rams}
            if len(kinds) > 1 or not all(ram[IN_USE + slot] for ram in rams):
                continue
            rows = [alone(ram, slot) for ram in rams]
            if len({len(r) for r in rows}) == 1 and len(rows[0]) > 1:
                speeds = rows[1][1:, 3:5] / SIXTEENTHS
                found[kinds.pop()].append((speeds, *map(place, rams, rows)))
    return found


@pytest.mark.rom
def test_speeds_are_those_of_the_things(seen: dict[int, list[Any]]) -> None:
    checked = 0
    for kind, (name, most_x, most_y) in KNOWN.items():
        errors = [
            np.abs(speeds - (after - before) / (2 * FRAMES))[0] * SIXTEENTHS
            for speeds, before, _, after in seen[kind]
        ]
        if len(errors) < 10:
            continue
        checked += 1
        x, y = np.nanmedian(errors, axis=0)
        print(f"{name:20} {len(errors):5}  {x:5.2f} {y:5.2f}")
        assert x <= most_x, name
        assert y <= most_y, name
    assert checked >= len(KNOWN) - 3


@pytest.mark.rom
def test_speeds_of_firebars(seen: dict[int, list[Any]]) -> None:
    """Balls are, some frames later, where their speeds take them."""
    moved, stood = [], []
    for kind in FIREBARS:
        for speeds, _, now, after in seen[kind]:
            # Rows are sorted by their distance from Mario, which changes.
            for places, to in ((now + speeds * FRAMES, moved), (now, stood)):
                distances = np.abs(places[:, None] - after[None]).max(2)
                distances[np.isnan(distances)] = np.inf
                to += distances.min(1).tolist()
    assert len(moved) > 100
    print(len(moved), np.median(moved), np.median(stood))
    # They turn by whole thirty-seconds of a turn.
    assert np.median(moved) <= 0.6 * np.median(stood)
