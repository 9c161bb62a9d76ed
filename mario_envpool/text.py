"""What a person would say about a moment of the game: ``obs_type="text"``.

docs/language-models.md describes the sentences.

>>> from mario_envpool import text
>>> print(text.describe(ram))  # work RAM, as of obs_type="ram"
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Text

from . import _core
from .codes import STATUS

# In characters. No text of this length had more than 120 tokens, with six tokenizers.
_LONGEST = 270
#: The space of the texts.
SPACE = Text(
    max_length=_LONGEST, charset=string.ascii_letters + string.digits + " ,.:;-\n"
)

_NAMES = _core.tile_names
_CODE = {name: code for code, name in enumerate(_NAMES)}
_AT = _core.ram_addresses
_COLUMN, _ROWS, _CELL, _TOP = _core.tile_mario_column, 13, 16, 32
_AHEAD = 10  # columns
_REACH = 5  # tiles that a jump goes up
_WALKING = 28  # the fastest walk, 1/16 pixel a frame
_MOST = 3  # things that a line names

# Names of what Mario stands on, of what floats above it, and of the rest of the grid.
_GROUNDS = {"solid": "ground", "brick": "bricks", "question": "box", "pipe": "pipe"}
_BLOCKS = {"question": "box", "brick": "bricks", "solid": "block", "coin": "coin"}
_OTHERS = {"pole": "flag pole", "axe": "axe", "vine": "vine"}
# Names of moving objects, by the game's numbers as in doppelganger's commented
# disassembly, or by their tiles.
_ENEMIES = {
    0x00: "koopa", 0x01: "koopa", 0x02: "beetle", 0x03: "koopa", 0x04: "koopa",
    0x05: "hammer brother", 0x06: "goomba", 0x07: "blooper", 0x08: "bullet",
    0x0A: "fish", 0x0B: "fish", 0x0C: "lava bubble", 0x0D: "plant",
    0x0E: "winged koopa", 0x0F: "winged koopa", 0x10: "winged koopa",
    0x11: "lakitu", 0x12: "spiny", 0x14: "fish", 0x15: "flame", 0x1B: "fire bar",
    0x1C: "fire bar", 0x1D: "fire bar", 0x1E: "fire bar", 0x1F: "long fire bar",
    0x2D: "bowser", 0x33: "bullet", 0x40: "hammer",
}  # fmt: skip
_BALLS = {"fire bar": 6, "long fire bar": 12}
_OBJECTS = {"platform": "lift", "spring": "spring"}
_ITEMS = ("mushroom", "flower", "star", "extra life")
_SIDES = (
    *("right", "up right", "up", "up left"),
    *("left", "down left", "down", "down right"),
)


class _Thing(NamedTuple):
    """What is at a place: in tiles, from Mario's column and feet."""

    distance: int  # to the right
    up: int | None  # its top, or an enemy's feet; None: a pit
    name: str
    width: int = 1
    rows: int = 1  # from its top down
    more: str = ""

    def __str__(self) -> str:
        side = "behind" if self.distance < 0 else "ahead"
        parts = [f"{self.name} {abs(self.distance)} {side}"]
        if self.width > 1 or self.up is None:
            parts.append(f"{self.width} wide")
        if self.up is not None:
            lowest = f"{self.up - self.rows + 1} to " if self.rows > 1 else ""
            height = f"{lowest}{abs(self.up)} {'up' if self.up > 0 else 'down'}"
            parts.append(height if self.up else "level")
        return ", ".join(parts + [self.more] * bool(self.more))


@dataclass
class _Part:
    """Columns of ground of one height, or stairs."""

    at: int  # the first column
    floor: int | None  # the row of the last column
    name: str
    step: int  # rows, from the column before
    is_step: bool  # whether the next column may make it stairs
    width: int = 1


def describe(ram: npt.NDArray[np.uint8]) -> str:
    """Describes a moment of the game in at most 120 tokens.

    Args:
        ram: work RAM, (2048,) uint8, as of ``obs_type="ram"``.

    Returns:
        Six lines about what the screen shows, up to 10 tiles ahead of Mario. Equal RAM
        gives equal text, an element of ``SPACE``.

    Raises:
        ValueError: the RAM has another shape.
    """
    scene = _Scene(np.asarray(ram, np.uint8))
    begin = f"{scene.status()}\nMario: {scene.mario()}."
    found = {
        "Ahead": list(scene.grounds()),
        "Enemies": sorted(scene.enemies(), key=_nearness),
        "Other": sorted(scene.others(), key=_nearness),
        "Blocks": sorted(scene.blocks(), key=_worth),
    }
    counts = dict.fromkeys(found, 0)
    text = _said(begin, found, counts)
    # First the first thing of each line, then the second, while there is room.
    for count in range(1, _MOST + 1):
        for title in found:
            longer = _said(begin, found, {**counts, title: count})
            if len(longer) <= _LONGEST:
                counts[title], text = count, longer
    return text


def _said(begin: str, found: dict[str, list[_Thing]], counts: dict[str, int]) -> str:
    lines = [begin]
    for title, things in found.items():
        nothing = "some" if things else "level ground" if title == "Ahead" else "none"
        said = "; ".join(map(str, things[: counts[title]]))
        lines.append(f"{title}: {said or nothing}.")
    return "\n".join(lines)


class _Scene:
    """A moment of the game, measured in tiles."""

    def __init__(self, ram: npt.NDArray[np.uint8]) -> None:
        self.ram = ram
        self.grid = _core.tiles(ram)
        self.own = _core.motion(ram)[0].tolist()
        self.feet = self.own[2] + 128  # pixels from the top of the screen
        self.row = (self.feet - _TOP + _CELL // 2) // _CELL  # below his feet
        self.swims = bool(ram[_AT["Swimming"]])
        self.stands = self.own[5] & 3 == 0 and not self.swims
        self.hard = np.isin(self.grid, [_CODE[name] for name in _GROUNDS])
        self.floors = list(self._floors())
        self.things = list(self._things())

    def status(self) -> str:
        """What the status bar shows."""
        world, stage = int(self.ram[_AT["World"]]) + 1, int(self.ram[_AT["Stage"]]) + 1
        digits = (self.ram[_AT["Time"] :][:3] % 10).tolist()
        time = digits[0] * 100 + digits[1] * 10 + digits[2]
        return f"World {world:X}-{stage}, time {time}."  # A to D in the Lost Levels

    def mario(self) -> str:
        """What he looks like, where he is and how he moves."""
        kind, _, _, speed_x, speed_y, state = self.own
        size = STATUS[min(int(self.ram[_AT["PowerStatus"]]), 2)]
        parts = ["fire" if size == "fireball" else size]
        parts += ["star"] * (kind == _CODE["star mario"])
        if self.ram[_AT["PlayerState"]] == 0x0B or self.ram[_AT["ViewportY"]] > 1:
            return ", ".join([*parts, "dying"])
        if state & 3 == 3:
            parts.append("climbing")
        elif self.stands:
            parts.append("on the ground")
        else:
            floor = self.floors[0]
            high = "over a pit" if floor is None else f"{floor - self.row} above ground"
            parts += ["swimming" if self.swims else "in the air", high]
            parts.append("rising" if speed_y < 0 else "falling")
        pace = "walking" if abs(speed_x) <= _WALKING else "running"
        side = "right" if speed_x > 0 else "left"
        parts.append(f"{pace} {side}" if speed_x else "not moving")
        return ", ".join(parts + ["A is held"] * bool(state & 4))

    def grounds(self) -> Iterator[_Thing]:
        """The parts of the ground ahead that differ from the ground under Mario."""
        parts: list[_Part] = []
        for at, floor in enumerate(self.floors):
            name, last = self._ground_name(at), parts[-1] if parts else None
            step = 0
            if last and floor is not None and last.floor is not None:
                step = floor - last.floor
            if last and floor == last.floor and last.name in (name, "stairs"):
                last.width, last.is_step = last.width + 1, False
            elif last and last.is_step and step == last.step:
                last.name, last.floor, last.width = "stairs", floor, last.width + 1
            else:
                parts.append(_Part(at, floor, name, step, is_step=abs(step) == 1))
        for part in parts:
            at, floor, goes_on = part.at, part.floor, part is parts[-1]
            if floor is None:
                more = "or more" if goes_on else ""  # beyond the screen
                yield _Thing(at, None, part.name, part.width, more=more)
            elif at > 0 and floor != self.floors[0]:
                more = "no way over" if floor == 0 else ""
                width = 1 if goes_on else part.width
                yield _Thing(at, self.row - floor, part.name, width, more=more)

    def blocks(self) -> Iterator[_Thing]:
        """Boxes, bricks, blocks and coins above the ground, in rectangles."""
        above: dict[tuple[int, str, int], _Thing] = {}
        for row in range(max(self.row - _REACH, 0), min(self.row, _ROWS)):
            names = [
                _BLOCKS.get(_NAMES[self.grid[row, _COLUMN + distance]], "")
                if floor is None or row < floor
                else ""
                for distance, floor in enumerate(self.floors)
            ]
            found, at = {}, 0
            for name, run in groupby(names):
                width = len(list(run))
                if name:
                    place = (at, name, width)
                    new = _Thing(at, self.row - row, name, width, rows=0)
                    whole = above.pop(place, new)
                    found[place] = whole._replace(rows=whole.rows + 1)
                at += width
            yield from above.values()
            above = found
        yield from above.values()

    def enemies(self) -> Iterator[_Thing]:
        """What hurts Mario."""
        for kind, thing in self.things:
            if kind in ("enemy", "danger"):
                yield thing

    def others(self) -> Iterator[_Thing]:
        """Lifts, springs, items, vines, and the end of a level."""
        for kind, thing in self.things:
            if kind not in ("enemy", "danger"):
                yield thing
        for kind, name in _OTHERS.items():
            rows, columns = np.nonzero(self.grid == _CODE[kind])
            if rows.size:
                first = int(columns.min())
                top = int(rows[columns == first].min())
                yield _Thing(first - _COLUMN, self.row - top, name)

    def _floors(self) -> Iterator[int | None]:
        """The row of the ground in each column from Mario's on; None is a pit."""
        floor = self.row if self.stands else self._first_hard(0, self.row)
        yield floor
        level = self.row if floor is None else floor
        for distance in range(1, _AHEAD + 1):
            column = self.hard[:, _COLUMN + distance]
            if self.grid[0, _COLUMN + distance] == _CODE["outside"]:
                return
            if 0 < level <= _ROWS and column[level - 1]:
                floor = level - 1  # in Mario's way
            else:
                floor = self._first_hard(distance, level)
                if floor is None:  # a pit, or ground that floats higher
                    higher = range(level - 2, max(level - _REACH, 0), -1)
                    floor = next((row for row in higher if column[row]), None)
            while floor and column[floor - 1]:
                floor -= 1
            yield floor
            if floor == 0:
                return
            level = level if floor is None else floor

    def _first_hard(self, distance: int, row: int) -> int | None:
        """The first row, from one on, where something can be stood on."""
        first = min(max(row, 0), _ROWS)
        rows = np.flatnonzero(self.hard[first:, _COLUMN + distance])
        return first + int(rows[0]) if rows.size else None

    def _ground_name(self, distance: int) -> str:
        floor = self.floors[distance]
        if floor is None:
            return "pit"
        if floor >= _ROWS:
            return "ground"
        kind = _NAMES[self.grid[floor, _COLUMN + distance]]
        return _GROUNDS.get(kind, "ground")

    def _things(self) -> Iterator[tuple[str, _Thing]]:
        """The moving objects that the picture shows, with the names of their tiles."""
        rows = _core.objects(self.ram).tolist()
        while rows:
            kind, number, x, y, width, height, speed_x, speed_y = rows[0]
            tile = _NAMES[kind]
            name = _OBJECTS.get(tile) or _ENEMIES.get(number, "enemy")
            more = _moving(speed_x, speed_y)
            if name in _BALLS:
                more = _turning(rows[: _BALLS[name]])
            elif name == "koopa" and height == _CELL:
                name = "shell"
            elif tile == "item":
                name = _ITEMS[self.ram[_AT["PowerUpType"]] % len(_ITEMS)]
            both = name == "bowser" and len(rows) > 1 and rows[1][1] == number
            del rows[: 2 if both else _BALLS.get(name, 1)]
            distance = _in_tiles(x + width / 2 - _CELL / 2)
            top = (self.feet + y - height + _CELL // 4 - _TOP) // _CELL
            if not (-_COLUMN <= distance <= _AHEAD and 0 <= top < _ROWS):
                continue
            seen = _NAMES[self.grid[top, _COLUMN + distance]]
            inside = name == "plant" or tile == "item"  # of a pipe or block, at first
            if seen == "outside" or (inside and seen != tile):
                continue
            wide = _in_tiles(width) if name == "lift" else 1
            yield tile, _Thing(distance, _in_tiles(-y), name, wide, more=more)


def _in_tiles(pixels: float) -> int:
    return int((pixels + _CELL / 2) // _CELL)


def _moving(speed_x: int, speed_y: int) -> str:
    if abs(speed_x) >= abs(speed_y):
        right = "moving right" if speed_x > 0 else "moving left"
        return right if speed_x else ""
    return "moving down" if speed_y > 0 else "moving up"


def _turning(balls: list[list[int]]) -> str:
    """Where a fire bar points, and how it turns; its first ball is its centre."""
    x, y = balls[-1][2] - balls[0][2], balls[0][3] - balls[-1][3]
    speed_x, speed_y = balls[-1][6], -balls[-1][7]
    eighth = round(float(np.arctan2(y, x)) / (np.pi / 4))
    turn = "clockwise" if x * speed_y - y * speed_x < 0 else "counterclockwise"
    return f"pointing {_SIDES[eighth % 8]}, turning {turn}"


def _nearness(thing: _Thing) -> tuple[int, _Thing]:
    return abs(thing.distance), thing


def _worth(thing: _Thing) -> tuple[bool, _Thing]:
    return thing.name != "box", thing
