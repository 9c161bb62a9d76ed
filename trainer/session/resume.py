"""How a run continues: what its checkpoint holds, and what may differ.

In sync mode with the same config the continued run is the uninterrupted one, bit
for bit. With another config all that still fits continues, and the rest is logged. The
same goes for another number of processes, each of which has episodes of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.plain import flat, to_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import own_levels
from trainer.explore.demonstrations import Ways
from trainer.explore.explorer import Explorer
from trainer.learn.learner import Learner
from trainer.machine.cuda import wait_for_device
from trainer.machine.ranks import Ranks, on_device
from trainer.machine.seeds import Stream, seed_of
from trainer.models import PolicyModel, checkpoint, value_heads
from trainer.rollout.collector import Collector
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.replay import PrioritizedReplay
from trainer.session.progress import Progress

# Options without which neither episodes nor unrolls can continue, besides env.*.
_LAYOUT = {
    "mode", "lag", "seed", "learner.unroll", "learner.unrolls_per_batch",
    "replay.replay_share", "replay.replay_capacity", "replay.burn_in",
}  # fmt: skip
# Options with which other demonstrations are searched for; with others of the
# environments those that there are may not play, which is found out.
_OF_WAYS = {"env.task", "env.levels", "explore.demonstrations"}
# Options that say where and how a run is shown, not what it does.
_OUTER = {"preset", "run_dir", "resume", "dashboard", "videos"}
# What each process has of its own, in a checkpoint; the rest all have in common.
_OWN = ("rng", "collecting", "explore", "replay", "own_learner", "own_episodes")


class Generators:
    """The random generators that belong to no other part of a run.

    Attributes:
        actions: draws the actions, on the device.
    """

    def __init__(self, device: torch.device, seed: int, rank: int = 0) -> None:
        """Seeds the generator of actions; PyTorch's own ones stay as they are."""
        self._device = device
        self.actions = torch.Generator(device)
        self.actions.manual_seed(seed_of(seed, Stream.ACTIONS, rank))

    def state(self) -> dict[str, Tensor]:
        """The states of these generators and of PyTorch's own ones."""
        states = {"actions": self.actions.get_state(), "global": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def restore(self, states: dict[str, Tensor]) -> None:
        """Continues from what `state` gave, on the same kind of device."""
        self.actions.set_state(states["actions"].cpu())
        torch.set_rng_state(states["global"].cpu())
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"].cpu(), self._device)


@dataclass(frozen=True)
class RunParts:
    """The parts of a run whose state a checkpoint holds, and what they are made for.

    Attributes:
        obs_shape: of an observation.
        num_actions: of the task.
        ways: demonstrations that the run learns from.
        ranks: processes of the run.
        episodes: of the run; known to rank 0.
        own_episodes: of this process; of a single one the same object.
        has_snapshots: whether the environments can be saved.
    """

    config: RunConfig
    device: torch.device
    obs_shape: tuple[int, ...]
    num_actions: int
    has_snapshots: bool
    model: PolicyModel
    learner: Learner
    generators: Generators
    episodes: FinishedEpisodes
    own_episodes: FinishedEpisodes
    collector: Collector
    explorer: Explorer | None
    replay: PrioritizedReplay | None
    progress: Progress
    ways: Ways
    ranks: Ranks


def capture(
    parts: RunParts,
    *,
    complete: bool,
    explored: bool = True,
    together: bool = True,
) -> dict[str, Any]:
    """Everything that a run needs to continue; read it before the next update.

    Args:
        parts: of a run that is between two updates.
        complete: False: without episodes and unrolls, which may be amid anything after
            a failure, and are not needed to play with the weights.
        explored: False: without what was explored, which is large.
        together: whether all ranks call this now; rank 0 gets what is of each one.
    """
    wait_for_device(parts.device)
    replay = None
    if complete and parts.replay is not None and parts.config.checkpoint_replay:
        replay = parts.replay.state_dict()
    kept = replay["slots"] if replay else []
    explorer, ema, ranks = parts.explorer, parts.learner.ema, parts.ranks
    learner = parts.learner.state()
    state = {
        "config": to_dict(parts.config),
        "spaces": {"observation": list(parts.obs_shape), "actions": parts.num_actions},
        "model": parts.model.state_dict(),
        "ema": ema.state_dict() if ema else None,
        "learner": learner,
        "steps": parts.progress.steps,
        "progress": parts.progress.state(),
        "rng": parts.generators.state(),
        "episodes": parts.episodes.state(),
        "collecting": parts.collector.state(kept) if complete else None,
        "explore": explorer.state() if explorer and explored else None,
        "replay": replay,
        "ways": parts.ways.state(),
    }
    if ranks.size == 1 or not together:
        return state
    state["own_learner"] = {
        name: learner[name] for name in ("buffers", "minibatch_rng")
    }
    state["own_episodes"] = parts.own_episodes.state()
    own = {name: state[name] for name in _OWN}
    others = ranks.gather({} if ranks.is_first else on_device(own, torch.device("cpu")))
    return state | {"others": others[1:]}


def divide(
    state: dict[str, Any], ranks: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Takes a checkpoint apart: what all ranks have in common, and what each has.

    Args:
        state: of a checkpoint.
        ranks: of the run that goes on. Where they are not as many as they were, each
            gets what rank 0 had, of which only what was explored is of use.
    """
    others = state.get("others", [])
    own = {name: state[name] for name in _OWN if name in state}
    rest = {name: state[name] for name in state.keys() - {*_OWN, "others"}}
    pieces = [own, *others]
    if len(pieces) != ranks:
        pieces = [own | {"collecting": None, "replay": None}] * ranks
    return rest | {"ranks": 1 + len(others)}, pieces


def restore(
    parts: RunParts, path: Path, state: dict[str, Any], log: Callable[[str], None]
) -> None:
    """Continues from what `capture` gave, in a run that has not started.

    Args:
        parts: of the run, with the same network.
        path: of the checkpoint, for the message.
        state: of the checkpoint; its tensors become those of the run.
        log: receives what has changed, and what begins anew and why.

    Raises:
        ValueError: its network is another one, or there is nothing left to do.
    """
    _Restoring(parts, state, log).restore(path)


class _Restoring:
    """One call of `restore`: old and new options side by side."""

    def __init__(
        self, parts: RunParts, state: dict[str, Any], log: Callable[[str], None]
    ) -> None:
        self._parts, self._state, self._log = parts, state, log
        self._old, self._new = flat(state["config"]), flat(to_dict(parts.config))

    def restore(self, path: Path) -> None:
        """See the function `restore`."""
        parts, state, progress = self._parts, self._state, self._parts.progress
        self._check_network()
        self._move_value_heads()
        checkpoint.load_weights(parts.model, state["model"])
        parts.learner.restore(state["learner"] | state.get("own_learner", {}))
        progress.restore(state["progress"])
        self._check_left()
        ended = f", where it had ended: {progress.ended}" if progress.ended else ""
        progress.ended = ""
        self._log(f"resumed from {path} at {progress.steps:,} steps{ended}")
        changed = self._changed_options()
        moved = [name for name in changed if _is_layout(name)]
        if ("cuda" in state["rng"]) != (parts.device.type == "cuda"):
            moved.append("kind of device")
        if state.get("ranks", 1) != parts.ranks.size:
            moved.append("number of processes")
        if {"seed", "kind of device", "number of processes"}.isdisjoint(moved):
            parts.generators.restore(state["rng"])
        else:
            parts.learner.seed()
        if {"env.task", "env.levels"} & set(changed):
            # Counted in episodes of other levels, and found with them.
            progress.next_attempt, progress.evaluated = 0, {}
        else:
            parts.episodes.restore(state["episodes"])
            own = None if "number of processes" in moved else state.get("own_episodes")
            if own is not None:
                parts.own_episodes.restore(own)
        if not _OF_WAYS & set(changed):
            parts.ways.restore(state["ways"])
        parts.collector.steps = progress.steps
        reason = self._restore_collecting(moved)
        self._restore_exploring(going_on=not reason)
        self._restore_replay(reason)

    def _changed_options(self) -> list[str]:
        """Names of the options with other values than before; logs them."""
        old, new = self._old, self._new
        changed = [n for n in new if n in old and n not in _OUTER and old[n] != new[n]]
        if changed:
            parts = [f"{n.rpartition('.')[2]} {old[n]} -> {new[n]}" for n in changed]
            self._log(f"changed since the checkpoint: {', '.join(parts)}")
        return changed

    def _restore_collecting(self, moved: list[str]) -> str:
        """Episodes and unrolls; returns why they begin anew, "" if they do not."""
        parts, state = self._parts, self._state
        reason = ""
        if moved:
            names = ", ".join(name.rpartition(".")[2] for name in moved)
            reason = f"with another {names}".replace(" levels", " set of levels")
        elif state["collecting"] is None:
            reason = self._why_no_episodes()
        else:
            try:
                parts.collector.restore(state["collecting"])
            except ValueError as error:
                reason = f"the environments refuse their snapshots: {error}"
        return reason

    def _why_no_episodes(self) -> str:
        """Why a checkpoint of such a run has no episodes in it."""
        if not self._state["steps"]:
            return "the run was interrupted before its first update"
        if not self._parts.has_snapshots:
            return f"{self._parts.config.env.task} has no snapshots"
        if self._parts.config.mode == "async":
            return "in async mode environments are never all at rest"
        return (
            "the checkpoint was written after a failure or a second Ctrl-C, or is "
            "best.pt"
        )

    def _restore_exploring(self, *, going_on: bool) -> None:
        """Cells and the frontier; logs why they begin anew if they do."""
        found, explorer = self._state["explore"], self._parts.explorer
        if explorer is None:
            return
        if found is None:
            self._log("exploration begins anew: the checkpoint has nothing of it")
            return
        try:
            explorer.restore(found, going_on=going_on)
        except ValueError as error:
            self._log(f"exploration begins anew: {error}")

    def _restore_replay(self, reason: str) -> None:
        """Replay, if the episodes continue; logs what begins anew, and why.

        Args:
            reason: why episodes begin anew, "" if they do not.
        """
        replay, kept = self._parts.replay, self._state["replay"]
        lines = [f"new episodes begin: {reason}"] if reason else []
        if replay is not None and kept is not None and not reason:
            replay.load_state_dict(kept)
        elif replay is not None:
            by_option = not reason and not self._parts.config.checkpoint_replay
            hint = " (--checkpoint-replay keeps it)" if by_option else ""
            lines.append(f"replay begins empty{hint}")
        for line in lines:
            self._log(f"{line}; the run is not, bit for bit, the uninterrupted one")

    def _check_network(self) -> None:
        """Raises ValueError where weights cannot mean the same."""
        old, new, spaces = self._old, self._new, self._state["spaces"]
        names = [n for n in new if n.startswith("model.") and n != "model.value_heads"]
        pairs = {n: (old.get(n), new[n]) for n in names}
        shape = self._parts.obs_shape
        pairs["observations"] = tuple(spaces["observation"]), shape
        pairs["number of actions"] = spaces["actions"], self._parts.num_actions
        for name, (there, here) in pairs.items():
            if there != here:
                raise ValueError(
                    f"the checkpoint cannot go on here: {name.removeprefix('model.')} "
                    f"is {there} there and {here} here; choose the model, the actions "
                    "and the image that it was trained with"
                )

    def _move_value_heads(self) -> None:
        """Gives each level the critic's output that it had, if levels have changed."""
        parts, env = self._parts, self._parts.config.env
        outputs = self._old["model.value_heads"]
        sources = value_heads.sources(
            self._old["env.levels"],
            outputs,
            env.levels or own_levels(env.task),
            self._new["model.value_heads"],
        )
        if sources == [[number] for number in range(outputs)]:
            return
        value_heads.move(self._state, parts.model, parts.learner.optimizer, sources)
        self._log(
            "the critic's outputs are for other levels now: those of levels that were "
            "there stay, others begin with the mean of all weights"
        )

    def _check_left(self) -> None:
        """Raises ValueError if the run is at its end already."""
        config, progress = self._parts.config, self._parts.progress
        if progress.steps >= config.max_steps:
            raise ValueError(
                f"the checkpoint is at {progress.steps:,} steps, and max_steps is "
                f"{config.max_steps:,}: raise --max-steps to go on"
            )
        if config.max_seconds and progress.seconds >= config.max_seconds:
            raise ValueError(
                f"the checkpoint is at {progress.seconds:.0f} s, and max_seconds is "
                f"{config.max_seconds:g}: raise --max-seconds to go on (0: no limit)"
            )


def _is_layout(name: str) -> bool:
    """Whether unrolls of one value of an option cannot continue with another."""
    if name.startswith("env."):
        # The pool compares the ROM itself, by its hash.
        return name not in ("env.num_threads", "env.test_levels", "env.rom_path")
    return name in _LAYOUT
