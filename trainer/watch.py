"""Shows a policy live: `python -m trainer.watch --checkpoint RUN_OR_FILE`.

In a window where there is a display and pygame, else in the terminal, in half-block
characters. Before each episode the newest checkpoint of the run is loaded, so one
can watch a run while it trains. With `--human` you play yourself: arrows move, x
jumps, z runs. q quits. A terminal tells of key presses and not of releases: there a
key counts as held for 0.3 seconds, and each press renews all that are held.

    python -m trainer.watch --checkpoint runs/TASK-TIME
    python -m trainer.watch --checkpoint runs/TASK-TIME --level 1-2 --speed 0.5
    python -m trainer.watch --human --level 4-1

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Literal

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels, check_level
from trainer.evaluation.play import first_seed
from trainer.film.filmed_env import FilmedEnv, Step, game_config
from trainer.film.play import Decision, Player, Shot, film_episode, trained
from trainer.film.screens import KEYS_HELP, QuitError, Screen, open_screen
from trainer.models.policy import load_policy, playing_device

# Further behind than this the game is slowed down, not shown in jumps.
_MOST_BEHIND_SECONDS = 0.25
# Pictures that may be left out in a row.
_MOST_LEFT_OUT = 3
# Episodes that are told of at the end, the last ones.
_MOST_TOLD = 20

# What a person plays: one frame per step, as people are faster than policies.
_HUMAN = EnvConfig(frame_skip=1, noop_max=0, stall_steps=0, max_episode_steps=10**9)


@dataclass(frozen=True)
class WatchConfig:
    """Shows a policy live, or lets you play."""

    checkpoint: Path | None = None
    """Checkpoint, or the folder of a run: then the newest before each episode."""

    level: str = ""
    """Level, 1-1 to 8-4; by default the run's own, or 1-1 for a person."""

    speed: float = 1.0
    """1 is the game's own speed; 0.5 is slow motion."""

    human: bool = False
    """Play yourself: arrows, x (A), z (B), Enter (start), q to quit."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    episodes: int = 0
    """End after this many episodes; 0: when you press q."""

    display: Literal["auto", "window", "terminal"] = "auto"
    """auto: a window where there is a display and pygame, else the terminal."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000."""

    device: str = "cpu"
    """cpu, cuda or cuda:N, or auto."""


def watch(config: WatchConfig) -> None:
    """Shows episodes until there are enough.

    Raises:
        ValueError: an option is out of range, or there is nothing to show it on.
        FileNotFoundError: there is no checkpoint.
    """
    if not config.speed > 0:
        raise ValueError(f"speed must be above 0, got {config.speed:g}")
    if config.episodes < 0:
        raise ValueError(f"episodes must be at least 0, got {config.episodes}")
    if config.human == (config.checkpoint is not None):
        raise ValueError(
            "give either --checkpoint RUN_OR_FILE, to watch its policy, or --human, to "
            "play yourself"
        )
    # What may be wrong comes before the screen changes: it is then easy to read.
    if config.human and config.level:
        check_level(config.level, _HUMAN.task)
    watched = None if config.human else _Watched(config)
    ended: deque[str] = deque(maxlen=_MOST_TOLD)
    try:
        _show_episodes(config, watched, ended)
    finally:
        # The screen is the terminal's own again.
        for line in ended:
            print(line)


def _show_episodes(
    config: WatchConfig, watched: _Watched | None, ended: deque[str]
) -> None:
    """Shows episodes, and notes how each ended."""
    with closing(open_screen(config.display)) as screen:
        episodes = _played(config, screen) if watched is None else watched.episodes()
        pace = _Pace(config.speed)
        try:
            for shots in islice(episodes, config.episodes or None):
                for shot in shots:
                    for frame in shot.frames:
                        if pace.wait():
                            screen.show(frame, shot.reading)
                    reading = shot.reading
                ended.append(str(reading))
        except QuitError:
            return


class _Watched:
    """Episodes of a policy, each with the newest weights."""

    def __init__(self, config: WatchConfig) -> None:
        assert config.checkpoint is not None
        self._path, self._argmax = config.checkpoint, config.argmax
        self._seed = first_seed(config.seed)
        self._device = playing_device(config.device)
        self._policy = load_policy(self._path, self._device)
        options = game_config(
            self._policy.env, level=config.level, repeat_action_probability=0.0
        )
        self._game = FilmedEnv(options, seed=self._seed)

    def episodes(self) -> Iterator[Iterator[Shot]]:
        """One after the other, without end."""
        for seed in count(self._seed):
            player = Player(self._policy, 1, seed=seed, argmax=self._argmax)
            caption = trained(self._policy.steps)
            yield film_episode(self._game, self._game.reset(), player.alone, caption)
            if self._path.is_dir():
                self._policy = load_policy(self._path, self._device)


def _played(config: WatchConfig, screen: Screen) -> Iterator[Iterator[Shot]]:
    """Episodes of the person at the keyboard; a clear leads to the next level."""
    levels = all_levels(_HUMAN.task)
    level = levels.index(config.level or levels[0])
    endings = []

    def decide(step: Step) -> Decision:
        del step
        return Decision(screen.buttons(), None, None)

    def noted(shots: Iterator[Shot]) -> Iterator[Shot]:
        for shot in shots:
            yield shot
        endings.append(shot.reading.ending)

    while True:
        # Of the levels that are cleared one after the other, "raw" has all buttons.
        options = game_config(_HUMAN, level=levels[level]) | {"action_set": "raw"}
        game = FilmedEnv(options, seed=config.seed)
        yield noted(film_episode(game, game.reset(), decide, KEYS_HELP))
        if endings[-1] == "cleared":
            level = (level + 1) % len(levels)


class _Pace:
    """Keeps the game's time, and leaves pictures out where that is too fast."""

    def __init__(self, speed: float) -> None:
        self._period = 1 / (FRAMES_PER_SECOND * speed)
        self._due = time.monotonic()
        self._left_out = 0

    def wait(self) -> bool:
        """Waits for the next frame's time; False if there is none to show it."""
        self._due += self._period
        left = self._due - time.monotonic()
        if left < -_MOST_BEHIND_SECONDS:
            self._due -= left
        if left > 0:
            time.sleep(left)
        elif self._left_out < _MOST_LEFT_OUT:
            self._left_out += 1
            return False
        self._left_out = 0
        return True


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(WatchConfig, watch, "watch", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
