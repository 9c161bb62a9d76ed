"""Shows a policy live: `python -m trainer.watch --checkpoint RUN_OR_FILE`.

In a window where there is a display and pygame, else in the terminal, in half-block
characters. Before each episode the newest checkpoint of the run is loaded, so one
can watch a run while it trains. With `--human` you play yourself, in a window: arrows
move, x jumps, z runs. q quits. With `--web` a page in a browser does both. `--record
FILE` keeps the buttons of each episode as a demonstration, which `python -m
trainer.plan --replay FILE` plays again.

    python -m trainer.watch --checkpoint runs/TASK-TIME
    python -m trainer.watch --checkpoint runs/TASK-TIME --level 1-2 --speed 0.5
    python -m trainer.watch --policy released:8-1
    python -m trainer.watch --human --level 4-1 --record play.json
    python -m trainer.watch --policy FILE --record 1.json --display none --episodes 9
    python -m trainer.watch --web --policy released:8-1

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainer.cli import main_of
from trainer.evaluation.play import first_seed
from trainer.film.live import HumanEpisodes, Pace, PolicyEpisodes, show_episodes
from trainer.film.recorder import Recorder
from trainer.film.screens import Window, open_screen
from trainer.film.shared_game import SharedGame

# Lines about episodes at the end: those of the last ones.
_MAX_LINES = 20
# What --web shows without --policy: it has seen every level that can be chosen.
_DEFAULT_POLICY = Path("released:one")


@dataclass(frozen=True)
class WatchConfig:
    """Shows a policy live, or lets you play."""

    checkpoint: Annotated[Path | None, tyro.conf.arg(aliases=["--policy"])] = None
    """Checkpoint, a policy's file, released:8-1, an address on the Hub, hf://user/name,
    or the folder of a run: then the newest checkpoint before each episode."""

    level: str = ""
    """Level, 1-1 to 8-4; by default the run's own, or 1-1 for a person."""

    speed: float = 1.0
    """1 is the game's own speed; 0.5 is slow motion."""

    human: bool = False
    """Play yourself, in a window: arrows, x (A), z (B), Enter (start), q to quit."""

    frame_skip: int = 1
    """Frames for which a person's buttons stay. Recordings that a run is to learn from
    (trainer.run --demos) need as many as the run has, 6 by default."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    episodes: int = 0
    """End after this many episodes; 0: not before you press q."""

    record: Path | None = None
    """File for the buttons of the first episode, .json; those that follow have numbers
    behind the name. What is there already stays."""

    display: Literal["auto", "window", "terminal", "none"] = "auto"
    """auto: a window where there is a display and pygame, else the terminal. none: only
    records, as fast as it can, as many --episodes as there are to be."""

    web: bool = False
    """A page for browsers: watch the policy (of released:one, if none is given), pause,
    rewind, choose levels, take over and play."""

    web_host: str = "127.0.0.1"
    """Address that the page is served on; one that others can reach needs a token."""

    web_port: int = 8000
    """Port of the page; 0 for a free one."""

    web_token: str = ""
    """Token that viewers of the page must have; if others can reach the page, one is
    made by default. It is part of the address that is printed."""

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
    if config.frame_skip < 1:
        raise ValueError(f"frame_skip must be at least 1, got {config.frame_skip}")
    if config.frame_skip > 1 and not config.human:
        raise ValueError(
            "--frame-skip is for --human: a policy plays with the frames a step that "
            "it was trained with"
        )
    if config.web:
        if config.record is not None:
            raise ValueError(
                "--record keeps what is played in a window or in the terminal: leave "
                "--web out"
            )
        if config.human and config.checkpoint is not None:
            raise ValueError("give --checkpoint or --human, not both")
    elif config.human == (config.checkpoint is not None):
        raise ValueError(
            "give either --checkpoint RUN_OR_FILE, to watch its policy, or --human, to "
            "play yourself"
        )
    if config.display == "none" and not (config.record and config.episodes):
        raise ValueError(
            "--display none shows nothing: give --record FILE and --episodes N, too"
        )
    recorder = None if config.record is None else Recorder(config.record)
    lines: deque[str] = deque(maxlen=_MAX_LINES)

    def on_end(line: str = "") -> None:
        kept = "" if recorder is None else recorder.end()
        lines.extend(filter(None, (line, kept)))

    try:
        if config.web:
            _serve(config, on_end)
        else:
            (_play if config.human else _watch)(config, recorder, on_end)
    finally:
        # The screen is the terminal's own again. An episode may not have ended.
        try:
            on_end()
        finally:
            for line in lines:
                print(line)


def _watch(
    config: WatchConfig, recorder: Recorder | None, on_end: Callable[[str], None]
) -> None:
    """Shows a policy; says how each episode ended."""
    assert config.checkpoint is not None
    # Before the screen is taken: an error is then easy to read.
    episodes = PolicyEpisodes(
        config.checkpoint,
        level=config.level,
        argmax=config.argmax,
        seed=first_seed(config.seed),
        device=config.device,
        recorder=recorder,
    )
    speed = math.inf if config.display == "none" else config.speed
    with closing(open_screen(config.display)) as screen:
        some = islice(episodes, config.episodes or None)
        show_episodes(some, screen, pace=Pace(speed), on_end=on_end)


def _play(
    config: WatchConfig, recorder: Recorder | None, on_end: Callable[[str], None]
) -> None:
    """Lets a person play; says how each episode ended."""
    if config.display == "none":
        raise ValueError("--human plays in a window: leave --display none out")
    if config.display == "terminal":
        raise ValueError(
            "--human plays in a window: a terminal does not report when keys are "
            "released; leave --display terminal out"
        )
    episodes = HumanEpisodes(
        config.level,
        seed=config.seed,
        frame_skip=config.frame_skip,
        recorder=recorder,
    )
    with closing(Window()) as window:
        some = islice(episodes.play(window.buttons), config.episodes or None)
        show_episodes(some, window, pace=Pace(config.speed), on_end=on_end)


def _serve(config: WatchConfig, on_end: Callable[[str], None]) -> None:
    """Serves a page for browsers; says how each episode ended."""
    # An extra: only here it must be there.
    from trainer.film import web

    pace = Pace(config.speed)
    checkpoint = None if config.human else config.checkpoint or _DEFAULT_POLICY
    game = SharedGame(
        checkpoint,
        level=config.level,
        argmax=config.argmax,
        seed=first_seed(config.seed),
        device=config.device,
        pace=pace,
    )

    def play(screen: web.WebScreen) -> None:
        some = islice(game.episodes(), config.episodes or None)
        show_episodes(some, screen, pace=pace, on_end=on_end)

    web.serve(
        game, play, host=config.web_host, port=config.web_port, token=config.web_token
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(WatchConfig, watch, "watch", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
