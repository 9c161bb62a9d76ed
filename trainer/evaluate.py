"""Plays a policy: `python -m trainer.evaluate --checkpoint RUN_OR_FILE`.

By level: how often the policy clears it, how far it gets, its return, and how its
other episodes end. Levels are those of its run, test levels included, or
`--levels 1-1,4-2`, or all; those that a run of many levels never trained on stand
apart. Each is played twice over, with seeds that no run trains with:

- sampled: `--episodes` with actions drawn from the policy, as in training. The clear
  rate has a 95 % interval (Wilson).
- argmax: with the likeliest action at every step. Nothing is left to chance then,
  so each start of 0 to `--noop-max` idle frames is played once: k of 31.

The two may differ widely in either direction. An episode counts as a failure when
`--stall-steps` steps bring no new best position, and when the game's clock runs out.

"Levels in a row" is the number of levels from 1-1 on that are cleared at the first
attempt, each from its own start: with sampled actions the sum of p1, p1 p2, p1 p2 p3,
and so on, where p are the clear rates in the order of the game; with argmax the number
of levels that are cleared from the same start, the mean of all starts.

    python -m trainer.evaluate --checkpoint runs/TASK-TIME
    python -m trainer.evaluate --checkpoint runs/TASK-TIME --levels all
    python -m trainer.evaluate --checkpoint RUN --repeat-action-probability 0 0.1
    python -m trainer.evaluate --policy released:8-1
    python -m trainer.evaluate --policy released:all

`--policy` is another name of `--checkpoint`. `released:` is before the names of the
policies that come with this package: a level's, or one, the network for all levels.
`released:all`, or the folder of a release, plays all of them as its card says, and
shows what they reach beside it.

A run that goes on meanwhile is not disturbed. Besides the table there are
table.json, heatmap.png, and deaths-1-1.png and so on in the folder `evaluation` of
the run. Tasks without levels, such as the whole game, have a table alone.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from trainer.cli import main_of
from trainer.evaluation.output import make_folder, write
from trainer.evaluation.protocol import evaluate_checkpoint
from trainer.evaluation.results import STALL_STEPS, Evaluation
from trainer.evaluation.tables import progress, show, show_replayed
from trainer.machine.files import write_json
from trainer.models import released
from trainer.tuning import releases

# Options that had other names.
RENAMED = {
    "--noops": "--noop-max",
    "--sticky": "--repeat-action-probability",
    "--stall": "--stall-steps",
}


@dataclass(frozen=True)
class EvaluateConfig:
    """Plays a checkpoint and prints how well it does."""

    checkpoint: Annotated[Path, tyro.conf.arg(aliases=["--policy"])]
    """Checkpoint, the folder of a run, whose newest one it then is, a policy's file,
    released:8-1, released:one, released:all, or an address on the Hub, hf://user/name
    (docs/publishing.md)."""

    levels: str = ""
    """Levels such as 1-1,4-2, or all; by default what the run trained on, and its test
    levels."""

    episodes: int = 100
    """Sampled episodes of each level, exactly."""

    noop_max: int = 30
    """Idle frames before each episode, 0 to this many."""

    repeat_action_probability: tuple[float, ...] = (0.0,)
    """Chance at every frame that the buttons stay as they were (sticky actions),
    whatever the run trained with; several give a table each."""

    argmax: bool = True
    """Also play the likeliest actions, once from each start."""

    stall_steps: int = STALL_STEPS
    """Steps without a new best position after which an episode has failed; 0: no such
    limit. EnvPool's tasks have none."""

    ema: bool = True
    """Play the averaged weights where the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000. Environments never have one
    that a run trains with."""

    stream: int = 0
    """Which evaluation with this seed. 0: one that no run plays. With --seed of a run,
    1, 2, ... are the evaluations of that run (stream in its evaluations.jsonl): on a
    CPU of the same kind the command repeats one episode by episode."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""

    json: bool = False
    """Print the content of table.json instead of the table."""

    out: Path | None = None
    """Folder for table.json and the pictures; by default evaluation in the run's."""

    pictures: bool = True
    """Draw the heat-map and the maps of deaths."""


def evaluate(
    config: EvaluateConfig, on_progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Plays what the options name; see `evaluate_checkpoint`."""
    return evaluate_checkpoint(
        config.checkpoint,
        levels=config.levels,
        episodes=config.episodes,
        seed=config.seed,
        stream=config.stream,
        noop_max=config.noop_max,
        repeat_action_probability=config.repeat_action_probability,
        argmax=config.argmax,
        stall_steps=config.stall_steps,
        ema=config.ema,
        device=config.device,
        on_progress=on_progress,
    )


def _replay(config: EvaluateConfig) -> None:
    """Plays all policies of a release as its card says."""
    own = replace(EvaluateConfig(config.checkpoint), json=config.json, out=config.out)
    if config != own:
        raise ValueError(
            f"{config.checkpoint} is played as its card says: leave all options but "
            "--json and --out out, or name one policy, such as released:8-1"
        )
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
    with progress("policies") as on_progress:
        rows = releases.replay(released.folder_of(config.checkpoint), on_progress)
    results = [row._asdict() for row in rows]
    content = {"results": results}
    if config.json:
        print(json.dumps(content, indent=2), flush=True)
    else:
        show_replayed(results)
    if config.out is not None:
        write_json(config.out / "table.json", content)


def _run(config: EvaluateConfig) -> None:
    if released.is_release(config.checkpoint):
        _replay(config)
        return
    folder = make_folder(config.checkpoint, config.out)
    with progress() as on_progress:
        result = evaluate(config, on_progress)
    if config.json:
        print(json.dumps(result.to_dict(), indent=2), flush=True)
    else:
        show(result)
    written = f"nothing is written: {config.checkpoint} is in no run; see --out"
    if folder is not None:
        written = write(result, folder, pictures=config.pictures)
    if not config.json:
        print(written)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(EvaluateConfig, _run, "evaluate", __doc__, argv, RENAMED)


if __name__ == "__main__":
    sys.exit(main())
