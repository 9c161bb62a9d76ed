"""Plays a policy: `python -m trainer.evaluate --checkpoint RUN_OR_FILE`.

By level: how often the policy clears it, how far it comes, what it earns, and how
its other episodes end. Levels are those of its run, test levels included, or
`--levels 1-1,4-2`, or all; those that a run of many levels never trained on stand
apart. Each is played twice over, with seeds that no run trains with:

- sampled: `--episodes` with actions drawn from the policy, as in training. The clear
  rate has a 95 % interval (Wilson).
- argmax: with the likeliest action at every step. Nothing is left to chance then,
  so each start of 0 to `--noops` idle frames is played once: k of 31.

The two may differ widely in either direction. An episode counts as a failure when
`--stall` steps bring no new best position, and when the game's clock runs out.

"Levels in a row" says how far one gets from 1-1 when every level has to be cleared
at the first attempt, each from its own start: with sampled actions the sum of p1,
p1 p2, p1 p2 p3, and so on, p being the clear rates in the order of the game; with
argmax the number of levels from 1-1 on that are cleared from the same start, the
mean of all starts.

    python -m trainer.evaluate --checkpoint runs/TASK-TIME
    python -m trainer.evaluate --checkpoint runs/TASK-TIME --levels all
    python -m trainer.evaluate --checkpoint runs/TASK-TIME --sticky 0 0.1 --json

A run that goes on meanwhile is not disturbed. Besides the table there are
table.json, heatmap.png, and deaths-1-1.png and so on in the folder `evaluation` of
the run. Tasks without levels, such as the whole game, have a table alone.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.cli import main_of
from trainer.config.tasks import levels_of, parse_levels
from trainer.evaluation.protocol import (
    _check,
    _check_limits,
    evaluate_levels,
    evaluate_policy,
)
from trainer.evaluation.results import (
    STALL_STEPS,
    LevelResult,
    by_options,
    levels_in_a_row,
)
from trainer.evaluation.tables import progress, show
from trainer.machine.files import write_json
from trainer.models.policy import Policy, load_policy, playing_device, run_folder


@dataclass(frozen=True)
class EvaluateConfig:
    """Plays a checkpoint and says how well it does."""

    checkpoint: Path
    """Checkpoint, or the folder of a run, whose newest one it then is."""

    levels: str = ""
    """Levels such as 1-1,4-2, or all; by default what the run trained on, and its test
    levels."""

    episodes: int = 100
    """Sampled episodes of each level, exactly."""

    noops: int = 30
    """Idle frames before each episode, 0 to this many."""

    sticky: tuple[float, ...] = (0.0,)
    """Chance at every frame that the buttons stay as they were, whatever the run
    trained with; several give a table each."""

    argmax: bool = True
    """Also play the likeliest actions, once from each start."""

    stall: int = STALL_STEPS
    """Steps without a new best position after which an episode of a level has failed;
    0: no such limit."""

    ema: bool = True
    """Play the averaged weights where the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000. Environments never have one
    that a run trains with."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""

    json: bool = False
    """Print what table.json holds, instead of the table."""

    out: Path | None = None
    """Folder for table.json and the pictures; by default evaluation in the run's."""

    pictures: bool = True
    """Draw the heat-map and the maps of deaths."""


class Evaluation(NamedTuple):
    """What the command found out.

    Attributes:
        about: what was played: checkpoint, task, levels and options.
        levels: results by level; sampled ones and argmax for each value of sticky.
        rows: `evaluate_policy`'s results, for tasks without levels.
    """

    about: dict[str, Any]
    levels: list[LevelResult]
    rows: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: what table.json holds."""
        if not self.levels:
            return self.about | {"results": self.rows}
        return self.about | {
            "results": [result.to_dict() for result in self.levels],
            "levels_in_a_row": [
                {"sticky": sticky, "argmax": argmax, "levels": levels_in_a_row(part)}
                for (sticky, argmax), part in by_options(self.levels).items()
            ],
        }


def evaluate(
    config: EvaluateConfig, tell: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Plays a checkpoint.

    Args:
        config: of the command.
        tell: called with the episodes that have ended and those there will be.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: an option is out of range.
    """
    device = playing_device(config.device)
    policy = load_policy(config.checkpoint, device, ema=config.ema)
    task = policy.env.task
    levels = levels_of(policy.env.levels, policy.env.test_levels, task)
    if config.levels:
        levels = parse_levels(config.levels, task)
    if not config.sticky:
        raise ValueError("sticky takes one chance or several, got none")
    for sticky in config.sticky:
        _check(policy.env, config.episodes, sticky)
    if levels:
        _check_limits(config.noops, config.stall)
    # Sampled first, for each value of sticky.
    chances = dict.fromkeys(config.sticky)
    ways = [(s, a) for s in chances for a in (False, True)[: 1 + config.argmax]]
    shares = [config.noops + 1 if argmax else config.episodes for _, argmax in ways]
    done, total = 0, len(levels) * sum(shares)

    def count(ended: int) -> None:
        nonlocal done
        done += ended
        if tell is not None:
            tell(done, total)

    results: list[LevelResult] = []
    rows: list[dict[str, Any]] = []
    for sticky, argmax in ways:
        options: dict[str, Any] = {
            "episodes": config.episodes,
            "seed": config.seed,
            "device": device,
            "dtype": policy.dtype,
            "noops": config.noops,
            "sticky": sticky,
            "argmax": argmax,
        }
        if levels:
            options |= {"levels": levels, "stall": config.stall, "tell": count}
            results += evaluate_levels(policy.model, policy.env, **options)
        else:
            rows.append(evaluate_policy(policy.model, policy.env, **options))
    return Evaluation(_about(config, policy, levels), results, rows)


def _about(
    config: EvaluateConfig, policy: Policy, levels: Sequence[str]
) -> dict[str, Any]:
    """What was played, and how."""
    about = {
        "checkpoint": str(config.checkpoint),
        "task": policy.env.task,
        "trained_steps": policy.steps,
        "weights": "ema" if policy.averaged else "latest",
        "frame_skip": policy.env.frame_skip,
        "device": str(policy.device),
        "seed": config.seed,
        "noops": config.noops,
        "episodes": config.episodes,
    }
    return about | {"levels": list(levels), "stall": config.stall} if levels else about


def _folder(config: EvaluateConfig) -> Path | None:
    """Makes the folder to write to, before anything is played; None: there is none."""
    out = config.out
    if out is None:
        run_dir = run_folder(config.checkpoint)
        if run_dir is None:
            return None
        out = run_dir / "evaluation"
    with _writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    return out


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Says of an OSError which folder it is about, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write to the folder {folder} ({error.strerror or error}); choose "
            "another with --out"
        ) from error


def _write(config: EvaluateConfig, result: Evaluation, out: Path) -> str:
    """Writes table.json and the pictures; returns a line that says so."""
    pictures: list[Path] = []
    with _writing_to(out):
        write_json(out / "table.json", result.to_dict())
        if config.pictures and result.levels:
            from trainer.evaluation.plots import draw

            pictures = list(draw(result.about, result.levels, out))
    count = len(pictures)
    more = f" and {count} picture{'s' * (count > 1)}" if count else ""
    return f"wrote table.json{more} to {out}"


def _show(config: EvaluateConfig) -> None:
    out = _folder(config)
    with progress() as tell:
        result = evaluate(config, tell)
    if config.json:
        print(json.dumps(result.to_dict(), indent=2), flush=True)
    else:
        show(result.about, result.levels, result.rows)
    written = f"nothing is written: {config.checkpoint} is in no run; see --out"
    if out is not None:
        written = _write(config, result, out)
    if not config.json:
        print(written)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(EvaluateConfig, _show, "evaluate", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
