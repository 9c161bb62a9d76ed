"""Plays simple policies for comparison: `python -m trainer.baselines`.

The evaluation is the same as for a checkpoint (`trainer.evaluate`), with sampled
actions:

- random: every action with the same probability.
- right: runs to the right and never jumps.
- jumper: runs to the right and jumps in a fixed rhythm, or when the picture stands
  still. Like a trained policy it sees only pictures.
- a2c: the trainer's network and rewards, trained for a short time with advantage
  actor-critic: the same learner with all other features off.

    python -m trainer.baselines
    python -m trainer.baselines --levels all --no-a2c
    python -m trainer.baselines --checkpoint runs/TASK-TIME

Exit status: 0, 128 plus the number of a signal that ended it (130 after Ctrl-C), or 2
with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from trainer.cli import main_of
from trainer.config.learning import Ppo, RMSprop
from trainer.config.schema import RunConfig
from trainer.config.tasks import parse_levels
from trainer.evaluation.protocol import evaluate_levels
from trainer.evaluation.results import LevelResult
from trainer.evaluation.scripted import scripted
from trainer.evaluation.tables import policies_table
from trainer.machine.files import write_json
from trainer.machine.process import Interrupted
from trainer.models import checkpoint
from trainer.models.policy import Policy, load_policy, playing_device
from trainer.session.training import run_training
from trainer.show.display import Display


@dataclass(frozen=True)
class BaselinesConfig:
    """Plays simple policies, and checkpoints for comparison."""

    levels: str = "1-1"
    """Levels such as 1-1,4-2, or all."""

    episodes: int = 100
    """Exact number of episodes per level and policy."""

    noop_max: int = 30
    """Each episode begins with 0 to this many idle frames."""

    seed: int = 1
    """Seed of environments and actions, and of the A2C run; 0 to 20000."""

    a2c: bool = True
    """Train and play A2C."""

    a2c_seconds: float = 60.0
    """Seconds to train A2C: on the level, or with several --levels on a random level of
    the game in every episode."""

    checkpoint: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Checkpoint, or run folder, to play too; may be given several times."""

    model: str = ""
    """Network of your own, module:Class, if a checkpoint has one: code that a file
    names is imported only if you name it here."""

    reward_fn: str = ""
    """Reward of your own, module:function, if a run has one: as for --model."""

    device: str = "auto"
    """auto (cuda if there is a usable GPU, else cpu), cpu, cuda or cuda:N."""

    out: Path = Path("runs/baselines")
    """Folder for baselines.json and the A2C run."""


def baselines(config: BaselinesConfig) -> dict[str, list[LevelResult]]:
    """Plays all policies; returns the results of each, by name: one per level."""
    env = RunConfig().resolved().env
    levels = parse_levels(config.levels, env.task)
    if config.a2c and config.a2c_seconds <= 0:
        raise ValueError(
            f"a2c_seconds must be above 0, got {config.a2c_seconds:g}; --no-a2c "
            "leaves A2C out"
        )
    device = playing_device(config.device)
    # All policies are loaded before one plays, so a wrong path fails at once.
    checkpoints: dict[str, Policy] = {}
    for path in config.checkpoint:
        name = _name(path)
        checkpoints[str(path) if name in checkpoints else name] = load_policy(
            path, device, model=config.model, reward_fn=config.reward_fn
        )
    policies = {
        name: Policy(model.to(device).eval(), env, device, None, 0, False)
        for name, model in scripted(env).items()
    }
    if config.a2c:
        policies["a2c"] = load_policy(_train_a2c(config, levels), device)
        # Training has changed the thread settings.
        playing_device(config.device)
    results = {}
    for name, policy in (policies | checkpoints).items():
        print(f"playing {name}", flush=True)
        results[name] = evaluate_levels(
            policy.model,
            policy.env,
            levels=levels,
            episodes=config.episodes,
            seed=config.seed,
            device=device,
            dtype=policy.dtype,
            noop_max=config.noop_max,
        )
    return results


def a2c_config(task: str) -> RunConfig:
    """The config of advantage actor-critic (Mnih et al. 2016) for the same learner.

    Each training batch comes from the current policy and has one gradient step. The
    ratio in the ppo loss is then 1 and its gradient is the plain policy gradient, so
    A2C is a special case of PPO (Huang et al. 2022, arXiv:2205.09123). As in OpenAI's
    A2C: advantages of five steps (lambda 1), not normalised, RMSProp at 7e-4 with
    epsilon 1e-5, and a squared value loss. Without V-trace, replay, overlap and
    averaged weights. Environments, network, discount and entropy bonus are those of the
    CPU recipe.
    """
    base = RunConfig()
    learner = replace(
        base.learner,
        loss=Ppo(),
        advantages="gae",
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


def _train_a2c(config: BaselinesConfig, levels: Sequence[str]) -> Path:
    """Trains A2C; returns the folder of its run."""
    level = f"-{levels[0]}" if len(levels) == 1 else "RandomStages"
    folder = config.out / f"a2c-{time.strftime('%Y%m%d-%H%M%S')}"
    training = replace(
        a2c_config(f"SuperMarioBros{level}-v0"),
        device=config.device,
        seed=config.seed,
        max_seconds=config.a2c_seconds,
        # Only the time ends the run.
        max_steps=2**62,
        run_dir=folder,
    )
    print(f"training A2C for {config.a2c_seconds:g} s: {folder}/", flush=True)
    if number := run_training(training, Display())["signal"]:
        raise Interrupted(int(number))
    return folder


def _name(path: Path) -> str:
    """The row of a checkpoint: the run folder, and the file if one was given."""
    run_dir = checkpoint.run_dir_of(path)
    return f"{run_dir.resolve().name}/{path.name}" if run_dir else path.resolve().name


def _run(config: BaselinesConfig) -> None:
    results = baselines(config)
    content: dict[str, Any] = {
        name: getattr(config, name) for name in ("episodes", "noop_max", "seed")
    }
    content["a2c_seconds"] = config.a2c_seconds if config.a2c else None
    content["policies"] = {
        name: [result.to_dict() for result in rows] for name, rows in results.items()
    }
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "baselines.json"
    write_json(path, content)
    Console().print(policies_table(results))
    print(
        f"levels {config.levels}; {config.episodes} episodes per level, sampled "
        f"actions, 0 to {config.noop_max} idle frames, seed {config.seed}\n"
        "best x and steps to clear: mean over the levels of the medians; "
        f"levels: cleared at least once\nwrote {path}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(BaselinesConfig, _run, "baselines", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
