"""Trains a policy: `python -m trainer.run` (level 1-1, no flags needed).

One loop: collect unrolls, learn from them, report. Everything a run leaves
behind is in its folder: config.json, metrics.jsonl, TensorBoard curves and
checkpoint.pt.

    python -m trainer.run --max-seconds 600
    python -m trainer.run --task SuperMarioBros-1-2-v0 --model nano --gamma 0.99
    tensorboard --logdir runs

Ctrl-C and SIGTERM end a run after the update it is in, with a checkpoint. Exit
status: 0 the run is done (solved, or out of steps or time), 130 or 143 it was
ended by Ctrl-C or SIGTERM and its checkpoint is written, 2 it could not start, 1
it failed later. The reason of 1 and 2 is one line on stderr, `error: ...`.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import tyro

from trainer import checkpoint
from trainer import config as config_module
from trainer.collector import SEED_STRIDE, Collector, make_pool
from trainer.config import RunConfig, to_dict
from trainer.device import (
    Shards,
    autocast_dtype,
    available_cores,
    choose_device,
    describe,
    keep_large_blocks,
)
from trainer.learner import Learner
from trainer.metrics import (
    EpisodeTracker,
    MetricsWriter,
    Timings,
    format_seconds,
    progress_legend,
    progress_line,
)
from trainer.model import build_model
from trainer.presets import preset
from trainer.rollouts import Rollouts

# What a checkpoint must hold to go on from it.
_RESUMED = (
    "config",
    "model",
    "optimizer",
    "steps",
    "updates",
    "minibatch_rng",
    "action_rng",
)


class Run:
    """Everything one run owns, built in order and closed in reverse."""

    def __init__(self, config: RunConfig) -> None:
        """Builds environments, network, learner and files."""
        config.validate()
        self.config = config
        self.device = choose_device(config.device)
        self.dtype = autocast_dtype(self.device, config.precision)
        torch.manual_seed(config.seed)
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            keep_large_blocks()
            # Acting is one thread beside the emulation; learning has shards.
            torch.set_num_threads(1)
        else:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        self.shards = Shards(_shard_count(config) if on_cpu else 1)
        self.pool = make_pool(config.env, config.seed * SEED_STRIDE)
        shape = tuple(self.pool.observation_space.shape)
        num_actions = int(self.pool.action_space.n)
        self.model = build_model(config.model, shape, num_actions).to(self.device)
        self.learner = Learner(
            self.model,
            config.learner,
            device=self.device,
            dtype=self.dtype,
            shards=self.shards,
            seed=config.seed,
        )
        env, learner = config.env, config.learner
        self.rollouts = Rollouts(
            num_envs=env.num_envs,
            num_slots=env.num_envs + learner.unrolls_per_batch + env.batch_size,
            unroll=learner.unroll,
            obs_shape=shape,
            num_actions=num_actions,
            device=self.device,
        )
        self.episodes = EpisodeTracker(env.num_envs)
        self.timings = Timings()
        self.actions = torch.Generator(self.device).manual_seed(config.seed)
        self.collector = Collector(
            self.pool,
            self.model,
            self.rollouts,
            device=self.device,
            dtype=self.dtype,
            generator=self.actions,
            episodes=self.episodes,
            timings=self.timings,
        )
        if config.resume is not None:
            self.restore(checkpoint.load(config.resume, self.device, _RESUMED))
        self.run_dir = config.run_dir or _new_run_dir(env.task)
        self._start_run_dir()
        self.writer = MetricsWriter(self.run_dir, to_dict(config), wandb=config.wandb)

    def _start_run_dir(self) -> None:
        """Makes the run folder, with config.json in it."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            config_module.save(
                self.config,
                self.run_dir / "config.json",
                commit=_commit(),
                device_used=describe(self.device, self.dtype),
            )
        except OSError as error:
            raise OSError(
                f"cannot write to the run folder {self.run_dir} ({error.strerror}); "
                "choose another with --run-dir"
            ) from error

    @property
    def checkpoint_path(self) -> Path:
        """Where the latest checkpoint is."""
        return self.run_dir / "checkpoint.pt"

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {
            "config": to_dict(self.config),
            "model": self.model.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "steps": self.collector.steps,
            "updates": self.learner.version,
            "minibatch_rng": self.learner.generator.get_state(),
            "action_rng": self.actions.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()`.

        Raises:
            ValueError: its network is another one.
        """
        if state["config"]["model"] != to_dict(self.config.model):
            raise ValueError(
                f"the checkpoint holds model {state['config']['model']}, this run has "
                f"{to_dict(self.config.model)}; choose the same --model"
            )
        checkpoint.load_weights(self.model, state["model"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.collector.steps = state["steps"]
        self.learner.version = state["updates"]
        self.learner.generator.set_state(state["minibatch_rng"].cpu())
        self.actions.set_state(state["action_rng"].cpu())

    def save(self) -> None:
        """Writes the checkpoint."""
        checkpoint.save(self.checkpoint_path, self.state())

    def close(self) -> None:
        """Stops threads and closes files."""
        self.collector.close()
        self.pool.close()
        self.shards.close()
        self.writer.close()


def run_training(config: RunConfig) -> dict[str, float]:
    """Builds a run and trains it; see `train`.

    Args:
        config: everything about the run.
    """
    return train(Run(config))


def train(run: Run) -> dict[str, float]:
    """Trains until solved, out of steps or time, or interrupted; closes the run.

    Args:
        run: fresh or restored.

    Returns:
        The last metrics, with `steps`, `seconds`, `solved` (0 or 1) and `signal`
        (the number of the one that ended it, else 0).

    Raises:
        RuntimeError: the loss became NaN; the batch is saved in the run folder.
    """
    started = time.perf_counter()
    try:
        print(_banner(run), flush=True)
        run.collector.start()
        with _stop_on_signal() as stopping:
            try:
                return _loop(run, started, stopping)
            finally:
                run.save()
                print(f"wrote {run.run_dir}/ (checkpoint.pt, curves)", flush=True)
    finally:
        run.close()


def _loop(run: Run, started: float, stopping: _Stop) -> dict[str, float]:
    """Collect, learn, report, until there is a reason to end."""
    config, learner = run.config, run.learner
    first_step = run.collector.steps
    last_log, last_save, last_step = started, started, first_step
    values: dict[str, float] = {}
    reason = ""
    while not reason:
        run.collector.collect(config.learner.unrolls_per_batch, learner.version)
        slots = run.rollouts.take(config.learner.unrolls_per_batch)
        with run.timings("learn"):
            batch = run.rollouts.batch(slots)
            learner.update(batch, run.collector.steps)
        now, steps = time.perf_counter(), run.collector.steps
        reason = _reason_to_end(run, now - started, stopping)
        if reason or now - last_log >= config.log_seconds:
            values = _measure(run, (steps - last_step) / (now - last_log))
            values["time/seconds"] = now - started
            run.writer.write(steps, values)
            eta = _eta_s(config, now - started, steps - first_step, steps)
            print(progress_line(steps, values, eta), flush=True)
            if not math.isfinite(values["learn/loss/total"]):
                torch.save(batch._asdict(), run.run_dir / "nan_batch.pt")
                raise RuntimeError(
                    f"the loss is {values['learn/loss/total']}; the last batch is in "
                    f"{run.run_dir}/nan_batch.pt. Try a lower --lr or --precision fp32"
                )
            last_log, last_step = now, steps
        run.rollouts.release(slots)
        if now - last_save >= config.checkpoint_seconds:
            run.save()
            last_save = now
    seconds = time.perf_counter() - started
    print(f"{reason} after {steps:,} steps, {format_seconds(seconds)}", flush=True)
    solved = float(reason.startswith("solved"))
    return values | {
        "steps": float(steps),
        "seconds": seconds,
        "solved": solved,
        "signal": float(stopping.signal),
    }


def _reason_to_end(run: Run, seconds: float, stopping: _Stop) -> str:
    """Why the run ends now, "" if it does not."""
    config = run.config
    if stopping.signal:
        return "interrupted"
    rate = run.episodes.clear_rate()
    if rate > 0 and rate >= config.stop_clear_rate:
        return f"solved: {rate:.0%} of the last 100 episodes cleared"
    if run.collector.steps >= config.max_steps:
        return "max_steps reached"
    if config.max_seconds and seconds >= config.max_seconds:
        return "max_seconds reached"
    return ""


def _measure(run: Run, sps: float) -> dict[str, float]:
    """One point of every curve."""
    values = {f"rollout/{k}": v for k, v in run.episodes.statistics().items()}
    values |= {f"learn/{k}": v for k, v in run.learner.statistics().items()}
    values |= {f"time/share_{k}": v for k, v in run.timings.shares().items()}
    values["time/sps"] = sps
    values["time/frames_per_s"] = sps * run.config.env.frame_skip
    return values


def _eta_s(config: RunConfig, seconds: float, done: int, steps: int) -> float:
    """Seconds to the first of max_steps and max_seconds; solving ends sooner."""
    rate = done / max(seconds, 1e-9)
    eta = (config.max_steps - steps) / max(rate, 1e-9)
    if config.max_seconds:
        eta = min(eta, config.max_seconds - seconds)
    return eta


def _shard_count(config: RunConfig) -> int:
    """CPU threads of the learner; by default none gets fewer than 64 rows.

    Below that, starting and joining the shards costs more than they save.
    """
    learner = config.learner
    useful = max(1, learner.minibatch_size // 64)
    return learner.learner_threads or min(available_cores(), useful)


def _banner(run: Run) -> str:
    env = run.config.env
    return (
        f"{env.task}: {env.num_envs} environments, {env.batch_size} acted for at once\n"
        f"{run.config.model.name}: {run.model.parameter_count():,} parameters on "
        f"{describe(run.device, run.dtype)}\n"
        f"writing to {run.run_dir}/ (tensorboard --logdir {run.run_dir.parent})\n"
        f"{progress_legend(env.frame_skip)}"
    )


def _new_run_dir(task: str) -> Path:
    """runs/TASK-TIME, with a number where two runs start in one second."""
    name = f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def _commit() -> str | None:
    """The commit of the trainer's own repository, "-dirty" if it was changed."""
    folder = Path(__file__).resolve().parent
    command = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
    ]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


class _Stop:
    """Which signal asked the run to end; 0: none."""

    signal = 0


@contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
    """Notes Ctrl-C and SIGTERM; a second one interrupts at once."""
    stopping = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stopping.signal:
            raise KeyboardInterrupt
        print(f"\n{signal.Signals(number).name}: ending after this update", flush=True)
        stopping.signal = number

    old = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def parse(argv: Sequence[str]) -> RunConfig:
    """Reads the command line, with the defaults of the preset it names.

    Args:
        argv: arguments without the program's name.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", default="auto")
    early.add_argument("--device", default="auto")
    known, _ = early.parse_known_args(argv)
    name = known.preset
    if name == "auto":
        gpu = choose_device(known.device).type == "cuda"
        name = "gpu" if gpu else "cpu"
    default = preset("gpu" if name == "gpu" else "cpu")
    return tyro.cli(
        RunConfig,
        args=list(argv),
        default=replace(default, preset="auto"),
        prog="python -m trainer.run",
        description=__doc__,
        config=(tyro.conf.OmitArgPrefixes,),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    status = 2
    try:
        run = Run(parse(sys.argv[1:] if argv is None else argv))
        status = 1
        ended_by = int(train(run)["signal"])
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 128 + ended_by if ended_by else 0


if __name__ == "__main__":
    sys.exit(main())
