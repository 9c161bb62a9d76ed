"""Pictures of an evaluation: clear rates of all levels, and where episodes end.

The maps of ends lie over pictures of whole rooms, which the game itself draws while its
screen moves along. A level has one room or several: caves, water, bonus rooms behind
pipes. The player moves through a room high above the screen, where nothing reaches him,
and every frame adds the columns that are new. Sprites (enemies, lifts) are left out.
The pictures are drawn on demand from the user's ROM and never stored.
"""

from __future__ import annotations

import io
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mario_envpool import _core, rom
from mario_envpool.registration import TASKS
from trainer.config.tasks import STAGES, all_levels, game_of
from trainer.evaluation.results import LevelResult, by_options, levels_in_a_row
from trainer.evaluation.whole_game import GameEvaluation
from trainer.machine.files import replacing
from trainer.rollout.episodes import Place

# Shades of a rate; lighter is higher, also for colour-blind readers.
SHADES = "cividis"
_COLOURS = colormaps[SHADES]
_DPI = 100

# The largest width of a strip of a room, and margins around the strips, in pixels.
_STRIP, _LEFT, _RIGHT, _TOP, _GAP = 1408, 24, 24, 76, 40
_TILE = 16
# Most rooms of a level in a map.
_MOST_ROOMS = 8
# Ends in the same square of this many pixels share a mark.
_NEAR = 24
# Offset from info's x_pos and y_pos (255 - y is the row of the screen) to the middle of
# the small player, the lower half of the 16 x 32 pixels that begin there.
_BODY = 8, 255 - 240 + 24

_logger = logging.getLogger(__name__)


def draw(
    about: Mapping[str, Any], results: Sequence[LevelResult], folder: Path
) -> Iterator[Path]:
    """Draws an evaluation: heatmap.png, and deaths-1-1.png and so on.

    With several probabilities of sticky actions, only the first is drawn. Pictures of
    an earlier evaluation are replaced or removed.
    """
    for old in (folder / "heatmap.png", *folder.glob("deaths-?-?.png")):
        old.unlink(missing_ok=True)
    parts = by_options(results)
    chance = results[0].repeat_action_probability
    sampled, argmax = parts[chance, False], parts.get((chance, True), [])
    name = Path(about["checkpoint"]).resolve().name
    title = f"{name}, {about['trained_steps']:,} steps, {about['episodes']} episodes"
    if chance:
        title += f", sticky {chance:g}"
    if len(sampled) > 1:
        path = folder / "heatmap.png"
        row = levels_in_a_row(sampled)
        more = "" if row is None else f"\n{row:.2f} levels in a row from 1-1"
        heat_map(
            sampled,
            argmax,
            path,
            worlds=len(all_levels(about["task"])) // STAGES,
            title=f"{title} of each level{more}",
        )
        yield path
    for result in sampled:
        rooms = _rooms(about["task"], result, about.get("rom_path", ""))
        if rooms:
            path = folder / f"deaths-{result.level}.png"
            with replacing(path) as file:
                death_map(result, rooms, file, title=title)
            yield path


class Ends(NamedTuple):
    """What a map shows of a level, as in `LevelResult`."""

    level: str
    episodes: int
    clears: int
    deaths: list[Place]
    stalls: list[Place]


def draw_training(
    task: str, lines: Sequence[Mapping[str, Any]], rom_path: str
) -> Iterator[tuple[str, bytes]]:
    """Draws where training episodes ended: deaths-1-1 and so on, with their PNGs.

    `lines` are those of episodes.jsonl, without damaged ones. Episodes count in the
    level in which they ended.
    """
    for level in all_levels(task):
        here = [line for line in lines if line["end_level"] == level]
        places: dict[str, list[Place]] = defaultdict(list)
        for line in here:
            places[line["end"]].append(Place(line["area"], line["x"], line["y"]))
        clears, (died, stalled) = len(places["cleared"]), map(places.get, _STYLES)
        ends = Ends(level, len(here), clears, died or [], stalled or [])
        if rooms := _rooms(task, ends, rom_path):
            title = f"training from step {here[0]['step']:,} on"
            picture = io.BytesIO()
            death_map(ends, rooms, picture, title=title)
            yield f"deaths-{level}", picture.getvalue()


def _rooms(
    task: str, result: LevelResult | Ends, rom_path: str
) -> dict[int, npt.NDArray[np.uint8]]:
    """Pictures of the rooms in which episodes ended, the room with most ends first."""
    ends = Counter(place.area for place in (*result.deaths, *result.stalls))
    rooms = {}
    for area, _ in ends.most_common(_MOST_ROOMS):
        try:
            rooms[area] = room_picture(task, result.level, area, rom_path)
        except RuntimeError as error:
            _logger.warning("no picture of a room of %s: %s", result.level, error)
    return rooms


def heat_map(
    sampled: Sequence[LevelResult],
    argmax: Sequence[LevelResult],
    path: Path,
    *,
    worlds: int,
    title: str,
) -> None:
    """Draws the clear rates, a row for each world and a column for each stage."""
    starts = {result.level: result for result in argmax}
    figure = Figure(figsize=(6.4, 0.9 + 0.82 * worlds), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("0.93")
    rates = np.full((worlds, STAGES), np.nan)
    for result in sampled:
        world, stage = (int(part) - 1 for part in result.level.split("-"))
        rates[world, stage] = result.clear_rate
        _write_cell(axes, stage, world, result, starts.get(result.level))
    image = axes.imshow(rates, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(STAGES), [f"stage {s + 1}" for s in range(STAGES)])
    axes.set_yticks(range(worlds), [f"world {w + 1}" for w in range(worlds)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # White lines between the cells.
    axes.set_xticks(np.arange(1, STAGES) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, worlds) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=3)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, format="{x:.0%}")
    bar.outline.set_visible(False)
    bar.set_label("clear rate, sampled actions")
    figure.suptitle(title, fontsize=10)
    with replacing(path) as file:
        figure.savefig(file)


def draw_games(evaluation: GameEvaluation, path: Path) -> None:
    """Draws, by level, how many attempts reached it and the lives lost there."""
    result = evaluation.results[0]
    levels = all_levels(evaluation.about["task"])
    levels = levels[: levels.index([*result.reached][-1]) + 1]
    figure = Figure(
        figsize=(max(6.4, 0.32 * len(levels)), 3.6), dpi=_DPI, layout="constrained"
    )
    axes = figure.add_subplot()
    reached = [result.reached.get(level, 0) for level in levels]
    axes.step(range(len(levels)), reached, where="mid", label="attempts that reach it")
    lost = [result.lost.get(level, 0) for level in levels]
    axes.bar(
        range(len(levels)), lost, color=_STYLES["died"]["color"], label="lives lost"
    )
    axes.set_xticks(range(len(levels)), levels, rotation=90, fontsize=8)
    axes.set_ylim(0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{Path(evaluation.about['checkpoint']).name}, {result.episodes} sampled "
        f"attempts: {result.finished} finished, "
        f"{result.passed_before_death_mean:.2f} levels before the first lost life",
        fontsize=10,
    )
    with replacing(path) as file:
        figure.savefig(file)


def _write_cell(
    axes: Axes, x: int, y: int, result: LevelResult, argmax: LevelResult | None
) -> None:
    colour = "white" if result.clear_rate < 0.5 else "black"
    above = 0.12 if argmax else 0
    text = f"{100 * result.clear_rate:.3g} %"
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
    axes.text(x, y - above, text, fontsize=14, fontweight="bold", **style)
    if argmax:
        small = f"greedy {argmax.clears}/{argmax.episodes}"
        axes.text(x, y + 0.25, small, fontsize=8, **style)
    if result.unseen:
        axes.text(x, y - 0.36, "test level", fontsize=8, fontstyle="italic", **style)


def death_map(
    result: LevelResult | Ends,
    rooms: Mapping[int, npt.NDArray[np.uint8]],
    file: IO[bytes],
    *,
    title: str,
) -> None:
    """Draws where episodes of a level ended, over the pictures of its rooms.

    A pixel of a room is a pixel of the PNG. Ends near each other share a mark, which
    shows their number.
    """
    strips = []
    for area, picture in rooms.items():
        # Equal strips of whole tiles, none wider than _STRIP.
        columns = picture.shape[1]
        count = -(-columns // _STRIP)
        width = -(-columns // (count * _TILE)) * _TILE
        for left in range(0, columns, width):
            strips.append((area, left, picture[:, left : left + width]))
    wide = _LEFT + max(strip.shape[1] for _, _, strip in strips) + _RIGHT
    high = _TOP + sum(strip.shape[0] + _GAP for _, _, strip in strips)
    figure = Figure(figsize=(wide / _DPI, high / _DPI), dpi=_DPI)
    bottom = high - _TOP
    for area, left, strip in strips:
        rows, columns = strip.shape[:2]
        bottom -= rows
        box = (_LEFT / wide, bottom / high, columns / wide, rows / high)
        axes = figure.add_axes(box)
        extent = (left, left + columns, 0, rows)
        axes.imshow(strip, extent=extent, interpolation="nearest", aspect="auto")
        axes.set_xticks(range(-(-left // 256) * 256, left + columns, 256))
        axes.tick_params(labelsize=8, length=3)
        axes.set_yticks([])
        for end, places in (("died", result.deaths), ("stalled", result.stalls)):
            here = [p for p in places if p.area == area]
            _mark(axes, here, (left, left + columns), rows, end)
        # Limits that do not cut off marks at the edge.
        axes.set_xlim(left, left + columns)
        axes.set_ylim(0, rows)
        if left == 0 and len(rooms) > 1:
            name = f"room {area:#04x}"
            axes.set_title(name, fontsize=9, loc="left", pad=3)
        bottom -= _GAP
    text = f"Level {result.level}: {result.clears} of {result.episodes} cleared"
    text += f"   ({title})"
    figure.text(_LEFT / wide, 1 - 14 / high, text, va="top", fontsize=11)
    for end, style in _STYLES.items():
        axes.scatter([], [], s=70, label=f"{end} here (how many)", **style)
    corner = (0, 1 - 28 / high)
    figure.legend(loc="upper left", bbox_to_anchor=corner, ncols=2, frameon=False)
    figure.savefig(file)


# The edge of a mark has the colour of its number.
_STYLES: dict[str, dict[str, Any]] = {
    "died": {"marker": "o", "color": "#d7191c", "edgecolor": "white"},
    "stalled": {"marker": "s", "color": "#ffd92f", "edgecolor": "black"},
}


def _mark(
    axes: Axes, places: Sequence[Place], span: tuple[int, int], rows: int, end: str
) -> None:
    """Marks the places of a strip; a mark grows with its number of places."""
    for members in sorted(_clusters(places), key=len):
        x, y = position(members, rows)
        if not span[0] <= x < span[1]:
            continue
        size = 90 + 40 * len(members) ** 0.8
        axes.scatter([x], [y], s=size, clip_on=False, zorder=3, **_STYLES[end])
        axes.text(
            x,
            y - 0.5,
            str(len(members)),
            ha="center",
            va="center_baseline",
            fontsize=7 + len(members) ** 0.3,
            color=_STYLES[end]["edgecolor"],
            zorder=4,
        )


def _clusters(places: Sequence[Place]) -> list[list[Place]]:
    """Places in groups: those in the same square of _NEAR pixels."""
    groups = defaultdict(list)
    for place in places:
        groups[place.x // _NEAR, place.y // _NEAR].append(place)
    return list(groups.values())


def position(places: Sequence[Place], rows: int) -> tuple[float, float]:
    """The mean position of the body, from the lower left of a room's picture."""
    x = float(np.mean([place.x for place in places])) + _BODY[0]
    y = float(np.mean([place.y for place in places])) - _BODY[1]
    return x, min(max(y, _TILE / 2), rows - _TILE / 2)


# Pictures of whole rooms.

# The status bar, above the room.
HUD_ROWS = 32

# Names in quotes come from doppelganger's commented disassembly; the RAM map of the
# game at Data Crystal also explains each address.

_ADDRESS = _core.ram_addresses

# Values written to work RAM before every frame, by address. They keep the player one
# screen above this one, without vertical speed, at his highest horizontal speed (2.5
# pixels per frame), under control and without collisions. The screen is not locked, no
# maze throws him back, and no colour cycles.
_HELD = {
    _ADDRESS["PlayerState"]: 8,  # under control
    _ADDRESS["ViewportY"]: 0,
    _ADDRESS["PlayerY"]: 160,
    _ADDRESS["SpeedY"]: 0,
    _ADDRESS["SpeedX"]: 40,
    0x0716: 1,  # "DisableCollisionDet"
    0x0723: 0,  # "ScrollLock"
    _ADDRESS["LoopCommand"]: 0,
    0x06D4: 0,  # "ColorRotateOffset"
}
_HELD_AT, _HELD_VALUES = np.array(list(_HELD)), np.array(list(_HELD.values()), np.uint8)

# "Sprite_Y_Position" of all sprites but the first, which marks the end of the status
# bar for the game; and a row below the screen.
_SPRITES, _BELOW = slice(0x0204, 0x0300, 4), 248

# All 0: the left end of the room.
_ENTRANCE = [_ADDRESS[name] for name in ("EntrancePage", "WayIn", "HalfwayPage")]
_TASK, _PLAYING = _ADDRESS["OperModeTask"], 3  # 0 loads the room
_CAMERA = _ADDRESS["ScreenLeftPage"], _ADDRESS["ScreenLeftX"]
_BUILDING = 0x0725, 0x0726  # "CurrentPageLoc", "CurrentColumnPos": what is built next
_OBJECTS = slice(0x0730, 0x0733)  # "AreaObjectLength", $FF where none is being built
_DATA = _ADDRESS["AreaData"] + 1, _ADDRESS["AreaData"]
_OFFSET = 0x072C  # "AreaDataOffset"
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
    options = dict(TASKS[game_of(task)])
    image = rom.load(options.pop("rom"), rom_path)
    options |= {"stages": [level], "frame_skip": 1, "action_set": "raw"}
    env = _core._MarioEnv(image, options)
    env.reset()
    env.ram[_ADDRESS["AreaPointer"]] = area
    env.ram[_ENTRANCE] = 0
    env.ram[_TASK] = 0
    for _ in range(_LOADING_STEPS):
        if env.ram[_TASK] == _PLAYING:
            return _scan(env, image)
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
        # Whether every object of the room's data has been built.
        built = (ram[_OBJECTS] == 0xFF).all()
        data = _word(ram, *_DATA) + int(ram[_OFFSET]) - _PROGRAM + _HEADER
        if end is None and built and image[data] == _END_OF_DATA:
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
