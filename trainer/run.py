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
import copy
import json
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
from typing import Any, cast

import torch
import tyro

from trainer import checkpoint
from trainer import config as config_module
from trainer.collector import SEED_STRIDE, Actor, Collector, groups_of, make_pool
from trainer.config import RunConfig, to_dict
from trainer.cuda import own_stream
from trainer.device import (
    Shards,
    autocast_dtype,
    available_cores,
    choose_device,
    describe,
    keep_large_blocks,
)
from trainer.evaluate import evaluate_policy
from trainer.learner import Learner
from trainer.metrics import (
    EpisodeTracker,
    MetricsWriter,
    Timings,
    format_seconds,
    progress_legend,
    progress_line,
    verdict,
)
from trainer.model import PolicyModel, build_model, describe_model
from trainer.monitor import Monitor, mark, profiler, thread_ids
from trainer.optim import linear
from trainer.pipeline import InTurns, Overlapped, Pipeline
from trainer.presets import choose_preset, out_of_memory_advice, preset
from trainer.replay import PrioritizedReplay, capacity_of, check_fits
from trainer.rollouts import Batch, Rollouts

# What a checkpoint must hold to go on from it.
_RESUMED = ("config", "model", "learner", "steps", "action_rng")
# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50


class Run:
    """Everything one run owns, built in order and closed in reverse."""

    def __init__(self, config: RunConfig) -> None:
        """Builds environments, network, learner and files."""
        config.validate()
        config = config.resolved()
        self.config = config
        self.device = choose_device(config.device)
        self.dtype = autocast_dtype(self.device, config.precision)
        torch.manual_seed(config.seed)
        self._set_up_arithmetic()
        env = config.env
        asynchronous = config.mode == "async"
        others = thread_ids()
        self.pool = make_pool(env, config.seed * SEED_STRIDE, asynchronous=asynchronous)
        self.workers = thread_ids() - others
        self.obs_shape = tuple(self.pool.observation_space.shape)
        num_actions = int(self.pool.action_space.n)
        model = build_model(config.model, self.obs_shape, num_actions).to(self.device)
        if config.channels_last and self.device.type == "cuda":
            # nn.Module.to has it, its annotations do not.
            cast(Any, model).to(memory_format=torch.channels_last)
        self.model: PolicyModel = model
        if config.replay.burn_in and not model.state_size:
            raise ValueError(
                f"burn_in={config.replay.burn_in} is for a network with a memory; "
                "choose --memory, or --burn-in 0"
            )
        self.learner = Learner(
            model,
            config,
            obs_shape=self.obs_shape,
            device=self.device,
            dtype=self.dtype,
            shards=self.shards,
        )
        self.replay: PrioritizedReplay | None = None
        self.rollouts = self._make_store(num_actions)
        self.episodes = EpisodeTracker(env.num_envs)
        self.timings = Timings()
        self.monitor = Monitor(self.device, workers=self.workers)
        self.actions = torch.Generator(self.device).manual_seed(config.seed)
        self.steps = 0
        self.collector = Collector(
            self.pool,
            self.rollouts,
            groups=groups_of(env, asynchronous=asynchronous),
            asynchronous=asynchronous,
            state_size=model.state_size,
            device=self.device,
            episodes=self.episodes,
            timings=self.timings,
        )
        if config.resume is not None:
            self.restore(checkpoint.load(config.resume, self.device, _RESUMED))
        self.run_dir = config.run_dir or _new_run_dir(env.task)
        self._start_run_dir()
        self.writer = MetricsWriter(self.run_dir, to_dict(config), wandb=config.wandb)
        self.pipeline: Pipeline | None = None

    def _set_up_arithmetic(self) -> None:
        """Threads and precision of PyTorch."""
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            keep_large_blocks()
            # Acting is one thread beside the emulation; learning has shards.
            torch.set_num_threads(1)
        else:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
            # The fastest convolution may add in another order every time.
            torch.backends.cudnn.benchmark = self.config.mode == "async"
            torch.backends.cudnn.deterministic = self.config.mode == "sync"
        single = not on_cpu or self.config.serial
        self.shards = Shards(1 if single else _shard_count(self.config))

    def _make_store(self, num_actions: int) -> Rollouts:
        """The store of unrolls, with room for replay."""
        c, env = self.config, self.config.env
        spec: dict[str, Any] = {
            "unroll": c.learner.unroll,
            "burn_in": c.replay.burn_in,
            "obs_shape": self.obs_shape,
            "stack_num": _frames_in(self.obs_shape, env.stack_num),
        }
        bytes_per_slot = Rollouts.bytes_per_slot(**spec)
        # One slot for each environment; batches that wait and the one that is
        # learned from; what a recv completes beyond a batch.
        slots = env.num_envs + (c.lag + 1) * c.fresh_unrolls
        slots += env.num_envs // env.groups
        capacity = 0
        if c.replay.replay_share:
            capacity = capacity_of(c.replay, bytes_per_slot)
        check_fits((slots + capacity) * bytes_per_slot, self.device)
        if capacity:
            self.replay = PrioritizedReplay(
                capacity,
                slots + capacity,
                alpha=c.replay.replay_alpha,
                device=self.device,
                generator=self.learner.generator,
            )
        return Rollouts(
            num_envs=env.num_envs,
            num_slots=slots + capacity,
            num_actions=num_actions,
            device=self.device,
            state_size=self.model.state_size,
            **spec,
        )

    def start(self) -> None:
        """Starts collecting, in turns with learning or beside it."""
        c = self.config
        graphs = c.cuda_graphs and self.device.type == "cuda" and not c.serial

        def actor(model: PolicyModel) -> Actor:
            result = Actor(
                model,
                device=self.device,
                dtype=self.dtype,
                generator=self.actions,
                graphs=graphs,
            )
            result.version = self.learner.version  # of a resumed run
            return result

        if c.lag == 0:
            self.pipeline = InTurns(
                self.collector, self.rollouts, actor(self.model), c.fresh_unrolls
            )
        else:
            exact = c.mode == "sync"
            sets = c.lag + 1 if exact else 2
            self.pipeline = Overlapped(
                self.collector,
                self.rollouts,
                [actor(copy.deepcopy(self.model)) for _ in range(sets)],
                self.model,
                unrolls=c.fresh_unrolls,
                lag=c.lag,
                exact=exact,
                device=self.device,
                timings=self.timings,
            )

    def update(self) -> Batch:
        """One batch from the environments and replay to the weights."""
        config = self.config
        assert self.pipeline is not None, "start() first"
        with mark("collect"):
            slots = self.pipeline.next_batch()
        # Not the collector's count, which in another thread is a matter of timing.
        self.steps += len(slots) * config.learner.unroll
        with mark("learn"), self.timings("learn"):
            replayed, step = None, self.steps
            r = config.replay
            if self.replay is not None and len(self.replay):
                beta = linear(
                    r.replay_beta, r.replay_beta_end, r.replay_beta_steps, step
                )
                count = config.learner.unrolls_per_batch - config.fresh_unrolls
                replayed = self.replay.sample(count, beta)
                batch = self.rollouts.batch(slots, replayed.slots, replayed.weights)
            else:
                batch = self.rollouts.batch(slots)
            priorities = self.learner.update(batch, step)
            released = slots
            if self.replay is not None:
                if replayed is not None:
                    self.replay.update(replayed.slots, priorities[len(slots) :])
                released = self.replay.add(slots, priorities[: len(slots)])
            self.rollouts.release(released)
        self.pipeline.publish(self.learner.version)
        return batch

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
        """What a resumed run needs, and an evaluation."""
        return {
            "config": to_dict(self.config),
            "model": self.model.state_dict(),
            "ema": self.learner.ema.state_dict() if self.learner.ema else None,
            "learner": self.learner.state(),
            "steps": self.steps,
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
        self.learner.restore(state["learner"])
        self.steps = state["steps"]
        self.actions.set_state(state["action_rng"].cpu())

    def save(self) -> None:
        """Writes the checkpoint."""
        checkpoint.save(self.checkpoint_path, self.state())

    def close(self) -> None:
        """Stops threads and closes files."""
        if self.pipeline is not None:
            self.pipeline.close()
        self.collector.close()
        self.pool.close()
        self.shards.close()
        self.monitor.close()
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
        with _stop_on_signal() as stopping, own_stream(run.device):
            run.start()
            try:
                return _Loop(run, started, stopping).run()
            finally:
                run.save()
                print(f"wrote {run.run_dir}/ (checkpoint.pt, curves)", flush=True)
    finally:
        run.close()


class _Loop:
    """Collect, learn, report, until there is a reason to end."""

    def __init__(self, run: Run, started: float, stopping: _Stop) -> None:
        self._run, self._started, self._stopping = run, started, stopping
        self._first_step = self._last_step = run.steps
        self._last_log = self._last_save = started
        self._values: dict[str, float] = {}
        self._verdict = ""
        self._attempts = 0
        self._next_attempt = 0
        self._evaluated: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        """Trains; see `train`."""
        run, config = self._run, self._run.config
        reason = ""
        with profiler(config.profile, run.run_dir, run.device) as updated:
            while not reason:
                batch = run.update()
                updated()
                reason = self._reason_to_end()
                if reason or self._seconds_since(self._last_log) >= config.log_seconds:
                    self._report(batch)
                if self._seconds_since(self._last_save) >= config.checkpoint_seconds:
                    run.save()
                    self._last_save = time.perf_counter()
        seconds = self._seconds_since(self._started)
        print(
            f"{reason} after {run.steps:,} steps, {format_seconds(seconds)}",
            flush=True,
        )
        return (
            self._values
            | self._evaluated
            | {
                "steps": float(run.steps),
                "seconds": seconds,
                "solved": float(reason.startswith("solved")),
                "signal": float(self._stopping.signal),
            }
        )

    def _seconds_since(self, then: float) -> float:
        return time.perf_counter() - then

    def _report(self, batch: Batch) -> None:
        """One point of every curve, and a line for people."""
        run, config = self._run, self._run.config
        now, steps = time.perf_counter(), run.steps
        sps = (steps - self._last_step) / (now - self._last_log)
        shares = run.timings.shares()
        hardware = run.monitor.statistics()
        if "emulate" in hardware:
            shares["emulate"] = hardware.pop("emulate")
        values = {f"rollout/{k}": v for k, v in run.episodes.statistics().items()}
        values |= {f"learn/{k}": v for k, v in run.learner.statistics().items()}
        values |= {f"time/share_{k}": v for k, v in shares.items()}
        values |= {f"system/{k}": v for k, v in hardware.items()}
        values["queue/full_unrolls"] = float(run.rollouts.num_full)
        values["queue/free_slots"] = float(run.rollouts.num_free)
        if run.replay is not None:
            values["replay/unrolls"] = float(len(run.replay))
        values["time/sps"] = sps
        values["time/frames_per_s"] = sps * config.env.frame_skip
        values["time/seconds"] = now - self._started
        run.writer.write(steps, values)
        eta = _eta_s(config, now - self._started, steps - self._first_step, steps)
        print(progress_line(steps, values, eta), flush=True)
        self._tell_verdict(shares, hardware.get("gpu_utilisation"))
        if not math.isfinite(values.get("learn/loss/total", 0.0)):
            torch.save(batch._asdict(), run.run_dir / "nan_batch.pt")
            raise RuntimeError(
                f"the loss is {values['learn/loss/total']}; the last batch is in "
                f"{run.run_dir}/nan_batch.pt. Try a lower --lr or --precision fp32"
            )
        self._values = values
        self._last_log, self._last_step = now, steps

    def _tell_verdict(self, shares: dict[str, float], gpu: float | None) -> None:
        """Says what bounds the speed, when that has changed."""
        text = verdict(shares, gpu, self._run.config.lag > 0)
        kind = text.partition(":")[0]
        if kind != self._verdict:
            print(text, flush=True)
            self._verdict = kind

    def _reason_to_end(self) -> str:
        """Why the run ends now, "" if it does not."""
        run, config = self._run, self._run.config
        if self._stopping.signal:
            return "interrupted"
        if config.stop_when_solved and self._solved():
            return f"solved: {self._evaluated['evaluation/clear_rate']:.0%} cleared"
        if run.steps >= config.max_steps:
            return "max_steps reached"
        seconds = self._seconds_since(self._started)
        if config.max_seconds and seconds >= config.max_seconds:
            return "max_seconds reached"
        return ""

    def _solved(self) -> bool:
        """Whether an evaluation confirms what the training episodes suggest."""
        run, config = self._run, self._run.config
        count = run.episodes.count
        rate = run.episodes.clear_rate()
        if not rate or rate < config.solve_rate or count < self._next_attempt:
            return False
        self._next_attempt = count + _EPISODES_BETWEEN_ATTEMPTS
        steps, seconds = run.steps, self._seconds_since(self._started)
        print(
            f"{rate:.0%} of the last 100 training episodes cleared the level after "
            f"{steps:,} steps, {format_seconds(seconds)}",
            flush=True,
        )
        if self._evaluate("evaluation") < config.solve_rate:
            return False
        # The first one was chosen by its result; this one was not.
        self._evaluate("second evaluation")
        return True

    def _evaluate(self, name: str) -> float:
        """Plays fresh episodes; returns their clear rate."""
        run, config = self._run, self._run.config
        model = copy.deepcopy(run.model)
        if run.learner.ema is not None:
            run.learner.ema.copy_to(model)
        self._attempts += 1
        result = evaluate_policy(
            model,
            config.env,
            episodes=config.solve_episodes,
            seed=config.seed,
            stream=self._attempts,
            device=run.device,
            dtype=run.dtype,
        )
        seconds = self._seconds_since(self._started)
        result |= {"steps": run.steps, "seconds": seconds, "name": name}
        low, high = result["clear_rate_95"]
        print(
            f"{name}: {result['clears']} of {result['episodes']} episodes cleared "
            f"(95 % interval {low:.1%} to {high:.1%}), {format_seconds(seconds)}",
            flush=True,
        )
        with (run.run_dir / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        rate = float(result["clear_rate"])
        self._evaluated["evaluation/clear_rate"] = rate
        run.writer.write(run.steps, {"evaluation/clear_rate": rate})
        return rate


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


def _frames_in(shape: tuple[int, ...], stack_num: int) -> int:
    """Frames that an observation can be cut into."""
    return stack_num if len(shape) == 3 and shape[0] % stack_num == 0 else 1


def _banner(run: Run) -> str:
    config, env = run.config, run.config.env
    size = describe_model(run.model, run.obs_shape)
    overlap = (
        f"collecting up to {config.lag} batches ahead of learning"
        if config.lag
        else "collecting and learning in turns"
    )
    fallback = ""
    if config.device == "auto" and run.device.type == "cpu":
        fallback = " (--device auto found no usable GPU)"
    return (
        f"{env.task}: {env.num_envs} environments in {env.groups} groups, "
        f"{config.mode}, {overlap}\n"
        f"{config.model.name}: {size.parameters:,} parameters, "
        f"{size.forward_flops / 1e6:.1f} MFLOP per observation, on "
        f"{describe(run.device, run.dtype)}{fallback}\n"
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
        name = choose_preset(choose_device(known.device))
    default = preset(name)
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
    config = RunConfig()
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        run = Run(config)
        status = 1
        ended_by = int(train(run)["signal"])
    except torch.OutOfMemoryError as error:
        print(f"error: {out_of_memory_advice(config, error)}", file=sys.stderr)
        return status
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 128 + ended_by if ended_by else 0


if __name__ == "__main__":
    sys.exit(main())
