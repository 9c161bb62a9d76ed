"""A run: what it owns, built in order, trained and closed in reverse."""

from __future__ import annotations

import copy
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from trainer.config import plain
from trainer.config.learning import BETA_STEPS
from trainer.config.plain import from_dict, to_dict
from trainer.config.schedules import linear
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import is_native, played
from trainer.envs.pool import SEED_STRIDE, groups_of, make_pool
from trainer.explore.explorer import make_explorer
from trainer.film.record import Filmer
from trainer.learn.learner import Learner
from trainer.machine.cuda import own_stream
from trainer.machine.device import (
    Shards,
    autocast_dtype,
    available_cores,
    choose_device,
    describe,
    keep_large_blocks,
)
from trainer.machine.files import Lines, drop_after, same_folder
from trainer.machine.monitor import Monitor, mark, thread_ids
from trainer.machine.timings import Timings
from trainer.models import PolicyModel, build_model, checkpoint, to_device
from trainer.rollout.actor import Actor
from trainer.rollout.batch import Batch
from trainer.rollout.collector import Collector
from trainer.rollout.episodes import EpisodeTracker
from trainer.rollout.pipeline import InTurns, Overlapped, Pipeline
from trainer.rollout.replay import PrioritizedReplay, check_fits
from trainer.rollout.store import Rollouts
from trainer.session import locate, resume
from trainer.session.checkpoints import Checkpoints
from trainer.session.loop import Loop, Progress, stop_on_signal
from trainer.show.dashboard import Display, make_display
from trainer.show.tracking import MetricsWriter


class Run:
    """Everything one run owns, built in order and closed in reverse."""

    def __init__(self, config: RunConfig, display: Display | None = None) -> None:
        """Builds environments, network, learner and files; closes them if it fails."""
        config.validate()
        self.display = display or make_display(config.dashboard)
        self._closing = ExitStack()
        with ExitStack() as on_error:
            on_error.callback(self._closing.close)
            self._build(config.resolved())
            on_error.pop_all()

    def _build(self, config: RunConfig) -> None:
        self.config = config
        self._closing.callback(self.display.close)
        self.device = choose_device(config.device)
        self.dtype = autocast_dtype(self.device, config.precision)
        torch.manual_seed(config.seed)
        self._set_up_arithmetic()
        env = config.env
        asynchronous = config.mode == "async"
        others = thread_ids()
        self.pool = make_pool(env, config.seed * SEED_STRIDE, asynchronous=asynchronous)
        self._closing.callback(self.pool.close)
        workers = thread_ids() - others
        self.obs_shape = tuple(self.pool.observation_space.shape)
        self.num_actions = int(self.pool.action_space.n)
        model = build_model(config.model, self.obs_shape, self.num_actions)
        self.model: PolicyModel = to_device(model, config.model.name, self.device)
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
        self._closing.callback(self.learner.close)
        self.replay: PrioritizedReplay | None = None
        self.rollouts = self._make_store()
        stages = getattr(self.pool, "num_stages", None)
        self.episodes = EpisodeTracker(
            env.num_envs, num_stages=stages, levels=env.levels
        )
        self.explorer = make_explorer(self.pool, config, self.episodes)
        self.timings = Timings()
        self.monitor = Monitor(self.device, workers=workers)
        self._closing.callback(self.monitor.close)
        self.actions = torch.Generator(self.device).manual_seed(config.seed)
        self.steps = 0
        self.filmer: Filmer | None = None
        if config.videos and is_native(env.task):
            self.filmer = Filmer(self.pool, self.display.say)
        self.collector = Collector(
            self.pool,
            self.rollouts,
            groups=groups_of(env, asynchronous=asynchronous),
            asynchronous=asynchronous,
            state_size=model.state_size,
            device=self.device,
            episodes=self.episodes,
            timings=self.timings,
            levels=env.levels,
            recorder=self.filmer.recorder if self.filmer else None,
            explorer=self.explorer,
        )
        self._closing.callback(self.collector.close)
        self.progress = Progress()
        self.pipeline: Pipeline | None = None
        self._start_run_dir(self._resume())
        self._open_files()

    def _open_files(self) -> None:
        """Opens what is written to all the time, in the run folder."""
        self.writer = MetricsWriter(
            self.run_dir,
            to_dict(self.config),
            wandb=self.config.wandb,
            resumed_at=self.steps,
            say=self.display.say,
        )
        self._closing.callback(self.writer.close)
        self.evaluations = Lines(self.run_dir / "evaluations.jsonl", self.display.say)
        self._closing.callback(self.evaluations.close)
        if self.filmer is not None:
            self.filmer.open(self.run_dir / "videos")
            self._closing.callback(self.filmer.close)

    def _resume(self) -> Path | None:
        """Goes on from a checkpoint if the config says so; returns its run's folder."""
        config = self.config
        if config.resume is None:
            return None
        path = locate.locate(config.resume, config.env.task)
        state = checkpoint.load(path, self.device, locate.NEEDS)
        source, run_dir = checkpoint.run_dir_of(path), config.run_dir
        there = from_dict(EnvConfig, state["config"]["env"])
        same = played(there.task, there.levels) == played(
            config.env.task, config.env.levels
        )
        if not same and same_folder(source, run_dir or source):
            raise ValueError(
                f"{source} is a run of {_played(there)}: to go on from it with "
                f"{_played(config.env)}, give a folder of its own with --run-dir"
            )
        resume.restore(self, path, state)
        return source

    def _set_up_arithmetic(self) -> None:
        """Threads and precision of PyTorch."""
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            keep_large_blocks()
            # Acting is one thread beside the emulation; learning has shards.
            torch.set_num_threads(1)
        else:
            torch.set_float32_matmul_precision("high")  # TF32, as cuDNN's by default
            # The fastest convolution may add in another order every time.
            torch.backends.cudnn.benchmark = self.config.mode == "async"
            exact = self.config.mode == "sync"
            torch.backends.cudnn.deterministic = exact
            # For gtrxl: its gradient is added up in any order.
            torch.backends.cuda.enable_mem_efficient_sdp(not exact)
            torch.backends.cuda.enable_cudnn_sdp(not exact)
        single = not on_cpu or self.config.serial
        self.shards = Shards(1 if single else _shard_count(self.config))
        self._closing.callback(self.shards.close)

    def _make_store(self) -> Rollouts:
        """The store of unrolls, with room for replay."""
        c, env = self.config, self.config.env
        spec: dict[str, Any] = {
            "unroll": c.learner.unroll,
            "burn_in": c.replay.burn_in,
            "obs_shape": self.obs_shape,
            "stack_num": _frames_in(self.obs_shape, env.stack_num),
        }
        bytes_per_slot = Rollouts.bytes_per_slot(**spec)
        slots = c.working_slots
        capacity = c.replay.replay_capacity if c.replay.replay_share else 0
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
            num_actions=self.num_actions,
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
            self._closing.callback(result.close)
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
                beta = linear(r.replay_beta, 1.0, BETA_STEPS, step)
                count = config.learner.unrolls_per_batch - config.fresh_unrolls
                replayed = self.replay.sample(count, beta)
                batch = self.rollouts.batch(slots, replayed.slots, replayed.weights)
            else:
                batch = self.rollouts.batch(slots)
            priorities = self.learner.update(batch, step)
            if config.lag and self.device.type == "cuda":
                # Only finished weights and slots are handed over: the collector
                # would otherwise wait for the update it is meant to overlap.
                torch.cuda.current_stream(self.device).synchronize()
            released = slots
            if self.replay is not None:
                if replayed is not None:
                    self.replay.update(replayed.slots, priorities[len(slots) :])
                released = self.replay.add(slots, priorities[: len(slots)])
            self.rollouts.release(released)
        self.pipeline.publish(self.learner.version)
        return batch

    def _start_run_dir(self, source: Path | None) -> None:
        """Makes the run folder, with config.json in it, or goes on in one.

        Args:
            source: folder of the run that is resumed.
        """
        config = self.config
        self.run_dir = config.run_dir or source or _new_run_dir(config.env.task)
        own = same_folder(source, self.run_dir)
        if not own and checkpoint.list_files(self.run_dir):
            raise ValueError(
                f"{self.run_dir} holds the checkpoints of another run: go on with it "
                f"(--resume {self.run_dir}), or choose another --run-dir"
            )
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self.checkpoints = Checkpoints(
                self.run_dir, config.keep_checkpoints, self.display.say
            )
            self._closing.callback(self.checkpoints.close)
            # A run that was killed before its first checkpoint leaves lines, too.
            lost = drop_after(self.run_dir, self.steps)
            if lost and not own:
                self.display.say(
                    f"{self.run_dir} had {lost} lines of a run without a checkpoint, "
                    "which are dropped"
                )
            self.progress.best_clear_rate = locate.best_in(self.run_dir)
            plain.save(
                self.config,
                self.run_dir / "config.json",
                commit=_commit(),
                device_used=describe(self.device, self.dtype),
                command=shlex.join(sys.orig_argv),
            )
        except OSError as error:
            raise OSError(
                f"cannot write to the run folder {self.run_dir} ({error.strerror}); "
                "choose another with --run-dir"
            ) from error

    def save(self, *, best: bool = False, complete: bool = True) -> bool:
        """Writes a checkpoint, or says why it cannot.

        Args:
            best: to best.pt, instead of one of the last few, and without games and
                what was explored: it may be written often.
            complete: False if an update was interrupted: episodes will begin anew.

        Returns:
            Whether it is written.
        """
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            self.display.say("the weights are not finite: they are not saved")
            return False
        state = resume.capture(self, complete=complete, games=not best)
        if best:
            path = self.checkpoints.save_best(state)
        else:
            path = self.checkpoints.save(state, self.steps)
        if path is not None:
            self.display.checkpoint(path, self.steps)
        return path is not None

    def close(self) -> None:
        """Stops threads and closes files."""
        if self.pipeline is not None:
            self.pipeline.close()
        self._closing.close()


def run_training(config: RunConfig, display: Display | None = None) -> dict[str, float]:
    """Builds a run and trains it; see `train`.

    Args:
        config: everything about the run.
        display: what is told of the run; None: the one that the config names. What
            its `report` raises ends the run, with a checkpoint, and reaches the
            caller: a search stops hopeless trials so.
    """
    return train(Run(config, display))


def train(run: Run) -> dict[str, float]:
    """Trains until solved, out of steps or time, or interrupted; closes the run.

    Args:
        run: fresh or restored.

    Returns:
        The last metrics, with `steps`, `seconds`, `solved` (0 or 1) and `signal`
        (the number of the one that came meanwhile, else 0).

    Raises:
        RuntimeError: the loss became NaN (the batch is saved in the run folder), or
            the last checkpoint could not be written.
    """
    started = time.perf_counter()
    try:
        run.display.start(run)
        with stop_on_signal(run.display.say) as stopping, own_stream(run.device):
            run.start()
            try:
                metrics = Loop(run, started, stopping).run()
            except BaseException:
                _save_after_failure(run)
                raise
            if not run.save():
                raise RuntimeError(
                    f"the last checkpoint, at {run.steps:,} steps, is not written; "
                    f"{run.run_dir}/{checkpoint.FOLDER}/ has those before it"
                )
            parts = "checkpoints, curves"
            if run.filmer is not None:
                run.filmer.finish(run.writer)
                parts += ", videos"
            run.display.say(f"wrote {run.run_dir}/ ({parts})")
            # One may have come since the loop ended.
            return metrics | {"signal": float(stopping.signal)}
    finally:
        run.close()


def _save_after_failure(run: Run) -> None:
    """Writes a checkpoint if it can; the failure stays what is told of."""
    try:
        run.save(complete=False)
    except Exception as error:
        run.display.say(f"no checkpoint of this moment: {error}")


def _played(env: EnvConfig) -> str:
    """What a run plays, in words."""
    return f"levels {', '.join(env.levels)}" if env.levels else f"task {env.task}"


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
    options = "describe --always --dirty --abbrev=40".split()
    command = ["git", "-C", str(folder), *options]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
