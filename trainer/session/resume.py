"""How a run resumes: the content of its checkpoint, and what may differ.

In sync mode with the same config, a resumed run equals the uninterrupted run bit for
bit. With another config, everything that still fits continues, and a message names the
rest. The same holds for another number of processes, each of which has its own
episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config import shown
from trainer.config.plain import flat, to_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import own_levels
from trainer.explore.demonstrations import Ways
from trainer.explore.explorer import Explorer
from trainer.learn.learner import Learner
from trainer.machine.cuda import wait_for_device
from trainer.machine.ranks import Ranks, Stream, on_device, seed_of
from trainer.models import PolicyModel, checkpoint, heads
from trainer.rollout.collector import Collector
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.replay import PrioritizedReplay
from trainer.session.progress import Progress

# Options that must stay the same for episodes and unrolls to continue, as must env.*.
_LAYOUT = {
    "mode", "lag", "seed", "learner.unroll", "learner.unrolls_per_batch",
    "replay.replay_share", "replay.replay_capacity", "replay.burn_in",
}  # fmt: skip
# Options that change which demonstrations are searched for. With other environment
# options the saved demonstrations may not play; the run checks that.
_OF_WAYS = {"env.task", "env.levels", "explore.demonstrations"}
# Options of output, which do not change what a run does.
_OUTER = {"preset", "run_dir", "resume", "dashboard", "videos"}
# Keys of a checkpoint with the state of a single process; other keys are common.
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
    """The parts of a run whose state is in a checkpoint, and what they are made for.

    Attributes:
        obs_shape: of an observation.
        num_actions: of the task.
        ways: demonstrations that the run learns from.
        ranks: processes of the run.
        episodes: of the run, on rank 0.
        own_episodes: of this process; the same object if there is only one process.
        has_snapshots: whether the environments have snapshots.
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
    """Everything that a run needs to continue; to be saved before the next update."""
    wait_for_device(parts.device)
    replay = None
    if complete and parts.replay is not None and parts.config.checkpoint_replay:
        replay = parts.replay.state_dict()
    kept = replay["slots"] if replay else []
    explorer, ema, ranks = parts.explorer, parts.learner.ema, parts.ranks
    learner = parts.learner.state()
    state = {
        # A checkpoint may travel; config.json in the run folder has the secrets.
        "config": shown.without_secrets(to_dict(parts.config)),
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
    """Splits a checkpoint into common state and the state of each rank."""
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
    """Restores the result of `capture` in a run that has not started."""
    _Restoring(parts, state, log).restore(path)


class _Restoring:
    """One call of `restore`, with the old and the new options."""

    def __init__(
        self, parts: RunParts, state: dict[str, Any], log: Callable[[str], None]
    ) -> None:
        self._parts, self._state, self._log = parts, state, log
        old, new = map(shown.without_secrets, (state["config"], to_dict(parts.config)))
        self._old, self._new = flat(old), flat(new)
        self._shown = flat(shown.settings(old)), flat(shown.settings(new))

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
            # These counts and metrics belong to other levels.
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
        """Names of the options whose values have changed; logs them."""
        old, new = self._old, self._new
        changed = [n for n in new if n in old and n not in _OUTER and old[n] != new[n]]
        if changed:
            old, new = self._shown
            parts = [f"{n.rpartition('.')[2]} {old[n]} -> {new[n]}" for n in changed]
            self._log(f"changed since the checkpoint: {', '.join(parts)}")
        return changed

    def _restore_collecting(self, moved: list[str]) -> str:
        """Restores episodes and unrolls; returns why that failed, "" if it did not."""
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
        """Why the checkpoint has no episodes."""
        if not self._state["steps"]:
            return "the run was interrupted before its first update"
        if not self._parts.has_snapshots:
            return f"{self._parts.config.env.task} has no snapshots"
        if self._parts.config.mode == "async":
            return "in async mode the environments never all wait for actions"
        return (
            "the checkpoint was written after a failure or a second Ctrl-C, or is "
            "best.pt"
        )

    def _restore_exploring(self, *, going_on: bool) -> None:
        """Restores cells and the frontier, or logs why they start again."""
        found, explorer = self._state["explore"], self._parts.explorer
        if explorer is None:
            return
        if found is None:
            self._log("exploration starts again: the checkpoint has no state of it")
            return
        try:
            explorer.restore(found, going_on=going_on)
        except ValueError as error:
            self._log(f"exploration starts again: {error}")

    def _restore_replay(self, reason: str) -> None:
        """Restores replay if the episodes continue; logs what starts again, and why."""
        replay, kept = self._parts.replay, self._state["replay"]
        lines = [f"new episodes begin: {reason}"] if reason else []
        if replay is not None and kept is not None and not reason:
            replay.load_state_dict(kept)
        elif replay is not None:
            by_option = not reason and not self._parts.config.checkpoint_replay
            hint = " (--checkpoint-replay keeps it)" if by_option else ""
            lines.append(f"replay starts empty{hint}")
        for line in lines:
            self._log(f"{line}; the result will differ from an uninterrupted run")

    def _check_network(self) -> None:
        """Raises ValueError if the weights do not fit this run."""
        old, new, spaces = self._old, self._new, self._state["spaces"]
        names = [n for n in new if n.startswith("model.") and n != "model.value_heads"]
        pairs = {n: (old.get(n), new[n]) for n in names}
        shape = self._parts.obs_shape
        pairs["observations"] = tuple(spaces["observation"]), shape
        pairs["number of actions"] = spaces["actions"], self._parts.num_actions
        for name, (there, here) in pairs.items():
            if there != here:
                raise ValueError(
                    "the checkpoint does not fit this run: "
                    f"{name.removeprefix('model.')} is {there} there and {here} here; "
                    "choose the model, the actions and the observations that it was "
                    "trained with"
                )

    def _move_value_heads(self) -> None:
        """Keeps the critic's output of each level if the levels have changed."""
        parts, env = self._parts, self._parts.config.env
        outputs = self._old["model.value_heads"]
        sources = heads.value_sources(
            self._old["env.levels"],
            outputs,
            env.levels or own_levels(env.task),
            self._new["model.value_heads"],
        )
        if sources == [[number] for number in range(outputs)]:
            return
        heads.move_values(self._state, parts.model, parts.learner.optimizer, sources)
        self._log(
            "the levels have changed: known levels keep their output of the critic, "
            "new levels begin with the mean of its weights"
        )

    def _check_left(self) -> None:
        """Raises ValueError if the run has already reached its end."""
        config, progress = self._parts.config, self._parts.progress
        if config.max_steps and progress.steps >= config.max_steps:
            raise ValueError(
                f"the checkpoint is at {progress.steps:,} steps, and max_steps is "
                f"{config.max_steps:,}: raise --max-steps to continue (0: no limit)"
            )
        if config.max_seconds and progress.seconds >= config.max_seconds:
            raise ValueError(
                f"the checkpoint is at {progress.seconds:.0f} s, and max_seconds is "
                f"{config.max_seconds:g}: raise --max-seconds to continue (0: no limit)"
            )


def _is_layout(name: str) -> bool:
    """Whether unrolls cannot continue after a change of this option."""
    if name.startswith("env."):
        # The pool compares the hash of the ROM.
        return name not in ("env.num_threads", "env.test_levels", "env.rom_path")
    return name in _LAYOUT
