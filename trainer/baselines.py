"""The floor of every table: `python -m trainer.baselines`.

Plays simple policies through the same evaluation as a checkpoint
(`trainer.evaluate`), with sampled actions:

- random: every action with the same chance.
- right: runs to the right and never jumps.
- jumper: runs to the right and jumps in a fixed rhythm, or when the picture stands
  still. Like a trained policy it sees pictures only.
- a2c: the trainer's network and rewards, trained for a short while with advantage
  actor-critic, which is the learner with everything else off.

    python -m trainer.baselines
    python -m trainer.baselines --levels all --no-a2c
    python -m trainer.baselines --checkpoint runs/TASK-TIME

Exit status: 0, 130 after Ctrl-C, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mario_envpool.actions import ACTION_SETS
from trainer.cli import main_of
from trainer.config.learning import RMSprop
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import parse_levels
from trainer.evaluation.play import wilson
from trainer.evaluation.protocol import evaluate_levels
from trainer.evaluation.results import LevelResult
from trainer.machine.files import write_json
from trainer.models import PolicyModel, PolicyOutput, checkpoint
from trainer.models.policy import Policy, load_policy, playing_device
from trainer.session.session import run_training
from trainer.show.dashboard import QuietDisplay

# A logit beside zeros that is as good as certain.
_SURE = 100.0

# The jumper's rhythm. A jump is as high as its button is held; the game ignores the
# button until it is released once.
_RUN_FRAMES = 36
_JUMP_FRAMES = 30

# Mean difference of two pictures, in grey levels. Against a pipe it was below .7 in
# 95 of 100 steps of 6 frames, while the picture scrolls above 1.2 in 95 of 100.
_STILL = 1.0


@dataclass(frozen=True)
class BaselinesConfig:
    """Plays simple policies, and checkpoints beside them."""

    levels: str = "1-1"
    """Levels such as 1-1,4-2, or all."""

    episodes: int = 100
    """Episodes of each level and policy, exactly."""

    noops: int = 30
    """Idle frames before each episode, 0 to this many."""

    seed: int = 1
    """Seed of environments and actions, and of A2C's training; 0 to 20,000."""

    a2c: bool = True
    """Train and play A2C."""

    a2c_seconds: float = 60.0
    """Seconds to train it for: on the level, or with several on a random one of the
    game's in every episode."""

    checkpoint: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Checkpoint, or folder of a run, to play as well; may be given several times."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""

    out: Path = Path("runs/baselines")
    """Folder for baselines.json and A2C's run."""


class Constant(PolicyModel):
    """Says the same whatever it sees."""

    logits: Tensor

    def __init__(self, logits: Sequence[float]) -> None:
        """Notes the logits (A,)."""
        super().__init__()
        self.register_buffer("logits", torch.tensor(logits))

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`; the values are 0."""
        logits = self.logits.expand(*first.shape, -1)
        return PolicyOutput(logits, torch.zeros(first.shape, device=obs.device)), state


class Jumper(PolicyModel):
    """Runs, and jumps in a fixed rhythm or when the picture stands still.

    Its state (B, 1) counts the steps since it began to run.
    """

    state_size = 1
    run: Tensor
    jump: Tensor

    def __init__(
        self, run: Sequence[float], jump: Sequence[float], frame_skip: int
    ) -> None:
        """Notes the logits (A,) of both, and the frames of a step."""
        super().__init__()
        self.register_buffer("run", torch.tensor(run))
        self.register_buffer("jump", torch.tensor(jump))
        self._run_steps = max(1, round(_RUN_FRAMES / frame_skip))
        self._jump_steps = max(1, round(_JUMP_FRAMES / frame_skip))

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`; the values are 0."""
        change = (obs[:, :, -1].float() - obs[:, :, -2].float()).abs().mean((-2, -1))
        still = change < _STILL
        steps, jumps = state[:, 0], []
        for row in range(len(first)):
            steps = steps.masked_fill(first[row], 0)
            # The button was up for one step, so that a jump may begin.
            stuck = still[row] & (steps >= 1) & (steps < self._run_steps)
            steps = steps.masked_fill(stuck, self._run_steps)
            jumps.append(steps >= self._run_steps)
            steps = (steps + 1) % (self._run_steps + self._jump_steps)
        logits = torch.where(torch.stack(jumps)[..., None], self.jump, self.run)
        values = torch.zeros(first.shape, device=obs.device)
        return PolicyOutput(logits, values), steps[:, None]


def scripted(env: EnvConfig) -> dict[str, PolicyModel]:
    """The policies that nobody trained, by name.

    Args:
        env: whose actions they take.
    """
    actions = ACTION_SETS[env.action_set]

    def only(name: str) -> list[float]:
        return [_SURE * (action == name) for action in actions]

    return {
        "random": Constant([0.0] * len(actions)),
        "right": Constant(only("right+B")),
        "jumper": Jumper(only("right+B"), only("right+A+B"), env.frame_skip),
    }


def a2c_config(task: str) -> RunConfig:
    """Advantage actor-critic (Mnih et al. 2016), out of the same learner.

    One gradient step for each batch, which the current policy has just played: the
    ratio in the ppo loss is then 1, its gradient the plain policy gradient, and A2C
    the special case of PPO that Huang et al. 2022 (arXiv:2205.09123) describe.
    Advantages of five steps (lambda 1), not normalised, RMSProp at 7e-4 with epsilon
    1e-5, a squared value loss: as in OpenAI's A2C. No V-trace, replay, overlap or
    averaged weights. Environments, network, discount and entropy bonus are the CPU
    recipe's.

    Args:
        task: to train on.
    """
    base = RunConfig()
    learner = replace(
        base.learner,
        loss="ppo",
        advantages="gae",
        targets="stored",
        unroll=5,
        unrolls_per_batch=base.env.num_envs,
        epochs=1,
        minibatch_size=5 * base.env.num_envs,
        lam=1.0,
        normalise_advantages=False,
        value_loss="squared",
        optimizer=RMSprop(eps=1e-5),
        lr=7e-4,
        lr_end=0.0,
        ema=0.0,
    )
    return replace(
        base,
        preset="cpu",
        lag=0,
        mode="sync",
        env=replace(base.env, task=task),
        learner=learner,
        replay=replace(base.replay, replay_share=0.0),
        stop_when_solved=False,
        end_episodes=0,
        videos=False,
    )


def train_a2c(config: BaselinesConfig, levels: Sequence[str]) -> Path:
    """Trains A2C; returns the folder of its run.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it.
    """
    level = f"-{levels[0]}" if len(levels) == 1 else "RandomStages"
    folder = config.out / f"a2c-{time.strftime('%Y%m%d-%H%M%S')}"
    training = replace(
        a2c_config(f"SuperMarioBros{level}-v0"),
        device=config.device,
        seed=config.seed,
        max_seconds=config.a2c_seconds,
        # Time alone ends it.
        max_steps=2**62,
        run_dir=folder,
    )
    print(f"training A2C for {config.a2c_seconds:g} s: {folder}/", flush=True)
    if run_training(training, QuietDisplay())["signal"]:
        raise KeyboardInterrupt
    return folder


def baselines(config: BaselinesConfig) -> dict[str, list[LevelResult]]:
    """Plays all policies; a list by level for each of their names.

    Raises:
        ValueError: something given cannot be.
    """
    env = RunConfig().resolved().env
    levels = parse_levels(config.levels, env.task)
    if config.a2c and config.a2c_seconds <= 0:
        raise ValueError(
            f"a2c_seconds must be above 0, got {config.a2c_seconds:g}; --no-a2c "
            "leaves A2C out"
        )
    device = playing_device(config.device)
    # All are loaded before any plays: a wrong path is noticed at once.
    given: dict[str, Policy] = {}
    for path in config.checkpoint:
        name = _name(path)
        given[str(path) if name in given else name] = load_policy(path, device)
    policies = {
        name: Policy(model.to(device).eval(), env, device, None, 0, False)
        for name, model in scripted(env).items()
    }
    if config.a2c:
        policies["a2c"] = load_policy(train_a2c(config, levels), device)
        # Training has its own settings of threads.
        playing_device(config.device)
    results = {}
    for name, policy in (policies | given).items():
        print(f"playing {name}", flush=True)
        results[name] = evaluate_levels(
            policy.model,
            policy.env,
            levels=levels,
            episodes=config.episodes,
            seed=config.seed,
            device=device,
            dtype=policy.dtype,
            noops=config.noops,
        )
    return results


def _name(path: Path) -> str:
    """A checkpoint's row: the folder of the run, and the file if one was named."""
    run_dir = checkpoint.run_dir_of(path)
    return f"{run_dir.resolve().name}/{path.name}" if run_dir else path.resolve().name


def table(results: dict[str, list[LevelResult]]) -> Table:
    """A row for each policy, over all levels; at most 80 columns wide."""
    many = len(next(iter(results.values()))) > 1
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1), header_style="bold")
    shown.add_column("policy")
    columns = ["cleared", "95 % interval", "best x", "return", "steps to clear"]
    for column in [*columns, *["levels"] * many]:
        shown.add_column(column, justify="right")
    for name, rows in results.items():
        clears, episodes = sum(r.clears for r in rows), sum(r.episodes for r in rows)
        low, high = wilson(clears, episodes)
        cells = [
            f"{100 * clears / episodes:.1f} %",
            f"{100 * low:.1f}-{100 * high:.1f} %",
            f"{_mean(rows, lambda r: r.best_x_median):.0f}",
            f"{_mean(rows, lambda r: r.return_mean):.2f}",
            f"{_mean(rows, lambda r: r.steps_to_clear_median):.0f}" if clears else "-",
        ]
        if many:
            cells.append(f"{sum(r.clears > 0 for r in rows)}/{len(rows)}")
        shown.add_row(name, *cells)
    return shown


def _mean(
    rows: Sequence[LevelResult], number: Callable[[LevelResult], float | None]
) -> float:
    """Mean over the levels that have the number."""
    numbers = [value for value in map(number, rows) if value is not None]
    return sum(numbers) / len(numbers)


def write(config: BaselinesConfig, results: dict[str, list[LevelResult]]) -> Path:
    """Writes what was played, and every policy's results by level, as JSON."""
    content: dict[str, Any] = {
        name: getattr(config, name) for name in ("episodes", "noops", "seed")
    }
    content["a2c_seconds"] = config.a2c_seconds if config.a2c else None
    content["policies"] = {
        name: [result.to_dict() for result in rows] for name, rows in results.items()
    }
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "baselines.json"
    write_json(path, content)
    return path


def _show(config: BaselinesConfig) -> None:
    results = baselines(config)
    path = write(config, results)
    Console().print(table(results))
    print(
        f"levels {config.levels}; {config.episodes} episodes of each, sampled actions, "
        f"0 to {config.noops} idle frames, seed {config.seed}\n"
        "best x and steps to clear: medians of each level, averaged; "
        f"levels: cleared once at least\nwrote {path}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(BaselinesConfig, _show, "baselines", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
