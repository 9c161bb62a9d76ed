"""Shows a policy live: `python -m trainer.watch --checkpoint RUN_OR_FILE`.

The picture is in a window if there is a display and pygame, else in the terminal, drawn
with half-block characters. Before each episode the command loads the newest checkpoint
of the run, so you can watch a run while it trains. With `--human` you play in a window:
arrows move, x jumps, z runs, q quits. `--web` does both on a page in a
browser. `--record FILE` keeps the buttons of each episode as a recording,
which `python -m trainer.plan --replay FILE` plays again.

    python -m trainer.watch --checkpoint runs/TASK-TIME
    python -m trainer.watch --checkpoint runs/TASK-TIME --level 1-2 --speed 0.5
    python -m trainer.watch --policy released:8-1
    python -m trainer.watch --policy released:all --whole-game
    python -m trainer.watch --human --level 4-1 --record play.json
    python -m trainer.watch --policy FILE --record 1.json --display none --episodes 9
    python -m trainer.watch --web --policy released:8-1

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from trainer.cli import main_of
from trainer.config.options import check_ranges, option
from trainer.config.tasks import check_level
from trainer.evaluation.play import first_seed
from trainer.film.live import (
    HUMAN,
    Episodes,
    Pace,
    PlayOptions,
    Screen,
    Window,
    human_episodes,
    open_screen,
    policy_episodes,
    show_episodes,
)
from trainer.film.recorder import Recorder
from trainer.film.shared_game import SharedGame

# At the end, lines about the last episodes are printed, at most this many.
_MAX_LINES = 20
# The policy of --web without --policy: it was trained on every level of the menu.
_DEFAULT_POLICY = Path("released:one")


@dataclass(frozen=True)
class WatchConfig(PlayOptions):
    """Shows a policy live, or lets you play."""

    speed: float = option(1.0, above=0)
    """1 is the normal speed of the game; 0.5 is half speed."""

    human: bool = False
    """Play yourself in a window: arrows, x (A), z (B), Enter (start), q to quit."""

    frame_skip: int = option(1, least=1)
    """Frames for which the buttons of --human stay as they are. Recordings for
    trainer.run --demos need the frame skip of that run, 6 by default."""

    episodes: int = option(0, least=0)
    """End after this many episodes; 0: until you press q."""

    record: Path | None = None
    """File for the buttons of the first episode, .json; the files of later episodes
    have a number after the name. Existing files are not overwritten."""

    display: Literal["auto", "window", "terminal", "none"] = "auto"
    """auto: a window if there is a display and pygame, else the terminal. none: only
    record --episodes episodes, at full speed."""

    web: bool = False
    """Serve a page for browsers: watch the policy (released:one by default), pause,
    rewind, choose levels, or take over and play."""

    web_host: str = "127.0.0.1"
    """Address to serve the page on; an address that other machines can reach needs a
    token."""

    web_port: int = 8000
    """Port of the page; 0 for a free one."""

    web_token: str = ""
    """Token that viewers need. If other machines can reach the page, the default is a
    random token. The printed address contains the token."""


def check(config: WatchConfig) -> None:
    """Raises ValueError if options are out of range or do not go together."""
    check_ranges(config)
    policy = config.checkpoint is not None
    for wrong, message in (
        (
            config.frame_skip > 1 and not config.human,
            "--frame-skip needs --human: a policy plays with the frame skip of its "
            "training; leave it out",
        ),
        (
            config.web and config.record is not None,
            "--record works in a window or in the terminal only: leave out --web or "
            "--record",
        ),
        (
            config.web and config.human and policy,
            "give --checkpoint or --human, not both",
        ),
        (
            not config.web and config.human == policy,
            "give either --checkpoint RUN_OR_FILE, to watch its policy, or --human, to "
            "play yourself",
        ),
        (
            config.whole_game and config.human,
            "--whole-game plays a policy: leave out --human, which plays level after "
            "level",
        ),
        (
            config.whole_game and config.web,
            "--web shows single levels: leave out --whole-game or --web",
        ),
        (
            config.whole_game and bool(config.level),
            "--whole-game plays all levels: leave out --level",
        ),
        (
            config.pause_for_rng and not config.whole_game,
            "--pause-for-rng pauses between levels: it needs --whole-game",
        ),
        (
            config.display == "none" and not (config.record and config.episodes),
            "--display none only records: also give --record FILE and --episodes N",
        ),
        (
            config.human and not config.web and config.display in ("none", "terminal"),
            f"--human plays in a window: leave out --display {config.display}",
        ),
    ):
        if wrong:
            raise ValueError(message)
    if config.human and config.level:
        check_level(config.level, HUMAN.task)


def watch(config: WatchConfig) -> None:
    """Shows the episodes that the options ask for."""
    check(config)
    recorder = None if config.record is None else Recorder(config.record)
    lines: deque[str] = deque(maxlen=_MAX_LINES)

    def on_end(line: str = "") -> None:
        recorded = "" if recorder is None else recorder.end()
        lines.extend(filter(None, (line, recorded)))

    def show(episodes: Episodes, screen: Screen | None) -> None:
        limited = islice(episodes, config.episodes or None)
        show_episodes(limited, screen, pace=pace, on_end=on_end)

    checkpoint = config.checkpoint
    if config.web and not config.human:
        checkpoint = checkpoint or _DEFAULT_POLICY
    options = replace(config, checkpoint=checkpoint, seed=first_seed(config.seed))
    pace = Pace(config.speed)
    try:
        if config.web:
            # An optional dependency, which only --web needs.
            from trainer.film import web

            game = SharedGame(options, pace)
            web.serve(
                game,
                lambda screen: show(game.episodes(), screen),
                host=config.web_host,
                port=config.web_port,
                token=config.web_token,
            )
        elif config.human:
            with closing(Window()) as window:
                episodes = human_episodes(
                    window.buttons, config.level, config.frame_skip, recorder
                )
                show(episodes, window)
        else:
            # Loaded before the screen opens, so that an error is easy to read.
            episodes = policy_episodes(options, recorder)
            if config.display == "none":
                show(episodes, None)
            else:
                with closing(open_screen(config.display)) as screen:
                    show(episodes, screen)
    finally:
        # The screen is closed, so lines can be printed. An episode may not have ended.
        try:
            on_end()
        finally:
            for line in lines:
                print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(WatchConfig, watch, "watch", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
