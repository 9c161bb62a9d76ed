"""The parts of a run: built in order, closed in reverse order."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config import shown
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import game_levels, is_native, own_levels, played
from trainer.envs.pool import (
    SEED_STRIDE,
    busy_envs,
    groups_of,
    make_pool,
    replacements,
)
from trainer.explore import demonstrations
from trainer.explore.explorer import make_explorer
from trainer.film.record import Filmer
from trainer.learn.learner import Learner
from trainer.machine.cpu import thread_ids
from trainer.machine.device import autocast_dtype, describe, device_of
from trainer.machine.files import Lines, same_folder
from trainer.machine.monitor import Monitor
from trainer.machine.ranks import ALONE, Ranks, Stream, on_device, seed_of
from trainer.machine.self_check import SelfCheck, check_gpu
from trainer.machine.timings import Timings
from trainer.models import (
    PolicyModel,
    build_model,
    checkpoint,
    describe_model,
    to_device,
)
from trainer.models.native import computes
from trainer.rollout.actor import Actor
from trainer.rollout.collector import Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.pipeline import InTurns, Overlapped, Pipeline
from trainer.rollout.replay import PrioritizedReplay, check_fits
from trainer.rollout.store import Rollouts
from trainer.session import files, locate, resume
from trainer.session.alarms import Alarms
from trainer.session.arithmetic import set_up_arithmetic
from trainer.session.checkpoints import Checkpoints
from trainer.session.demonstrate import demonstrate
from trainer.session.progress import Progress
from trainer.session.saver import Saver
from trainer.session.share import share_of
from trainer.session.updater import Updater
from trainer.show.dashboard import make_display
from trainer.show.display import Display, QuietDisplay, RunInfo
from trainer.show.notify import Notifier
from trainer.show.tracking import MetricsWriter

# Least number of episodes in the window of one of several processes.
_LEAST_WINDOW = 10


class Session:
    """The parts of a run; code that uses some of them receives only those.

    Each process of a run has a session. Only the session of rank 0 has files.

    Attributes:
        config: of the whole run, resolved.
        share: config of this process.
        ranks: processes of the run.
        episodes: of the whole run, on rank 0.
        own_episodes: of this process; the same object if there is only one process.
        checked: which features of the GPU work; the defaults on a CPU.
        graphs: whether acting and the gradient step are recorded as CUDA graphs.
        updater: exists after `start`, as does `saver`.
    """

    updater: Updater
    saver: Saver

    def __init__(
        self,
        config: RunConfig,
        display: Display | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds the parts, and resumes the checkpoint of `config.resume`, if any.

        If a part fails, the parts built before it are closed.
        """
        config.validate()
        self.ranks = ranks
        self.display = display or (
            make_display(config.dashboard) if ranks.is_first else QuietDisplay()
        )
        self._closing = ExitStack()
        with ExitStack() as on_error:
            on_error.callback(self._closing.close)
            self._closing.callback(self.display.close)
            self.config = config.resolved()
            self.share = share_of(self.config, ranks)
            self._build()
            source = self._resume()
            self.run_dir = ranks.first(lambda: self._start_run_dir(source))
            if config.learns_from_demonstrations:
                demonstrate(
                    self.parts,
                    run_dir=self.run_dir,
                    log=self.display.log,
                    save=lambda state, step: self.checkpoints.save(state, step),
                )
            if ranks.is_first:
                self._open_files()
            self._watch()
            on_error.pop_all()

    def _build(self) -> None:
        """Builds the parts that live in memory."""
        config, env, ranks = self.share, self.share.env, self.ranks
        notify, log = config.notify, self.display.log
        self.notifier = Notifier(notify, log) if notify else None
        self.device = device_of(config.device, ranks)
        torch.manual_seed(seed_of(config.seed, Stream.WEIGHTS))
        self.shards = set_up_arithmetic(config, self.device)
        self._closing.callback(self.shards.close)
        on_gpu = self.device.type == "cuda"
        self.graphs = on_gpu and config.cuda_graphs and not config.serial
        self.checked = SelfCheck()
        if on_gpu:
            self.checked = check_gpu(self.device, graphs=self.graphs)
            self.graphs = self.graphs and self.checked.graphs
        asynchronous = config.mode == "async"
        others = thread_ids()
        # Together, all ranks have the seeds of a run with one process.
        seed = config.seed * SEED_STRIDE + ranks.rank * env.num_envs
        self.pool = make_pool(env, seed, asynchronous=asynchronous)
        self._closing.callback(self.pool.close)
        if env.max_replacements and is_native(env.task):
            self.pool.set_replacement(env.max_replacements, env.replacement_episodes)
        workers = thread_ids() - others
        self.obs_shape = tuple(self.pool.observation_space.shape)
        self.num_actions = int(self.pool.action_space.n)
        model = build_model(config.model, self.obs_shape, self.num_actions)
        self.dtype = autocast_dtype(
            self.device, config.precision, own_code=computes(model, self.obs_shape)
        )
        self.model: PolicyModel = to_device(model, config.model.name, self.device)
        ranks.copy_first(list(self.model.parameters()))
        if config.replay.burn_in and not model.state_size:
            raise ValueError(
                f"burn_in={config.replay.burn_in} needs a network with a memory; "
                "choose --memory, or --burn-in 0"
            )
        self.learner = Learner(
            model,
            # Not in the config of the run: graphs may work on another machine.
            config if self.checked.graphs else replace(config, cuda_graphs=False),
            obs_shape=self.obs_shape,
            device=self.device,
            dtype=self.dtype,
            shards=self.shards,
            ranks=ranks,
        )
        self._closing.callback(self.learner.close)
        self.replay: PrioritizedReplay | None = None
        self.store = self._make_store()
        stages = getattr(self.pool, "num_stages", None)
        levels = env.levels or own_levels(env.task)
        game = () if env.levels else game_levels(env.task)
        open_episodes = OpenEpisodes(
            env.num_envs, levels=levels, game=game, num_stages=stages
        )
        self._make_episodes(whole_game=bool(game))
        rates = self.own_episodes.clear_rates
        self.explorer = make_explorer(self.pool, config, levels, rates, ranks.size)
        self.timings = Timings()
        self.monitor = Monitor(self.device, workers=workers)
        self._closing.callback(self.monitor.close)
        self.generators = resume.Generators(self.device, config.seed, ranks.rank)
        self.filmer: Filmer | None = None
        if config.videos and is_native(env.task):
            self.filmer = Filmer(self.pool, self.display.log)
        self.collector = Collector(
            self.pool,
            self.store,
            groups=groups_of(env, asynchronous=asynchronous),
            asynchronous=asynchronous,
            state_size=model.state_size,
            device=self.device,
            episodes=open_episodes,
            finished=self.own_episodes,
            timings=self.timings,
            recorder=self.filmer.recorder if self.filmer else None,
            explorer=self.explorer,
            ranks=ranks.size,
        )
        self._closing.callback(self.collector.close)
        self.progress = Progress()
        self.ways = demonstrations.Ways()

    def _make_episodes(self, *, whole_game: bool) -> None:
        """The windows of finished episodes: of the run, and of this process.

        Each process chooses levels by its own window. It spans about the same time as
        the window of the run, which has `ranks.size` times as many episodes.
        """
        levels, size = self.config.env.levels, self.ranks.size
        self.episodes = FinishedEpisodes(levels=levels, whole_game=whole_game)
        self.own_episodes = self.episodes
        if size > 1:
            self.own_episodes = FinishedEpisodes(
                max(_LEAST_WINDOW, (self.episodes.recent.maxlen or 1) // size),
                levels=levels,
                whole_game=whole_game,
                keeps_new=True,
            )

    @property
    def parts(self) -> resume.RunParts:
        """The parts whose state is in a checkpoint."""
        return resume.RunParts(
            config=self.config,
            device=self.device,
            obs_shape=self.obs_shape,
            num_actions=self.num_actions,
            has_snapshots=hasattr(self.pool, "snapshot"),
            model=self.model,
            learner=self.learner,
            generators=self.generators,
            episodes=self.episodes,
            own_episodes=self.own_episodes,
            collector=self.collector,
            explorer=self.explorer,
            replay=self.replay,
            progress=self.progress,
            ways=self.ways,
            ranks=self.ranks,
        )

    @property
    def info(self) -> RunInfo:
        """Facts about the run for a display."""
        return RunInfo(
            config=self.config,
            run_dir=self.run_dir,
            device=self.device,
            dtype=self.dtype,
            size=describe_model(self.model, self.obs_shape),
            replay_capacity=self.replay.capacity if self.replay is not None else 0,
            steps=lambda: self.progress.steps,
            ranks=self.ranks.size,
        )

    def _make_store(self) -> Rollouts:
        """Makes the store of unrolls with room for replay, and makes replay."""
        c, env = self.share, self.share.env
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

    def _resume(self) -> Path | None:
        """Resumes a checkpoint if the config names one; returns its run folder."""
        given = self.config.resume
        if given is None:
            return None
        pieces: list[dict[str, Any]] = []

        def read() -> tuple[Path, Path | None, dict[str, Any]]:
            path, source, state = self._read_checkpoint(given)
            common, own = resume.divide(state, self.ranks.size)
            pieces.extend(own)
            return path, source, common

        path, source, state = self.ranks.first(read)
        state = on_device(state | self.ranks.scatter(pieces), self.device)
        resume.restore(self.parts, path, state, self.display.log)
        return source

    def _read_checkpoint(self, given: Path) -> tuple[Path, Path | None, dict[str, Any]]:
        """The checkpoint that --resume names, its run folder and its content."""
        config = self.config
        path = locate.locate(given, config.env.task)
        # Not on the device, because rank 0 reads it for all ranks.
        state = checkpoint.load(path, torch.device("cpu"), locate.NEEDS)
        source, run_dir = checkpoint.run_dir_of(path), config.run_dir
        there = from_dict(EnvConfig, state["config"]["env"])
        same = played(there.task, there.levels) == played(
            config.env.task, config.env.levels
        )
        if not same and same_folder(source, run_dir or source):
            raise ValueError(
                f"{source} is a run of {_played(there)}: to continue it with "
                f"{_played(config.env)}, choose another folder with --run-dir"
            )
        return path, source, state

    def _start_run_dir(self, source: Path | None) -> Path:
        """Locks the run folder, and writes config.json."""
        config = self.config
        run_dir = files.choose_run_dir(config, source)
        with files.writing_to(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            self.checkpoints = Checkpoints(
                run_dir, config.keep_checkpoints, self.display.log
            )
            self._closing.callback(self.checkpoints.close)
            files.prepare(
                config,
                run_dir,
                resumed=same_folder(source, run_dir),
                step=self.progress.steps,
                device=describe(self.device, self.dtype),
                log=self.display.log,
            )
        self.progress.best_score = locate.best_in(run_dir)
        return run_dir

    def _open_files(self) -> None:
        """Opens the files of the run folder that stay open."""
        self.writer = MetricsWriter(
            self.run_dir,
            shown.settings(to_dict(self.config)),
            command=files.command_line(),
            wandb=self.config.wandb,
            resumed_at=self.progress.steps,
            log=self.display.log,
        )
        self._closing.callback(self.writer.close)
        self.evaluations = Lines(self.run_dir / "evaluations.jsonl", self.display.log)
        self._closing.callback(self.evaluations.close)
        if self.filmer is not None:
            self.filmer.open(self.run_dir / "videos")
            self._closing.callback(self.filmer.close)

    def _watch(self) -> None:
        """Starts the alarms; each process has its own pool and its own alarms."""
        self.alarms = Alarms(
            self.run_dir,
            self.display,
            waiting_s=self.collector.waiting_s,
            busy=lambda: busy_envs(self.pool),
            replaced=lambda: replacements(self.pool),
            notifier=self.notifier,
        )
        self._closing.callback(self.alarms.close)

    def start(self) -> None:
        """Starts collecting, which alternates or overlaps with learning."""
        pipeline = self._make_pipeline()
        self._closing.callback(pipeline.close)
        self.updater = Updater(
            self.share,
            pipeline=pipeline,
            store=self.store,
            replay=self.replay,
            learner=self.learner,
            timings=self.timings,
            progress=self.progress,
            device=self.device,
            ranks=self.ranks,
        )
        self.saver = Saver(
            self.parts,
            pipeline=pipeline,
            checkpoints=self.checkpoints if self.ranks.is_first else None,
            display=self.display,
            alarms=self.alarms,
            seconds=self.config.checkpoint_seconds,
        )

    def _make_pipeline(self) -> Pipeline:
        """The pipeline, which has its own actors if it overlaps with learning."""
        c = self.share

        def actor(model: PolicyModel) -> Actor:
            result = Actor(
                model,
                num_actions=self.num_actions,
                device=self.device,
                dtype=self.dtype,
                generator=self.generators.actions,
                graphs=self.graphs,
            )
            result.version = self.learner.version  # above 0 in a resumed run
            self._closing.callback(result.close)
            return result

        if c.lag == 0:
            return InTurns(
                self.collector,
                self.store,
                actor(self.model),
                c.learner.unrolls_per_batch,
            )
        exact = c.mode == "sync"
        sets = c.lag + 1 if exact else 2
        return Overlapped(
            self.collector,
            self.store,
            [actor(copy.deepcopy(self.model)) for _ in range(sets)],
            self.model,
            unrolls=c.learner.unrolls_per_batch,
            lag=c.lag,
            exact=exact,
            device=self.device,
            timings=self.timings,
        )

    def close(self) -> None:
        """Stops threads and closes files; may be called again."""
        self._closing.close()


def _played(env: EnvConfig) -> str:
    """The levels or the task of a run, as text."""
    return f"levels {', '.join(env.levels)}" if env.levels else f"task {env.task}"


def _frames_in(shape: tuple[int, ...], stack_num: int) -> int:
    """Number of frames into which an observation can be divided."""
    return stack_num if len(shape) == 3 and shape[0] % stack_num == 0 else 1
