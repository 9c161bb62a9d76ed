"""Demonstrations: the buttons of every frame of an episode.

A demonstration is a small JSON file without any part of the game: the level, the
options that define how its episodes begin, and the buttons frame by frame. On the same
ROM it replays bit for bit, whatever the frame skip and the observations are.
Demonstrations from a search reach the flag. Recordings of play
(trainer/film/recorder.py) may have any ending, and imported movies (movies.py) begin at
power-on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, make_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_envpool import __version__, _core, nes, rom
from trainer.config.plain import from_dict
from trainer.config.tasks import all_levels, check_level, game_of
from trainer.machine.files import write_json
from trainer.planning import movies

_FORMAT = "mario-envpool demonstration, version 1"

# Options of an environment that change the game itself, and what older files have for
# those that they lack.
GAME_OPTIONS = {
    "rom": str,
    "lost_levels": bool,
    "timing": str,
    "power_on_ram": int,
    "cut_waits": bool,
    "turbo_swim": int,
    "pause_for_rng": bool,
}
_OLDER = {"turbo_swim": 0, "pause_for_rng": False}
_GameOptions = make_dataclass("options", GAME_OPTIONS.items())

# The task of any level: of the game, and of the Lost Levels.
GAMES = ("SuperMarioBros-v0", "SuperMarioBros2-v0")

# The most frames: a day of play.
_MOST_FRAMES = 24 * 60 * 60 * 60

# The possible endings of an episode, and where it begins.
ENDINGS = ("cleared", "died", "stopped")
LEVEL, POWER_ON = "level", "power-on"

# A movie of FCEUX begins with this many frames before the console's first frame.
_FM2_LEAD = 1
# Offsets that an import tries: other emulators begin a few frames earlier or later.
_LEADS = {movies.FM2: (1, 0, 2, -1, -2, 3), movies.BK2: (0, -1, 1, -2, 2, 3)}
# Idle frames to play after the last frame of a movie, because the buttons may end
# before the game does.
_BLANK_FRAMES = 600
_ADDRESS = _core.ram_addresses
# The modes of the game in a level, and when a castle has been cleared.
_PLAYING, _WORLD_OVER = 1, 2


@dataclass(frozen=True)
class Demonstration:
    """An episode.

    Attributes:
        task: a task that plays any level of the game, such as SuperMarioBros-v0.
        level: such as 1-1; "" for the whole game.
        options: options of the environment, `GAME_OPTIONS`.
        rom_sha1: SHA-1 of the ROM file, in hexadecimal.
        buttons: a byte for each frame of the episode (bits as in `mario_envpool.nes`),
            without skipped waits.
        reward: return of the episode, `reward="classic"`; 0 for a movie from power-on.
        made_by: version of this package.
        ending: cleared, died or stopped.
        start: "level": at the start of a level; "power-on": when the console is
            switched on, with the start screen and all waits.
    """

    task: str
    level: str
    options: dict[str, Any]
    rom_sha1: str
    buttons: bytes = b""
    reward: float = 0.0
    made_by: str = __version__
    ending: str = ENDINGS[0]
    start: str = LEVEL

    @property
    def frames(self) -> int:
        """Frames of the episode, without skipped waits."""
        return len(self.buttons)

    def save(self, path: Path) -> None:
        """Writes the file, which appears when it is complete."""
        runs = [[text_of(byte), len(list(run))] for byte, run in groupby(self.buttons)]
        content = {"format": _FORMAT, **asdict(self), "buttons": runs}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


def load(path: Path) -> Demonstration:
    """Reads a demonstration.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or not a demonstration.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist or is a folder; python -m trainer.plan writes "
            "demonstrations"
        )
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a demonstration, or is damaged: {error}"
        ) from None
    if not isinstance(content, dict) or content.pop("format", "") != _FORMAT:
        raise ValueError(
            f"{path} is not a demonstration: its format is not {_FORMAT!r}"
        )
    try:
        return _read(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is a damaged demonstration: {error}") from None


def _read(content: dict[str, Any]) -> Demonstration:
    """Makes a demonstration from the contents of its file."""
    frames = 0
    for text, count in content["buttons"]:
        if type(count) is not int or count < 1 or not isinstance(text, str):
            raise ValueError("buttons must be pairs of names and a number of frames")
        frames += count
    if not 0 < frames <= _MOST_FRAMES:
        raise ValueError(f"buttons are missing, or too many: {frames:,} frames")
    runs = (bytes([byte_of(text)]) * count for text, count in content["buttons"])
    if isinstance(content.get("options"), dict):
        content["options"] = _OLDER | content["options"]
    made = from_dict(Demonstration, content | {"buttons": b"".join(runs)})
    from_dict(_GameOptions, made.options)
    if made.level:
        check_level(made.level, made.task)
    game_of(made.task)
    allowed = {"ending": ENDINGS, "start": (LEVEL, POWER_ON)}
    for name, words in allowed.items():
        if getattr(made, name) not in words:
            raise ValueError(f"{name} must be one of {', '.join(words)}")
    if not math.isfinite(made.reward):
        raise ValueError(f"reward must be a finite number, got {made.reward}")
    return made


def record(
    task: str,
    level: str,
    options: Mapping[str, Any],
    buttons: Sequence[int],
    *,
    to_flag: bool = True,
) -> Demonstration:
    """Plays buttons from the start of a level to its end, and records them.

    Args:
        task: a task that plays any level of the game.
        level: such as 1-1; "" for the whole game.
        options: options of the environment; only those in `GAME_OPTIONS` count.
        buttons: a byte for each frame; frames after the end are dropped.
        to_flag: whether the buttons must reach the flag.

    Raises:
        ValueError: the buttons do not reach the end.
    """
    game = {name: options[name] for name in GAME_OPTIONS}
    rom_sha1 = hashlib.sha1(rom.load(game["rom"])).hexdigest()
    demonstration = Demonstration(task, level, game, rom_sha1, bytes(buttons))
    reward, frames, ending = play(demonstration)
    if to_flag and ending != ENDINGS[0]:
        raise _no_flag(demonstration)
    played = demonstration.buttons[:frames]
    return replace(demonstration, buttons=played, reward=reward, ending=ending)


def from_movie(path: Path, rom_name: str = "") -> Demonstration:
    """Imports a movie of another emulator, .fm2 or .bk2, also in .zip or .gz.

    The first frames of emulators differ, so the import tries a few frames fewer or more
    at the beginning until the movie reaches the end of the game. If it never does, the
    import uses the emulator's usual beginning, and the demonstration ends as "stopped"
    with the movie's last frame.

    Args:
        path: the movie.
        rom_name: the ROM to play the movie on, one of `mario_envpool.rom.ROMS`. "": the
            ROM with the movie's checksum.

    Raises:
        FileNotFoundError: the file does not exist.
        RomError: the movie is for another ROM, or the ROM is not installed.
        ValueError: the file is not a movie that can be imported.
    """
    imported = movies.read(path)
    name = rom.revision(rom_name or movies.rom_of(imported))
    if rom_name and name != rom_name:
        raise rom.RomError(f"MARIO_ROM names {name}, and the movie is for {rom_name}")
    lost = name.startswith("lost-levels")
    options = {"rom": name, "lost_levels": lost, "timing": "console"}
    empty = Demonstration(
        GAMES[lost],
        "",
        options | {"power_on_ram": 0, "cut_waits": False} | _OLDER,
        hashlib.sha1(rom.load(name)).hexdigest(),
        start=POWER_ON,
    )
    leads = _LEADS[imported.kind]
    for lead in leads:
        buttons = bytes(max(-lead, 0)) + imported.buttons[max(lead, 0) :]
        made = replace(empty, buttons=buttons + bytes(_BLANK_FRAMES))
        _, frames, ending = play(made)
        if ending == ENDINGS[0]:
            return replace(made, buttons=made.buttons[:frames])
        if lead == leads[0]:
            first = replace(empty, buttons=buttons, ending=ENDINGS[2])
    return first


def verify(demonstration: Demonstration) -> None:
    """Replays a demonstration and checks its result.

    Raises:
        ValueError: the ROM is another one, or the replay differs in its last frame,
            its ending or its reward.
    """
    reward, frames, ending = play(demonstration)
    if demonstration.ending == ENDINGS[0] != ending:
        raise _no_flag(demonstration)
    played = (reward, frames, ending)
    if played != (demonstration.reward, demonstration.frames, demonstration.ending):
        raise ValueError(
            f"the demonstration of {_what(demonstration)} ends after {frames:,} frames "
            f"with reward {reward:g} ({ending}), but was recorded with "
            f"{demonstration.frames:,} frames and reward {demonstration.reward:g} "
            f"({demonstration.ending})"
        )


def last_level(demonstration: Demonstration) -> str:
    """The level that a movie from power-on plays last, such as 4-2; "" for none."""
    console = nes.Console(image_of(demonstration))
    level = ""
    for byte in demonstration.buttons:
        console.step(byte, draw=False)
        ram = console.ram
        if ram[_ADDRESS["OperMode"]] == _PLAYING:
            # The worlds after 9 have letters.
            level = f"{ram[_ADDRESS['World']] + 1:X}-{ram[_ADDRESS['Stage']] + 1}"
    return level


def environment(demonstration: Demonstration, **options: Any) -> Any:
    """One environment that plays a demonstration: a step is a frame, an action a byte.

    Args:
        demonstration: the demonstration to play.
        options: other options, such as obs_type.

    Raises:
        ValueError: the ROM is another one, or the demonstration begins at power-on.
    """
    d = demonstration
    if d.start == POWER_ON:
        raise ValueError(
            f"the demonstration of {_what(d)} begins at power-on, which environments "
            "do not: use mario_envpool.nes.Console to play it"
        )
    game = {
        "stages": [d.level] if d.level else [],
        "action_set": "raw",
        "frame_skip": 1,
        "obs_type": "ram",
        "stack_num": 1,
        **d.options,
        **options,
    }
    return _core._MarioEnv(image_of(d), game)


def image_of(demonstration: Demonstration) -> bytes:
    """The contents of the ROM that a demonstration needs."""
    d = demonstration
    image = rom.load(d.options["rom"])
    installed = hashlib.sha1(image).hexdigest()
    if installed != d.rom_sha1:
        raise ValueError(
            f"the demonstration of {_what(d)} needs the ROM with SHA-1 {d.rom_sha1}, "
            f"but the installed {d.options['rom']!r} has {installed}"
        )
    return image


def movie(demonstration: Demonstration) -> bytes:
    """The buttons of every frame since power-on, with waits and the start screen."""
    d = demonstration
    if d.start == POWER_ON:
        return d.buttons
    if d.options["cut_waits"] or d.level not in ("", all_levels(d.task)[0]):
        raise ValueError(
            f"the demonstration of {_what(d)} cannot become a movie from power-on, "
            "because its environment writes to RAM, to begin at a level or to cut "
            "waits short; plan with --whole-game, or 1-1 with --no-cut-waits"
        )
    if d.options["timing"] != "console":
        raise ValueError(
            f"the demonstration of {_what(d)} has timing={d.options['timing']}, whose "
            "frames are not those of a console: plan with timing=console"
        )
    env = environment(d)
    env.reset_and_record()
    for byte in d.buttons:
        env.step(byte)
    frames: bytes = env.movie
    return frames


def save_fm2(demonstration: Demonstration, path: Path) -> None:
    """Writes the movie for FCEUX; errors as `movie`."""
    frames = bytes(_FM2_LEAD) + movie(demonstration)
    name = demonstration.options["rom"]
    movies.write_fm2(path, frames, image_of(demonstration), name)


def save_bk2(demonstration: Demonstration, path: Path) -> None:
    """Writes the movie for BizHawk; errors as `movie`."""
    frames = movie(demonstration)
    name = demonstration.options["rom"]
    movies.write_bk2(path, frames, image_of(demonstration), name)


def pictures(demonstration: Demonstration) -> Iterator[npt.NDArray[np.uint8]]:
    """Every picture of the episode, (240, 256, 3) uint8 RGB, without waits."""
    if demonstration.start == POWER_ON:
        console = nes.Console(image_of(demonstration))
        for byte in demonstration.buttons:
            console.step(byte)
            yield console.screen()
        return
    env = environment(demonstration, obs_type="gray")
    env.reset()
    for byte in demonstration.buttons:
        yield from env.film(byte)[0]


def play(demonstration: Demonstration) -> tuple[float, int, str]:
    """Plays the episode; returns its reward, its length in frames and its ending."""
    if demonstration.start == POWER_ON:
        return _play_from_power_on(demonstration)
    env = environment(demonstration)
    env.reset()
    total = 0.0
    for frame, byte in enumerate(demonstration.buttons, 1):
        reward, terminated, _, info = env.step(byte)
        total += reward
        if terminated:
            return total, frame, ENDINGS[0] if info["info:flag_get"] else ENDINGS[1]
    return total, demonstration.frames, ENDINGS[2]


def _play_from_power_on(demonstration: Demonstration) -> tuple[float, int, str]:
    """See `play`; the episode ends with the game."""
    console = nes.Console(image_of(demonstration))
    last_world = int(all_levels(demonstration.task)[-1].partition("-")[0])
    for frame, byte in enumerate(demonstration.buttons, 1):
        console.step(byte, draw=False)
        ram = console.ram
        mode, world = ram[_ADDRESS["OperMode"]], ram[_ADDRESS["World"]]
        if mode == _WORLD_OVER and world == last_world - 1:
            return 0.0, frame, ENDINGS[0]
    return 0.0, demonstration.frames, ENDINGS[2]


def _no_flag(demonstration: Demonstration) -> ValueError:
    return ValueError(
        f"the buttons of {_what(demonstration)} do not reach the flag within "
        f"{demonstration.frames:,} frames"
    )


def _what(demonstration: Demonstration) -> str:
    return demonstration.level or "the whole game"


def text_of(byte: int) -> str:
    """Buttons such as "A+right"; "none" for none."""
    names = [name for name, bit in nes.BUTTONS.items() if byte & bit]
    return "+".join(names) or "none"


def byte_of(text: str) -> int:
    """The pad byte of buttons such as "right+A"; "none" and "NOOP" are 0."""
    names = set(text.split("+")) if text not in ("none", "NOOP") else ()
    return sum(nes.BUTTONS[name] for name in names)
