"""The checkpoints of a run: what they contain, when it writes them, how it resumes.

In sync mode with the same config, a resumed run equals the uninterrupted run bit for
bit. With another config, everything that still fits continues, and a message names the
rest. The same holds for another number of processes, each of which has its own
episodes.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from trainer.config import shown
from trainer.config.plain import flat, from_dict, to_dict
from trainer.config.schema import EnvConfig
from trainer.config.tasks import own_levels, played
from trainer.machine.cuda import wait_for_device
from trainer.machine.files import same_folder
from trainer.models import checkpoint, heads
from trainer.session.build import Progress, Run
from trainer.session.files import locate

# Options that must stay the same for episodes and unrolls to continue, as must env.*
# but for these.
_LAYOUT = {
    "mode", "lag", "seed", "learner.unroll", "learner.unrolls_per_batch",
    "replay.replay_share", "replay.replay_capacity", "replay.burn_in",
}  # fmt: skip
# The pool compares the hash of the ROM.
_FREE_IN_ENV = {"env.num_threads", "env.test_levels", "env.rom_path"}
# Options that change which demonstrations are searched for. With other environment
# options the saved demonstrations may not play; the run checks that.
_OF_DEMONSTRATIONS = {"env.task", "env.levels", "explore.demonstrations"}
# Options of output, which do not change what a run does.
_OUTPUT = {"preset", "run_dir", "resume", "dashboard", "videos"}
# Keys of a checkpoint with the state of a single process; other keys are common.
_OF_PROCESS = (
    "rng", "collecting", "explore", "replay", "own_learner", "own_episodes",
)  # fmt: skip

# Seconds of training until the first checkpoint of a run folder.
_FIRST_S = 5.0


class Saver:
    """Writes checkpoints of a run: on request, when due, or when it is best."""

    def __init__(self, run: Run) -> None:
        self._run, self._last = run, time.perf_counter()
        self._wait = run.config.checkpoint_seconds
        if run.ranks.is_first and not checkpoint.list_files(run.run_dir):
            self._wait = min(self._wait, _FIRST_S)

    def save(self, *, best: bool = False, complete: bool = True) -> bool:
        """Writes a checkpoint, or logs why it cannot.

        All ranks save a complete checkpoint together; rank 0 alone saves other
        checkpoints.
        """
        run = self._run
        if not all(bool(p.isfinite().all()) for p in run.model.parameters()):
            run.alarms.set("weights", "the weights are not finite; they are not saved")
            return False
        together = complete and not best
        at_rest = together and run.pipeline.settle()
        state = capture(run, complete=at_rest, explored=not best, together=together)
        if together:
            self._last, self._wait = time.perf_counter(), run.config.checkpoint_seconds
        if not run.ranks.is_first:
            return True
        steps = run.progress.steps
        if best:
            path = run.checkpoints.save_best(state)
        else:
            path = run.checkpoints.save(state, steps)
        failed = "the last one could not be written, for the reason above"
        run.alarms.set("checkpoint", failed if path is None else "")
        if path is not None:
            run.display.checkpoint(path, steps)
        return path is not None

    def due(self, *, best: bool) -> bool:
        """Whether it is time for a complete checkpoint."""
        first_best = best and not self._run.progress.best_score
        return first_best or time.perf_counter() - self._last >= self._wait

    def improved(self) -> bool:
        """Whether the score of the last episodes is the best one."""
        return self._run.episodes.score() > self._run.progress.best_score

    def save_best(self) -> None:
        """Writes the weights of the best score of the last episodes to best.pt."""
        progress = self._run.progress
        best = progress.best_score
        progress.best_score = self._run.episodes.score()
        if not self.save(best=True):
            progress.best_score = best


def capture(
    run: Run,
    *,
    complete: bool,
    explored: bool = True,
    together: bool = True,
) -> dict[str, Any]:
    """Everything that a run needs to continue; to be saved before the next update."""
    wait_for_device(run.device)
    replay = None
    if complete and run.replay is not None and run.config.checkpoint_replay:
        replay = run.replay.state_dict()
    kept = replay["slots"] if replay else []
    explorer, ema, ranks = run.explorer, run.learner.ema, run.ranks
    learner = run.learner.state()
    state = {
        # A checkpoint may travel; config.json in the run folder has the secrets.
        "config": shown.without_secrets(to_dict(run.config)),
        "spaces": {"observation": list(run.obs_shape), "actions": run.num_actions},
        "model": run.model.state_dict(),
        "ema": ema.model.state_dict() if ema else None,
        "learner": learner,
        "steps": run.progress.steps,
        "progress": asdict(run.progress),
        "rng": _generators(run),
        "episodes": run.episodes.state(),
        "collecting": run.collector.state(kept) if complete else None,
        "explore": explorer.state() if explorer and explored else None,
        "replay": replay,
        "ways": run.ways.state(),
    }
    if ranks.size == 1 or not together:
        return state
    state["own_learner"] = {
        name: learner[name] for name in ("buffers", "minibatch_rng")
    }
    state["own_episodes"] = run.own_episodes.state()
    own = {name: state[name] for name in _OF_PROCESS}
    others = ranks.gather({} if ranks.is_first else _on_device(own, "cpu"))
    return state | {"others": others[1:]}


def _generators(run: Run) -> dict[str, torch.Tensor]:
    """The states of the generator of actions and of PyTorch's own ones."""
    states = {
        "actions": run.action_generator.get_state(),
        "global": torch.get_rng_state(),
    }
    if run.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(run.device)
    return states


def _restore_generators(run: Run, states: dict[str, torch.Tensor]) -> None:
    run.action_generator.set_state(states["actions"].cpu())
    torch.set_rng_state(states["global"].cpu())
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), run.device)


def resume(run: Run) -> Path | None:
    """Restores the checkpoint of --resume, if any; returns its run folder."""
    given = run.config.resume
    if given is None:
        return None
    pieces: list[dict[str, Any]] = []

    def read() -> tuple[Path, Path | None, dict[str, Any]]:
        path, source, state = _read(run, given)
        common, own = divide(state, run.ranks.size)
        pieces.extend(own)
        return path, source, common

    path, source, state = run.ranks.first(read)
    restore(run, path, _on_device(state | run.ranks.scatter(pieces), run.device))
    return source


def _read(run: Run, given: Path) -> tuple[Path, Path | None, dict[str, Any]]:
    """The checkpoint that --resume names, its run folder and its content."""
    env, run_dir = run.config.env, run.config.run_dir
    path, state = locate(given, env.task)
    source = checkpoint.run_dir_of(path)
    there = from_dict(EnvConfig, state["config"]["env"])
    same = played(there.task, there.levels) == played(env.task, env.levels)
    if not same and same_folder(source, run_dir or source):
        raise ValueError(
            f"{source} is a run of {_levels_in(there)}: to continue it with "
            f"{_levels_in(env)}, choose another folder with --run-dir"
        )
    return path, source, state


def _levels_in(env: EnvConfig) -> str:
    return f"levels {', '.join(env.levels)}" if env.levels else f"task {env.task}"


def _on_device(state: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    moved: dict[str, Any] = tree_map_only(torch.Tensor, lambda t: t.to(device), state)
    return moved


def divide(
    state: dict[str, Any], ranks: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Splits a checkpoint into common state and the state of each rank."""
    others = state.get("others", [])
    own = {name: state[name] for name in _OF_PROCESS if name in state}
    rest = {name: state[name] for name in state.keys() - {*_OF_PROCESS, "others"}}
    pieces = [own, *others]
    if len(pieces) != ranks:
        pieces = [own | {"collecting": None, "replay": None}] * ranks
    return rest | {"ranks": 1 + len(others)}, pieces


def restore(run: Run, path: Path, state: dict[str, Any]) -> None:
    """Restores the result of `capture` in a run that has not started."""
    configs = [shown.without_secrets(c) for c in (state["config"], to_dict(run.config))]
    old, new = map(flat, configs)
    _check_network(run, state["spaces"], old, new)
    _move_value_heads(run, state, old, new)
    checkpoint.load_weights(run.model, state["model"])
    run.learner.restore(state["learner"] | state.get("own_learner", {}))
    progress = run.progress = Progress(**state["progress"])
    _check_limits(run)
    ended = f", where it had ended: {progress.ended}" if progress.ended else ""
    progress.ended = ""
    run.display.log(f"resumed from {path} at {progress.steps:,} steps{ended}")
    changed = [n for n in new if n in old and n not in _OUTPUT and old[n] != new[n]]
    if changed:
        before, now = (flat(shown.settings(config)) for config in configs)
        texts = [f"{n.rpartition('.')[2]} {before[n]} -> {now[n]}" for n in changed]
        run.display.log(f"changed since the checkpoint: {', '.join(texts)}")
    moved = [
        name
        for name in changed
        if name in _LAYOUT or (name.startswith("env.") and name not in _FREE_IN_ENV)
    ]
    if ("cuda" in state["rng"]) != (run.device.type == "cuda"):
        moved.append("kind of device")
    if state.get("ranks", 1) != run.ranks.size:
        moved.append("number of processes")
    if {"seed", "kind of device", "number of processes"}.isdisjoint(moved):
        _restore_generators(run, state["rng"])
    else:
        run.learner.seed()
    if {"env.task", "env.levels"} & set(changed):
        # These counts and metrics belong to other levels.
        progress.next_attempt, progress.evaluated = 0, {}
    else:
        run.episodes.restore(state["episodes"])
        own = None if "number of processes" in moved else state.get("own_episodes")
        if own is not None:
            run.own_episodes.restore(own)
    if not _OF_DEMONSTRATIONS & set(changed):
        run.ways.restore(state["ways"])
    run.collector.steps = progress.steps
    reason = _restore_collecting(run, state, moved)
    _restore_exploring(run, state["explore"], going_on=not reason)
    _restore_replay(run, state["replay"], reason)


def _restore_collecting(run: Run, state: dict[str, Any], moved: list[str]) -> str:
    """Restores episodes and unrolls; returns why that failed, "" if it did not."""
    if moved:
        names = ", ".join(name.rpartition(".")[2] for name in moved)
        return f"with another {names}".replace(" levels", " set of levels")
    if state["collecting"] is None:
        return _why_no_episodes(run, state["steps"])
    try:
        run.collector.restore(state["collecting"])
    except ValueError as error:
        return f"the environments refuse their snapshots: {error}"
    return ""


def _why_no_episodes(run: Run, steps: int) -> str:
    """Why the checkpoint has no episodes."""
    if not steps:
        return "the run was interrupted before its first update"
    if not hasattr(run.pool, "snapshot"):
        return f"{run.config.env.task} has no snapshots"
    if run.config.mode == "async":
        return "in async mode the environments never all wait for actions"
    return (
        "the checkpoint was written after a failure or a second Ctrl-C, or is best.pt"
    )


def _restore_exploring(run: Run, state: Any, *, going_on: bool) -> None:
    """Restores cells and the frontier, or logs why they start again."""
    if run.explorer is None:
        return
    if state is None:
        run.display.log("exploration starts again: the checkpoint has no state of it")
        return
    try:
        run.explorer.restore(state, going_on=going_on)
    except ValueError as error:
        run.display.log(f"exploration starts again: {error}")


def _restore_replay(run: Run, state: dict[str, Any] | None, reason: str) -> None:
    """Restores replay if the episodes continue; logs what starts again, and why."""
    lines = [f"new episodes begin: {reason}"] if reason else []
    if run.replay is not None and state is not None and not reason:
        run.replay.load_state_dict(state)
    elif run.replay is not None:
        by_option = not reason and not run.config.checkpoint_replay
        hint = " (--checkpoint-replay keeps it)" if by_option else ""
        lines.append(f"replay starts empty{hint}")
    for line in lines:
        run.display.log(f"{line}; the result will differ from an uninterrupted run")


def _check_network(
    run: Run, spaces: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Raises ValueError if the weights do not fit this run."""
    names = [n for n in new if n.startswith("model.") and n != "model.value_heads"]
    pairs = {n.removeprefix("model."): (old.get(n), new[n]) for n in names}
    pairs["observations"] = tuple(spaces["observation"]), run.obs_shape
    pairs["number of actions"] = spaces["actions"], run.num_actions
    for name, (there, here) in pairs.items():
        if there != here:
            raise ValueError(
                f"the checkpoint does not fit this run: {name} is {there} there and "
                f"{here} here; choose the model, the actions and the observations that "
                "it was trained with"
            )


def _move_value_heads(
    run: Run, state: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Keeps the critic's output of each level if the levels have changed."""
    env, outputs = run.config.env, old["model.value_heads"]
    sources = heads.value_sources(
        old["env.levels"],
        outputs,
        env.levels or own_levels(env.task),
        new["model.value_heads"],
    )
    if sources == [[number] for number in range(outputs)]:
        return
    heads.move_values(state, run.model, run.learner.optimizer, sources)
    run.display.log(
        "the levels have changed: known levels keep their output of the critic, "
        "new levels begin with the mean of its weights"
    )


def _check_limits(run: Run) -> None:
    """Raises ValueError if the run has already reached its end."""
    config, progress = run.config, run.progress
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
