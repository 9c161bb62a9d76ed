"""How a run goes on: what its checkpoint holds, where it is, what may differ.

In sync mode with the same config the continued run is the uninterrupted one, bit
for bit. With another one all that still fits continues, and what does not is said.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer.config.plain import flat, to_dict
from trainer.config.tasks import own_levels
from trainer.machine.cuda import wait_for_device
from trainer.models import checkpoint, value_heads

if TYPE_CHECKING:
    from trainer.session.session import Run


# Options without which neither episodes nor unrolls can go on, besides env.*.
_LAYOUT = {
    "mode", "lag", "seed", "learner.unroll", "learner.unrolls_per_batch",
    "replay.replay_share", "replay.replay_capacity", "replay.burn_in",
}  # fmt: skip
# Options that say where and how a run is shown, not what it does.
_OUTER = {"preset", "run_dir", "resume", "dashboard", "videos"}


def capture(run: Run, *, complete: bool, games: bool = True) -> dict[str, Any]:
    """Everything that a run needs to go on; read it before the next update.

    Args:
        run: between two updates.
        complete: False after a failure: without episodes and unrolls, which may
            be amid anything.
        games: False for weights to play with: also without what was explored, which
            is large.
    """
    complete = complete and games and run.pipeline is not None and run.pipeline.settle()
    wait_for_device(run.device)
    replay = None
    if complete and run.replay is not None and run.config.checkpoint_replay:
        replay = run.replay.state_dict()
    kept = replay["slots"] if replay else []
    return {
        "config": to_dict(run.config),
        "spaces": {"observation": list(run.obs_shape), "actions": run.num_actions},
        "model": run.model.state_dict(),
        "ema": run.learner.ema.state_dict() if run.learner.ema else None,
        "learner": run.learner.state(),
        "steps": run.steps,
        "progress": dataclasses.asdict(run.progress),
        "rng": _generators(run),
        "episodes": run.episodes.state(),
        "collecting": run.collector.state(kept) if complete else None,
        "explore": run.explorer.state() if run.explorer and games else None,
        "replay": replay,
    }


def _generators(run: Run) -> dict[str, Tensor]:
    """States of the generators that do not belong to a part of the run."""
    states = {"actions": run.actions.get_state(), "global": torch.get_rng_state()}
    if run.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(run.device)
    return states


def _restore_generators(run: Run, states: dict[str, Tensor]) -> None:
    """Continues from what `_generators` gave, on the same kind of device."""
    run.actions.set_state(states["actions"].cpu())
    torch.set_rng_state(states["global"].cpu())
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), run.device)


def restore(run: Run, path: Path, state: dict[str, Any]) -> None:
    """Goes on from what `capture` gave, in a run that has not started.

    Args:
        run: with the same network.
        path: of the checkpoint, to tell.
        state: of the checkpoint.

    Raises:
        ValueError: its network is another one, or there is nothing left to do.
    """
    old, new = flat(state["config"]), flat(to_dict(run.config))
    _check_network(run, state, old, new)
    _move_value_heads(run, state, old, new)
    checkpoint.load_weights(run.model, state["model"])
    run.learner.restore(state["learner"])
    run.steps = state["steps"]
    run.progress = type(run.progress)(**state["progress"])
    _check_left(run)
    ended = f", where it had ended: {run.progress.ended}" if run.progress.ended else ""
    run.progress.ended = ""
    run.display.say(f"resumed from {path} at {run.steps:,} steps{ended}")

    changed = [n for n in new if n not in _OUTER and old.get(n, new[n]) != new[n]]
    if changed:
        parts = [f"{n.rpartition('.')[2]} {old[n]} -> {new[n]}" for n in changed]
        run.display.say(f"changed since the checkpoint: {', '.join(parts)}")
    moved = [n for n in changed if _is_layout(n)]
    if ("cuda" in state["rng"]) != (run.device.type == "cuda"):
        moved.append("kind of device")
    if {"seed", "kind of device"}.isdisjoint(moved):
        _restore_generators(run, state["rng"])
    else:
        run.learner.generator.manual_seed(run.config.seed)
    if {"env.task", "env.levels"} & set(changed):
        # Counted in episodes of other levels, and found with them.
        run.progress.next_attempt, run.progress.evaluated = 0, {}
    else:
        run.episodes.restore(state["episodes"], going_on=False)
    run.collector.steps = run.steps
    _restore_collecting(run, state, moved)


def _restore_collecting(run: Run, state: dict[str, Any], moved: list[str]) -> None:
    """Episodes, unrolls and replay, or the reason why they begin anew."""
    reason = ""
    if moved:
        names = ", ".join(name.rpartition(".")[2] for name in moved)
        reason = f"with another {names}".replace(" levels", " set of levels")
    elif state["collecting"] is None:
        reason = _why_no_episodes(run)
    else:
        try:
            run.collector.restore(state["collecting"])
            run.episodes.restore(state["episodes"], going_on=True)
        except ValueError as error:
            reason = f"the environments refuse their snapshots: {error}"
    _restore_exploring(run, state, going_on=not reason)
    kept = not reason and state["replay"] is not None
    if kept and run.replay is not None:
        run.replay.load_state_dict(state["replay"])
    lines = [f"new episodes begin: {reason}"] if reason else []
    if run.replay is not None and not kept:
        kept_by_option = not reason and not run.config.checkpoint_replay
        hint = " (--checkpoint-replay keeps it)" if kept_by_option else ""
        lines.append(f"replay begins empty{hint}")
    for line in lines:
        run.display.say(f"{line}; the run is not, bit for bit, the uninterrupted one")


def _restore_exploring(run: Run, state: dict[str, Any], *, going_on: bool) -> None:
    """Cells and the frontier, or the reason why they begin anew."""
    found = state.get("explore")  # older checkpoints have none
    if run.explorer is None:
        return
    if found is None:
        run.display.say("exploration begins anew: the checkpoint has nothing of it")
        return
    try:
        run.explorer.restore(found, going_on=going_on)
    except ValueError as error:
        run.display.say(f"exploration begins anew: {error}")


def _why_no_episodes(run: Run) -> str:
    """Why a checkpoint of such a run has no episodes in it."""
    if not hasattr(run.pool, "snapshot"):
        return f"{run.config.env.task} has no snapshots"
    if run.config.mode == "async":
        return "in async mode environments are never all at rest"
    return (
        "the checkpoint was written after a failure or a second Ctrl-C, or is best.pt"
    )


def _check_network(
    run: Run, state: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Raises ValueError where weights cannot mean the same."""
    names = [n for n in new if n.startswith("model.") and n in old]
    pairs = {n: (old[n], new[n]) for n in names if n != "model.value_heads"}
    spaces = state["spaces"]
    pairs["observations"] = tuple(spaces["observation"]), run.obs_shape
    pairs["number of actions"] = spaces["actions"], run.num_actions
    for name, (there, here) in pairs.items():
        if there != here:
            raise ValueError(
                f"the checkpoint cannot go on here: {name.removeprefix('model.')} is "
                f"{there} there and {here} here; choose the model, the actions and the "
                "image that it was trained with"
            )


def _move_value_heads(
    run: Run, state: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Gives each level the critic's output that it had, where levels have changed."""
    outputs = old.get("model.value_heads", 1)
    parts = value_heads.sources(
        old.get("env.levels", ()), outputs,  # early versions knew of neither
        run.config.env.levels or own_levels(run.config.env.task),
        new["model.value_heads"],
    )  # fmt: skip
    if parts == [[number] for number in range(outputs)]:
        return
    value_heads.move(state, run.model, run.learner.optimizer, parts)
    run.display.say(
        "the critic's outputs are for other levels now: those of levels that were "
        "there stay, others begin with the mean of all weights"
    )


def _check_left(run: Run) -> None:
    """Raises ValueError if the run is at its end already."""
    config, seconds = run.config, run.progress.seconds
    if run.steps >= config.max_steps:
        raise ValueError(
            f"the checkpoint is at {run.steps:,} steps, and max_steps is "
            f"{config.max_steps:,}: raise --max-steps to go on"
        )
    if config.max_seconds and seconds >= config.max_seconds:
        raise ValueError(
            f"the checkpoint is at {seconds:.0f} s, and max_seconds is "
            f"{config.max_seconds:g}: raise --max-seconds to go on (0: no limit)"
        )


def _is_layout(name: str) -> bool:
    if name.startswith("env."):
        return name not in ("env.num_threads", "env.test_levels")
    return name in _LAYOUT
