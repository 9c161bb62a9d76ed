"""Demonstrations: the buttons of every frame of an episode that reaches its end.

A demonstration is a small JSON file with no part of the game in it: the level, the
options that say how its episodes begin, and the buttons frame by frame. On the same ROM
it plays out the same, bit for bit, whatever the frame skip and the observations are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_envpool import _core, nes, rom
from trainer.config.tasks import all_levels, check_level, game_of
from trainer.machine.files import replacing, write_json

_FORMAT = "mario-envpool demonstration, version 1"

# Options of an environment that change how the game goes.
GAME_OPTIONS = {
    "rom": str,
    "lost_levels": bool,
    "timing": str,
    "power_on_ram": int,
    "cut_waits": bool,
}

# A day of play.
_MOST_FRAMES = 24 * 60 * 60 * 60

# A movie of FCEUX begins with so many frames before the console's first one.
_FM2_LEAD = 1
_FM2_ORDER = "RLDUTSBA"  # right, left, down, up, start, select, B, A
_FM2_BITS = (
    *(nes.RIGHT, nes.LEFT, nes.DOWN, nes.UP, nes.START, nes.SELECT, nes.B, nes.A),
)


@dataclass(frozen=True)
class Demonstration:
    """An episode that reaches its end.

    Attributes:
        task: that plays any level of the game, such as SuperMarioBros-v0.
        level: such as 1-1; "" for the whole game.
        options: of the environment, `GAME_OPTIONS`.
        rom_sha1: of the ROM file, in hexadecimal.
        buttons: a byte for each frame of the episode (bits as in `mario_envpool.nes`);
            skipped waits have none.
        reward: return of the episode, `reward="classic"`.
        made_by: version of this package.
    """

    task: str
    level: str
    options: Mapping[str, Any]
    rom_sha1: str
    buttons: bytes
    reward: float
    made_by: str

    @property
    def frames(self) -> int:
        """Frames of the episode, without skipped waits."""
        return len(self.buttons)

    def save(self, path: Path) -> None:
        """Writes the file; it appears when all of it is there."""
        runs = [[_text(byte), len(list(run))] for byte, run in groupby(self.buttons)]
        content = {"format": _FORMAT, **asdict(self), "buttons": runs}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


def load(path: Path) -> Demonstration:
    """Reads a demonstration.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is none, or damaged.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a demonstration, a .json file")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there; python -m trainer.plan writes demonstrations"
        )
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no demonstration, or damaged: {error}") from None
    if not isinstance(content, dict) or content.pop("format", "") != _FORMAT:
        raise ValueError(f"{path} is no demonstration: its format is not {_FORMAT!r}")
    try:
        return _read(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is a damaged demonstration: {error}") from None


def _read(content: dict[str, Any]) -> Demonstration:
    """A demonstration from what its file holds.

    Raises:
        ValueError, TypeError, KeyError: something is missing, or is not what it is to
            be.
    """
    names = {field.name for field in fields(Demonstration)}
    if set(content) != names:
        raise ValueError(f"it has {sorted(content)}, and should have {sorted(names)}")
    for name in ("task", "level", "rom_sha1", "made_by"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} is no text")
    if content["level"]:
        check_level(content["level"], content["task"])
    game_of(content["task"])
    options, reward = content["options"], content["reward"]
    if not isinstance(options, dict) or set(options) != set(GAME_OPTIONS):
        raise ValueError("options or buttons are missing")
    for name, kind in GAME_OPTIONS.items():
        if type(options[name]) is not kind:
            raise TypeError(f"{name} must be of type {kind.__name__}")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise TypeError("reward is no number")
    if not math.isfinite(reward):
        raise ValueError(f"reward is {reward}")
    frames = 0
    for text, count in content["buttons"]:
        if type(count) is not int or count < 1 or not isinstance(text, str):
            raise ValueError("buttons must be pairs of names and a number of frames")
        frames += count
    if not 0 < frames <= _MOST_FRAMES:
        raise ValueError(
            f"options or buttons are missing, or too many: {frames:,} frames"
        )
    runs = (bytes([byte_of(text)]) * count for text, count in content["buttons"])
    return Demonstration(**content | {"buttons": b"".join(runs)})


def record(
    task: str, level: str, options: Mapping[str, Any], buttons: Sequence[int]
) -> Demonstration:
    """Plays buttons from the start of a level, up to its end, and keeps them.

    Args:
        task: that plays any level of the game.
        level: such as 1-1; "" for the whole game.
        options: of the environment; those in `GAME_OPTIONS` matter.
        buttons: bytes of at least as many frames.

    Raises:
        ValueError: they do not reach the end.
    """
    from mario_envpool import __version__

    kept = {name: options[name] for name in GAME_OPTIONS}
    image = rom.load(kept["rom"])
    demonstration = Demonstration(
        task,
        level,
        kept,
        hashlib.sha1(image).hexdigest(),
        bytes(buttons),
        0.0,
        __version__,
    )
    reward, frames = _play(demonstration)
    return Demonstration(
        **(
            asdict(demonstration)
            | {"buttons": demonstration.buttons[:frames], "reward": reward}
        )
    )


def verify(demonstration: Demonstration) -> None:
    """Plays a demonstration.

    Raises:
        ValueError: it is for another ROM, or does not reach its end in its last frame
            with its reward.
    """
    reward, frames = _play(demonstration)
    if (reward, frames) != (demonstration.reward, demonstration.frames):
        raise ValueError(
            f"the demonstration of {_what(demonstration)} ends after {frames:,} frames "
            f"with reward {reward:g}, and should after {demonstration.frames:,} with "
            f"{demonstration.reward:g}"
        )


def environment(demonstration: Demonstration, **options: Any) -> Any:
    """One environment that plays a demonstration: a step is a frame, an action a byte.

    Args:
        demonstration: to play.
        options: others, such as obs_type.

    Raises:
        ValueError: this is another ROM.
    """
    d = demonstration
    image = rom.load(d.options["rom"])
    found = hashlib.sha1(image).hexdigest()
    if found != d.rom_sha1:
        raise ValueError(
            f"the demonstration of {_what(d)} is for the ROM with SHA-1 {d.rom_sha1}, "
            f"and {d.options['rom']!r} is here {found}"
        )
    game = {
        "stages": [d.level] if d.level else [],
        "action_set": "raw",
        "frame_skip": 1,
        **d.options,
    }
    return _core._MarioEnv(image, {"obs_type": "ram", "stack_num": 1} | game | options)


def movie(demonstration: Demonstration) -> bytes:
    """The buttons of every frame since power-on, waits and start screen too.

    Raises:
        ValueError: the episode is more than a movie, as RAM is written to: to cut
            waits short, or to begin at a level.
    """
    d = demonstration
    if d.options["cut_waits"] or d.level not in ("", all_levels(d.task)[0]):
        raise ValueError(
            f"the demonstration of {_what(d)} is no movie from power-on, as RAM is "
            "written to, to begin at a level and to cut waits short; plan with "
            "--whole-game, or 1-1 with --no-cut-waits"
        )
    if d.options["timing"] != "console":
        raise ValueError(
            f"the demonstration of {_what(d)} has timing={d.options['timing']}, whose "
            "steps are no frames of a console: plan with the console's"
        )
    env = environment(d)
    env.reset_and_record()
    for byte in d.buttons:
        env.step(byte)
    found: bytes = env.movie
    return found


def save_fm2(demonstration: Demonstration, path: Path) -> None:
    """Writes the movie for FCEUX; errors as `movie`."""
    frames = bytes(_FM2_LEAD) + movie(demonstration)
    image = rom.load(demonstration.options["rom"])
    # FCEUX takes the sum of what follows the header.
    checksum = base64.b64encode(hashlib.md5(image[16:]).digest()).decode()
    lines = [
        "version 3",
        "emuVersion 20604",
        "rerecordCount 0",
        "palFlag 0",
        f"romFilename {demonstration.options['rom']}",
        f"romChecksum base64:{checksum}",
        "guid 00000000-0000-0000-0000-000000000000",
        "fourscore 0",
        "microphone 0",
        "port0 1",
        "port1 0",
        "port2 0",
        "FDS 0",
        "NewPPU 0",
        "comment author mario-envpool",
    ]
    lines += [f"|0|{_fm2(byte)}|||" for byte in frames]
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def pictures(demonstration: Demonstration) -> Iterator[npt.NDArray[np.uint8]]:
    """Every picture of the episode, (240, 256, 3) uint8 RGB; waits have none."""
    env = environment(demonstration, obs_type="gray")
    env.reset()
    for byte in demonstration.buttons:
        yield from env.film(byte)[0]


def _play(demonstration: Demonstration) -> tuple[float, int]:
    """The reward of the episode, and its frames up to the flag.

    Raises:
        ValueError: there is no flag.
    """
    env = environment(demonstration)
    env.reset()
    total = 0.0
    for frame, byte in enumerate(demonstration.buttons, 1):
        reward, terminated, _, info = env.step(byte)
        total += reward
        if terminated:
            if info["info:flag_get"]:
                return total, frame
            break
    raise ValueError(
        f"the buttons of {_what(demonstration)} do not reach the flag within "
        f"{demonstration.frames:,} frames"
    )


def _what(demonstration: Demonstration) -> str:
    return demonstration.level or "the whole game"


def _text(byte: int) -> str:
    names = [name for name, bit in nes.BUTTONS.items() if byte & bit]
    return "+".join(names) or "none"


def byte_of(text: str) -> int:
    """The byte of buttons such as "right+A"; "none" and "NOOP" are 0."""
    if text in ("none", "NOOP"):
        return 0
    byte = 0
    for name in text.split("+"):
        byte |= nes.BUTTONS[name]
    return byte


def _fm2(byte: int) -> str:
    pairs = zip(_FM2_ORDER, _FM2_BITS, strict=True)
    return "".join(name if byte & bit else "." for name, bit in pairs)
