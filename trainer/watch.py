"""Shows a policy live: `python -m trainer.watch --checkpoint RUN_OR_FILE`.

In a window where there is a display and pygame, else in the terminal, in half-block
characters. Before each episode the newest checkpoint of the run is loaded, so one
can watch a run while it trains. With `--human` you play yourself, in a window: arrows
move, x jumps, z runs. q quits.

    python -m trainer.watch --checkpoint runs/TASK-TIME
    python -m trainer.watch --checkpoint runs/TASK-TIME --level 1-2 --speed 0.5
    python -m trainer.watch --policy released:8-1
    python -m trainer.watch --human --level 4-1

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainer.cli import main_of
from trainer.evaluation.play import first_seed
from trainer.film.live import HumanEpisodes, PolicyEpisodes, show_episodes
from trainer.film.screens import Window, open_screen

# Lines about episodes at the end: those of the last ones.
_MAX_LINES = 20


@dataclass(frozen=True)
class WatchConfig:
    """Shows a policy live, or lets you play."""

    checkpoint: Annotated[Path | None, tyro.conf.arg(aliases=["--policy"])] = None
    """Checkpoint, a policy's file, released:8-1, or the folder of a run: then the
    newest checkpoint before each episode."""

    level: str = ""
    """Level, 1-1 to 8-4; by default the run's own, or 1-1 for a person."""

    speed: float = 1.0
    """1 is the game's own speed; 0.5 is slow motion."""

    human: bool = False
    """Play yourself, in a window: arrows, x (A), z (B), Enter (start), q to quit."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    episodes: int = 0
    """End after this many episodes; 0: not before you press q."""

    display: Literal["auto", "window", "terminal"] = "auto"
    """auto: a window where there is a display and pygame, else the terminal."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000."""

    device: str = "cpu"
    """cpu, cuda or cuda:N, or auto."""


def watch(config: WatchConfig) -> None:
    """Shows episodes until there are enough.

    Raises:
        ValueError: an option is out of range, or there is no screen.
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
    lines: deque[str] = deque(maxlen=_MAX_LINES)
    try:
        (_play if config.human else _watch)(config, lines)
    finally:
        # The screen is the terminal's own again.
        for line in lines:
            print(line)


def _watch(config: WatchConfig, lines: deque[str]) -> None:
    """Shows a policy; notes how each episode ended."""
    assert config.checkpoint is not None
    # Before the screen is taken: an error is then easy to read.
    episodes = PolicyEpisodes(
        config.checkpoint,
        level=config.level,
        argmax=config.argmax,
        seed=first_seed(config.seed),
        device=config.device,
    )
    with closing(open_screen(config.display)) as screen:
        some = islice(episodes, config.episodes or None)
        show_episodes(some, screen, speed=config.speed, on_end=lines.append)


def _play(config: WatchConfig, lines: deque[str]) -> None:
    """Lets a person play; notes how each episode ended."""
    if config.display == "terminal":
        raise ValueError(
            "--human plays in a window: a terminal does not report when keys are "
            "released; leave --display terminal out"
        )
    episodes = HumanEpisodes(config.level, seed=config.seed)
    with closing(Window()) as window:
        some = islice(episodes.play(window.buttons), config.episodes or None)
        show_episodes(some, window, speed=config.speed, on_end=lines.append)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(WatchConfig, watch, "watch", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
