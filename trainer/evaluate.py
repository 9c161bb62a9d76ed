"""Plays a policy: `python -m trainer.evaluate --checkpoint RUN_OR_FILE`.

For each level, the table shows how often the policy clears it, how far the policy gets,
its return, and how the other episodes end. The default levels are the training and test
levels of the run; `--levels 1-1,4-2` or `--levels all` plays others. Levels that a run
of many levels never trained on are listed separately. Each level is played in two ways,
with seeds that no run trains with:

- sampled: `--episodes` episodes with sampled actions, as in training. The clear rate
  has a 95 % interval (Wilson).
- greedy: the most probable action at every step. Such play is deterministic, so each
  start after 0 to `--noop-max` idle frames is played once: k of 31.

The two clear rates may differ widely in either direction. An episode fails
when `--stall-steps` steps bring no new best position, or when the game's clock runs
out.

"Levels in a row" is the mean number of levels from 1-1 on that are cleared at the first
attempt, each from its own start. With sampled actions it is the sum of p1, p1 p2, p1 p2
p3, and so on, where p are the clear rates in the order of the game. With greedy actions
it counts the levels cleared after the same number of idle frames, as a mean over all
starts.

    python -m trainer.evaluate --checkpoint runs/TASK-TIME
    python -m trainer.evaluate --checkpoint runs/TASK-TIME --levels all
    python -m trainer.evaluate --checkpoint RUN --repeat-action-probability 0 0.1
    python -m trainer.evaluate --policy released:8-1
    python -m trainer.evaluate --policy released:all
    python -m trainer.evaluate --policy released:all --whole-game

`--policy` is another name of `--checkpoint`. `released:8-1` is the policy for 8-1 that
comes with this package, and `released:one` is its network for all
levels. `released:all`, or the folder of a release, plays all policies as the card
describes and shows the results beside those of the card.

`--whole-game` plays attempts at the whole game instead, each from power-on with three
lives, without cuts: by one network, or by a policy for each level, chosen by the level
that the game's RAM names. The tables show how many levels an attempt passes before its
first lost life and in all, how many attempts clear the last castle, and where lives are
lost. The folder then has whole-game.json, whole-game-episodes.jsonl and whole-game.png.

The command does not disturb a run in progress. It also writes table.json,
table-episodes.jsonl (a line for each episode, as in a run's episodes.jsonl),
heatmap.png, deaths-1-1.png and so on to the folder `evaluation` of the run. Tasks
without levels, such as the whole game, have no pictures.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from trainer.cli import main_of
from trainer.evaluation.protocol import evaluate_checkpoint, evaluate_whole_game
from trainer.evaluation.results import Evaluation
from trainer.evaluation.tables import progress, show, show_games, show_replayed
from trainer.evaluation.whole_game import GameEvaluation
from trainer.machine.files import json_line, make_folder, write_json, write_text
from trainer.models import released
from trainer.models.policy import run_folder
from trainer.tuning import releases


@dataclass(frozen=True)
class EvaluateConfig:
    """Plays a policy and prints its results."""

    checkpoint: Annotated[Path, tyro.conf.arg(aliases=["--policy"])]
    """Checkpoint, run folder (its newest checkpoint), policy file, released:8-1,
    released:one, released:all, or an address on the Hub, hf://user/name
    (docs/publishing.md)."""

    model: str = ""
    """Network of your own, module:Class, if the policy has one: code that a file names
    is imported only if you name it here."""

    reward_fn: str = ""
    """Reward of your own, module:function, if the run has one: code that a file names
    is imported only if you name it here."""

    task: str = ""
    """Another game, such as SuperMarioBros2-v0 (The Lost Levels) or SuperMarioBros-v3
    (another revision), on whose ROM the policy then plays; the default is that of the
    run. The default of --out is then RUN_DIR/evaluation/TASK."""

    levels: str = ""
    """Levels such as 1-1,4-2, or all; the default is the training and test levels of
    the run, or all levels of --task."""

    whole_game: bool = False
    """Play attempts at the whole game, from power-on with three lives. A folder of
    policies, such as released:all, plays each level with its own; --episodes is the
    number of attempts."""

    pause_for_rng: bool = False
    """With --whole-game: pause the game before each level and life until its random
    numbers are those of the level's own task, which the policies know."""

    episodes: int = 100
    """Exact number of sampled episodes per level."""

    noop_max: int = 30
    """Each episode begins with 0 to this many idle frames."""

    rng_frames_max: int | None = None
    """Largest number of frames by which the game's random numbers and counters are
    advanced at the start of an episode. 0: a level has one course of events for each
    number of idle frames, as in published results; 32766: all that exist. The default
    is that of the run, and 0 with --whole-game."""

    repeat_action_probability: tuple[float, ...] = (0.0,)
    """Probability per frame that the buttons stay as they were (sticky actions),
    independent of the run's own value. Each of several values has a table."""

    argmax: bool = True
    """Also play greedily (the most probable action), once from each start."""

    stall_steps: int | None = None
    """Steps without a new best position after which an episode fails; 0: no such limit.
    The default is 250; with --whole-game it only ends an attempt that pauses the game
    without end. Tasks of EnvPool have no such limit."""

    ema: bool = True
    """Play the averaged weights if the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20000. No run trains with the seeds of an
    evaluation."""

    stream: int = 0
    """Number of the evaluation with this seed. 0: an evaluation that no run plays. With
    the --seed of a run, 1, 2, ... repeat the evaluations of that run (stream in its
    evaluations.jsonl), episode by episode on the same kind of CPU."""

    device: str = "auto"
    """auto (cuda if there is a usable GPU, else cpu), cpu, cuda or cuda:N."""

    json: bool = False
    """Print the content of table.json instead of the table."""

    out: Path | None = None
    """Folder for table.json and the pictures; the default is RUN_DIR/evaluation."""

    pictures: bool = True
    """Draw the heat map and the maps of deaths."""


def _replay(config: EvaluateConfig) -> None:
    """Plays all policies of a release as its card describes."""
    allowed = EvaluateConfig(config.checkpoint, model=config.model)
    if config != replace(allowed, json=config.json, out=config.out):
        raise ValueError(
            f"{config.checkpoint} is played as its card says: leave out all options "
            "but --json, --out and --model, or name one policy, such as released:8-1"
        )
    if config.out is not None:
        make_folder(config.out)
    with progress("policies") as on_progress:
        folder = released.folder_of(config.checkpoint)
        results = releases.replay(folder, on_progress, config.model)
    content = {"results": results}
    if config.json:
        print(json.dumps(content, indent=2), flush=True)
    else:
        show_replayed(results)
    if config.out is not None:
        write_json(config.out / "table.json", content)


def _play(config: EvaluateConfig) -> Evaluation | GameEvaluation:
    """Plays levels, a task without levels, or whole games."""
    options = dict(vars(config))
    for name in ("checkpoint", "json", "out", "pictures", "whole_game"):
        del options[name]
    pause = options.pop("pause_for_rng")
    if config.stall_steps is None:
        del options["stall_steps"]
    if not config.whole_game:
        if pause:
            raise ValueError(
                "--pause-for-rng pauses between levels: it needs --whole-game"
            )
        with progress() as on_progress:
            return evaluate_checkpoint(
                config.checkpoint, **options, on_progress=on_progress
            )
    if config.levels:
        raise ValueError("--whole-game plays all levels: leave out --levels")
    if config.reward_fn:
        raise ValueError("--whole-game counts no rewards: leave out --reward-fn")
    if config.task:
        raise ValueError(
            "--whole-game plays the game of the policy's training: leave out --task"
        )
    del options["levels"], options["reward_fn"], options["task"]
    with progress("attempts") as on_progress:
        return evaluate_whole_game(
            config.checkpoint, pause_for_rng=pause, **options, on_progress=on_progress
        )


def _draw(result: Evaluation | GameEvaluation, folder: Path) -> int:
    """Draws the pictures; returns their number."""
    # Imported here, so that Matplotlib loads only for pictures.
    from trainer.evaluation.plots import draw, draw_games

    if isinstance(result, GameEvaluation):
        draw_games(result, folder / "whole-game.png")
        return 1
    if not result.levels:
        return 0
    return len(list(draw(result.about, result.levels, folder)))


def _run(config: EvaluateConfig) -> None:
    if released.is_release(config.checkpoint) and not config.whole_game:
        _replay(config)
        return
    run_dir, folder = run_folder(config.checkpoint), config.out
    if folder is None and run_dir is not None:
        folder = run_dir / "evaluation" / config.task
    if folder is not None:
        make_folder(folder)
    result = _play(config)
    if config.json:
        print(json.dumps(result.to_dict(), indent=2), flush=True)
    elif isinstance(result, GameEvaluation):
        show_games(result)
    else:
        show(result)
    written = f"wrote no files: {config.checkpoint} is not in a run folder; see --out"
    if folder is not None:
        name = "whole-game" if config.whole_game else "table"
        write_json(folder / f"{name}.json", result.to_dict())
        lines = b"".join(map(json_line, result.episodes))
        write_text(folder / f"{name}-episodes.jsonl", lines.decode())
        written = f"wrote {name}.json and {name}-episodes.jsonl to {folder}"
        if config.pictures and (count := _draw(result, folder)):
            written += f", and {count} picture{'s' * (count != 1)}"
    if not config.json:
        print(written)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(EvaluateConfig, _run, "evaluate", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
