"""Shows the episodes of a policy or a person on a screen, at the game's own speed.

A screen is a window, or a terminal with half-block characters.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby, product
from pathlib import Path
from typing import Annotated, Any, Protocol, TextIO

import numpy as np
import numpy.typing as npt
import tyro
from PIL import Image
from rich.console import Console

from mario_envpool import nes
from mario_envpool.env import FRAMES_PER_SECOND
from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels
from trainer.film.draw import Camera
from trainer.film.filmed_env import (
    Decision,
    FilmedEnv,
    GamePlayer,
    Picture,
    Player,
    Reading,
    Shot,
    Step,
    film_episode,
    game_config,
    trained,
    whole_game,
)
from trainer.film.recorder import Recorder
from trainer.models.level_policies import LevelPolicies, load_level_policies
from trainer.models.policy import Policy, load_policy, playing_device

Episodes = Iterator[Iterator[Shot]]

# Height of the game's status bar, left out because the terminal has a status line.
_HUD_ROWS = 32
# A television shows the console's pixels 8 wide and 7 high.
_PIXEL_ASPECT = 8 / 7
_SMALLEST = (20, 8)  # columns and rows

KEYS_HELP = "arrows, x jump, z run, q quit"

# If the screen is further behind, the game slows down instead of jumping.
_MAX_DELAY_SECONDS = 0.25
# The most consecutive pictures that may be left out.
_MAX_LEFT_OUT = 3

#: The game of a person: one frame per step, so that buttons act on every frame.
HUMAN = EnvConfig(frame_skip=1, noop_max=0, stall_steps=0, max_episode_steps=10**9)


def show_episodes(
    episodes: Iterable[Iterator[Shot]],
    screen: Screen | None,
    *,
    pace: Pace,
    on_end: Callable[[str], None],
) -> None:
    """Shows episodes until the last one has ended or the viewer quits.

    Without a screen they are only played, at full speed.
    """
    try:
        for shots in episodes:
            for shot in shots:
                for frame in shot.frames:
                    if screen is not None and pace.wait():
                        screen.show(frame, shot.reading)
                reading = shot.reading
            on_end(str(reading))
    except QuitError:
        return


@dataclass(frozen=True)
class PlayOptions:
    """What plays, and how."""

    checkpoint: Annotated[Path | None, tyro.conf.arg(aliases=["--policy"])] = None
    """Checkpoint, policy file, released:8-1, an address on the Hub, hf://user/name, or
    a run folder, whose newest checkpoint is loaded before each episode."""

    level: str = ""
    """Level, 1-1 to 8-4; the default is the level of the run, or 1-1 with --human."""

    whole_game: bool = False
    """Play the whole game from power-on with three lives. A folder of policies, such as
    released:all, plays each level with its own."""

    pause_for_rng: bool = False
    """With --whole-game: pause the game before each level and life until its random
    numbers are those of the level's own task, which the policies know. The picture
    shows a second of each pause."""

    argmax: bool = False
    """Take greedy (most probable) actions; otherwise actions are sampled, as in
    training."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20000."""

    device: str = "cpu"
    """cpu, cuda, cuda:N or auto (cuda if there is a usable GPU, else cpu)."""

    model: str = ""
    """Network of your own, module:Class, if the policy has one: code that a file names
    is imported only if you name it here."""

    def load(self) -> Policy:
        """The policy with its newest weights."""
        assert self.checkpoint is not None
        device = playing_device(self.device)
        return load_policy(self.checkpoint, device, model=self.model)

    @property
    def is_run(self) -> bool:
        """Whether the weights may become newer."""
        return self.checkpoint is not None and self.checkpoint.is_dir()


def game_episodes(options: PlayOptions, recorder: Recorder | None = None) -> Episodes:
    """Attempts at the whole game without end, with the waits between levels."""
    assert options.checkpoint is not None
    path, device = options.checkpoint, playing_device(options.device)
    how: dict[str, Any] = {
        "model": options.model,
        "pause_for_rng": options.pause_for_rng,
    }
    first = load_level_policies(path, device, **how)
    game = whole_game(first, options.seed)

    def episodes(policies: LevelPolicies) -> Episodes:
        for seed in count(options.seed):
            player = GamePlayer(policies, seed=seed, argmax=options.argmax)
            start = _begin(game, recorder)
            yield film_episode(game, start, player, trained(policies.steps))
            if options.is_run and len(policies.policies) == 1:
                policies = load_level_policies(path, device, **how)

    return episodes(first)


def policy_episodes(options: PlayOptions, recorder: Recorder | None = None) -> Episodes:
    """Episodes without end, each with the newest weights; the first are loaded now."""
    if options.whole_game:
        return game_episodes(options, recorder)
    first = options.load()
    changes = {"repeat_action_probability": 0.0, "rng_frames_max": 0}
    config = game_config(first.env, level=options.level, **changes)
    game = FilmedEnv(config, seed=options.seed)

    def episodes(policy: Policy) -> Episodes:
        for seed in count(options.seed):
            player = Player(policy, seed=seed, argmax=options.argmax)
            start = _begin(game, recorder)
            yield film_episode(game, start, player, trained(policy.steps))
            if options.is_run:
                policy = options.load()

    return episodes(first)


def human_episodes(
    buttons: Callable[[], int],
    level: str = "",
    frame_skip: int = 1,
    recorder: Recorder | None = None,
) -> Episodes:
    """Episodes of a person without end; after a clear, the next level begins."""
    env, levels = replace(HUMAN, frame_skip=frame_skip), all_levels(HUMAN.task)
    number = levels.index(level) if level else 0
    while True:
        # The action set "raw" has every combination of buttons.
        config = game_config(env, level=levels[number]) | {"action_set": "raw"}
        game = FilmedEnv(config)
        start = _begin(game, recorder)
        yield film_episode(
            game, start, lambda _: Decision(buttons(), None, None), KEYS_HELP
        )
        if game.ending == "cleared":
            number = (number + 1) % len(levels)


def _begin(game: FilmedEnv, recorder: Recorder | None) -> Step:
    """Begins an episode, and its recording if there is a recorder."""
    start = game.reset()
    if recorder is not None:
        recorder.begin(game)
    return start


class Pace:
    """Keeps the game's speed, and leaves out pictures if the screen is too slow."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        """Sets the speed, a factor (1 is the console's); it may change at any time."""
        self.restart()

    def restart(self) -> None:
        """Counts from now, because the game has waited for something else."""
        self._due = time.monotonic()
        self._left_out = 0

    def wait(self) -> bool:
        """Waits until the next frame is due; False if the frame must be left out."""
        self._due += 1 / (FRAMES_PER_SECOND * self.speed)
        left = self._due - time.monotonic()
        if left < -_MAX_DELAY_SECONDS:
            self._due -= left
        if left > 0:
            time.sleep(left)
        elif self._left_out < _MAX_LEFT_OUT:
            self._left_out += 1
            return False
        self._left_out = 0
        return True


# Screens.


class QuitError(Exception):
    """The window was closed, or q was pressed."""


class Screen(Protocol):
    """Shows a game."""

    def show(self, frame: Picture, reading: Reading) -> None:
        """Shows one frame, (240, 256, 3) uint8."""

    def close(self) -> None:
        """Restores the display."""


def open_screen(kind: str) -> Screen:
    """Opens a window or the terminal."""
    desktop = sys.platform in ("darwin", "win32")
    desktop |= any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))
    has_pygame = importlib.util.find_spec("pygame") is not None
    if kind == "window" or (kind == "auto" and desktop and has_pygame):
        return Window()
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise ValueError(
            "cannot show the game: there is neither a display nor a terminal; use "
            "python -m trainer.video to write a file instead"
        )
    return Terminal()


class Window:
    """A window with the picture and the panel, at twice the game's size."""

    def __init__(self) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError:
            raise ValueError(
                "a window needs pygame (pip install 'mario-envpool[human]'); to watch "
                "a policy without it, use --display terminal"
            ) from None
        self._pygame = pygame
        self._camera = Camera(scale=2)
        try:
            pygame.display.init()
            pygame.display.set_caption(f"mario-envpool: {KEYS_HELP}")
            self._surface: Any = pygame.display.set_mode(self._camera.size)
        except pygame.error as error:
            raise ValueError(
                f"cannot open a window ({error}); to watch a policy without one, use "
                "--display terminal"
            ) from error

    def show(self, frame: Picture, reading: Reading) -> None:
        """See `Screen.show`."""
        pygame = self._pygame
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                raise QuitError
        keys = pygame.key.get_pressed()
        if keys[pygame.K_q] or keys[pygame.K_ESCAPE]:
            raise QuitError
        (picture,) = self._camera.develop(Shot(frame[None], reading))
        pygame.surfarray.blit_array(self._surface, picture.swapaxes(0, 1))
        pygame.display.flip()

    def buttons(self) -> int:
        """The pad byte of the held keys."""
        pygame = self._pygame
        pygame.event.pump()
        keys = pygame.key.get_pressed()
        bound = (
            *((pygame.K_LEFT, nes.LEFT), (pygame.K_RIGHT, nes.RIGHT)),
            *((pygame.K_UP, nes.UP), (pygame.K_DOWN, nes.DOWN)),
            *((pygame.K_x, nes.A), (pygame.K_z, nes.B), (pygame.K_RETURN, nes.START)),
        )
        return sum(button for key, button in bound if keys[key])

    def close(self) -> None:
        """See `Screen.close`."""
        self._pygame.display.quit()


class Terminal:
    """A terminal as a screen: two pixels per character, in 24-bit or 256 colours."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        truecolour = Console().color_system == "truecolor"
        self._colour = rgb_colour if truecolour else palette_colour
        self._quit_key = QuitKey()
        self._shown: list[str] = []
        self._size = (0, 0)
        # The alternate screen, so that `close` restores the old contents; no cursor.
        self._write("\x1b[?1049h\x1b[?25l\x1b[2J")

    def show(self, frame: Picture, reading: Reading) -> None:
        """See `Screen.show`."""
        if self._quit_key.pressed():
            raise QuitError
        size = shutil.get_terminal_size()
        if size != self._size:
            self._size, self._shown = size, []
            self._write("\x1b[0m\x1b[2J")
        lines = picture_lines(frame, *size, self._colour)
        lines.append(status_line(reading, size[0]))
        changed = [
            f"\x1b[{row};1H{line}"
            for row, line in enumerate(lines, start=1)
            if row > len(self._shown) or line != self._shown[row - 1]
        ]
        # Terminals that support these two sequences show the lines between at once.
        self._write("\x1b[?2026h" + "".join(changed) + "\x1b[?2026l")
        self._shown = lines

    def close(self) -> None:
        """See `Screen.close`."""
        self._quit_key.close()
        self._write("\x1b[?2026l\x1b[0m\x1b[?25h\x1b[?1049l")

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


class QuitKey:
    """Detects the key q in the terminal, without Enter and without echo."""

    def __init__(self) -> None:
        # Windows has no termios; it always has a window.
        import termios
        import tty

        self._termios = termios
        self._fd = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)  # Ctrl-C still interrupts

    def pressed(self) -> bool:
        """Whether q was typed since the last call, or the terminal is closed."""
        while select.select([self._fd], [], [], 0)[0]:
            typed = os.read(self._fd, 1024)
            if not typed or b"q" in typed.lower():
                return True
        return False

    def close(self) -> None:
        """Restores the terminal."""
        self._termios.tcsetattr(self._fd, self._termios.TCSADRAIN, self._before)


Colour = Callable[[npt.NDArray[np.uint8]], list[str]]
_XTERM = np.array([
    *product((0, 95, 135, 175, 215, 255), repeat=3),
    *((grey, grey, grey) for grey in range(8, 239, 10)),
])  # fmt: skip


def rgb_colour(pixels: npt.NDArray[np.uint8]) -> list[str]:
    """24-bit colours of (n, 3) pixels, in the format of an escape sequence."""
    return [f"2;{r};{g};{b}" for r, g, b in pixels.tolist()]


def palette_colour(pixels: npt.NDArray[np.uint8]) -> list[str]:
    """The nearest of xterm's 256 colours: a 6 x 6 x 6 cube, and 24 shades of grey."""
    # Squared distances, without the square of the pixel itself.
    far = np.square(_XTERM).sum(-1) - 2 * pixels.astype(int) @ _XTERM.T
    return [f"5;{16 + nearest}" for nearest in far.argmin(-1).tolist()]


def picture_lines(
    frame: Picture, columns: int, rows: int, colour: Colour = rgb_colour
) -> list[str]:
    """A frame as centred lines of text, one line fewer than the terminal has."""
    if columns < _SMALLEST[0] or rows < _SMALLEST[1]:
        wanted = f"{_SMALLEST[0]}x{_SMALLEST[1]}"
        lines = [f"at least {wanted}, please"[:columns]]
        return [*lines, *[""] * (rows - 1 - len(lines))]
    frame = frame[_HUD_ROWS:]
    shape = frame.shape[1] / frame.shape[0] * _PIXEL_ASPECT
    height = min(2 * (rows - 1), int(columns / shape) // 2 * 2)
    width = min(columns, round(height * shape))
    small = Image.fromarray(frame).resize((width, height), Image.Resampling.BOX)
    pixels = np.asarray(small)
    margin = " " * ((columns - width) // 2)
    above = (rows - 1 - height // 2) // 2
    lines = [""] * above
    for y in range(0, height, 2):
        cells = zip(colour(pixels[y]), colour(pixels[y + 1]), strict=True)
        line = margin
        for (top, bottom), equal in groupby(cells):
            line += f"\x1b[38;{top};48;{bottom}m"
            line += "\N{UPPER HALF BLOCK}" * len(list(equal))
        lines.append(f"{line}\x1b[0m")
    return lines + [""] * (rows - 1 - len(lines))


def status_line(reading: Reading, columns: int) -> str:
    """The numbers of a reading, cut off at the end of the line."""
    cells = [f" {reading.level}", reading.ending or reading.names[reading.action]]
    cells[1] = f"{cells[1]:9}"
    if reading.probabilities is not None:
        cells[1] += f"{reading.probabilities[reading.action]:5.0%}"
    cells += [f"x {reading.x:<4}", f"step {reading.step:<4}"]
    if reading.value is not None:  # a person has neither value nor return
        cells += [f"return {reading.total:6.2f}", f"value {reading.value:6.2f}"]
    cells.append(reading.caption)
    line = " \N{BOX DRAWINGS LIGHT VERTICAL} ".join(cells)
    return f"\x1b[7m{line:{columns}.{columns}}\x1b[0m"
