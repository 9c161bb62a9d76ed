"""The parts of a run that live in memory."""

from __future__ import annotations

import copy
import time
import warnings
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.config.tasks import game_levels, is_native, own_levels
from trainer.envs.pool import SEED_STRIDE, groups_of, make_pool
from trainer.explore import demonstrations
from trainer.explore.explorer import make_explorer
from trainer.film.record import Filmer
from trainer.learn import build_learner
from trainer.machine.cpu import Shards, available_cores, keep_large_blocks, thread_ids
from trainer.machine.device import SelfCheck, autocast_dtype, check_gpu, device_of
from trainer.machine.files import Lines
from trainer.machine.monitor import Monitor
from trainer.machine.ranks import ALONE, Ranks, Stream, seed_of
from trainer.machine.timings import Timings
from trainer.models import PolicyModel, build_model, describe_model, to_device
from trainer.models.native import computes
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.pipeline import InTurns, Overlapped, Pipeline
from trainer.rollout.replay import PrioritizedReplay, check_fits
from trainer.rollout.store import Rollouts
from trainer.session.alarms import Alarms
from trainer.session.files import Checkpoints
from trainer.show.dashboard import make_display
from trainer.show.display import Display, RunInfo
from trainer.show.tracking import MetricsWriter, Notifier

# Least number of episodes in the window of one of several processes.
_LEAST_WINDOW = 10


Part = TypeVar("Part", bound=Any)  # has a method close


@dataclass
class Progress:
    """Counters that continue when a run is resumed.

    Attributes:
        steps: environment steps learned from so far.
        seconds: wall-clock time so far.
        attempts: number of evaluations so far.
        next_attempt: number of episodes before the next evaluation may begin.
        evaluated: metrics of the last evaluation.
        best_score: score of the last episodes (`FinishedEpisodes.score`) in best.pt.
        ended: why the run ended; "": it did not.
    """

    steps: int = 0
    seconds: float = 0.0
    attempts: int = 0
    next_attempt: int = 0
    evaluated: dict[str, float] = field(default_factory=dict)
    best_score: float = 0.0
    ended: str = ""


class Run:
    """The parts of a run, which the functions of this folder take.

    Each process of a run has one. `training.open_run` makes it.

    Attributes:
        config: of the whole run, resolved.
        share: config of this process.
        episodes: of the whole run, on rank 0.
        own_episodes: of this process; the same object if there is only one process.
        checked: which features of the GPU work; the defaults on a CPU.
        graphs: whether acting and the gradient step are recorded as CUDA graphs.
        action_generator: draws the actions, on the device.
        ways: demonstrations that the run learns from.
        checkpoints: on rank 0, as are `writer`, `evaluations` and `episode_lines`.
        pipeline: exists after `start`, as does `started`.
        started: in seconds of time.perf_counter.
    """

    run_dir: Path
    checkpoints: Checkpoints
    writer: MetricsWriter
    evaluations: Lines
    episode_lines: Lines
    alarms: Alarms
    pipeline: Pipeline
    started: float

    def __init__(
        self,
        config: RunConfig,
        display: Display | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        config.validate()
        self.config, self.ranks = config.resolved(), ranks
        self.rank_config = share_of(self.config, ranks)
        self._closing = ExitStack()
        if display is None:
            shows = ranks.is_first
            display = make_display(config.dashboard) if shows else Display()
        self.display = self.owns(display)
        self.progress, self.timings = Progress(), Timings()
        self.ways = demonstrations.Demonstrations()

    def owns(self, part: Part) -> Part:
        """Closes a part with the run, before the parts that came earlier."""
        return self._closing.enter_context(closing(part))

    def close(self) -> None:
        """Stops threads and closes files; may be called again."""
        self._closing.close()

    def build(self) -> None:
        """Builds the parts that live in memory."""
        config, env, ranks = self.rank_config, self.rank_config.env, self.ranks
        notify, log = config.notify, self.display.log
        self.notifier = Notifier(notify, log) if notify else None
        self.device = device_of(config.device, ranks)
        torch.manual_seed(seed_of(config.seed, Stream.WEIGHTS))
        shards = self.owns(set_up_arithmetic(config, self.device))
        on_gpu = self.device.type == "cuda"
        graphs = on_gpu and config.cuda_graphs and not config.serial
        self.checked = check_gpu(self.device, graphs=graphs) if on_gpu else SelfCheck()
        self.graphs = graphs and self.checked.graphs
        asynchronous = config.mode == "async"
        threads_before = thread_ids()
        # Together, all ranks have the seeds of a run with one process.
        seed = config.seed * SEED_STRIDE + ranks.rank * env.num_envs
        self.pool = self.owns(make_pool(env, seed, asynchronous=asynchronous))
        if env.max_replacements and is_native(env.task):
            self.pool.set_replacement(env.max_replacements, env.replacement_episodes)
        emulation_threads = thread_ids() - threads_before
        self._build_model()
        self.learner = self.owns(
            build_learner(
                self.model,
                # Not in the config of the run: graphs may work on another machine.
                config if self.checked.graphs else replace(config, cuda_graphs=False),
                obs_shape=self.obs_shape,
                device=self.device,
                dtype=self.dtype,
                shards=shards,
                ranks=ranks,
            )
        )
        self._build_store()
        levels = env.levels or own_levels(env.task)
        game = () if env.levels else game_levels(env.task)
        self._build_episodes(whole_game=bool(game))
        rates = self.own_episodes.clear_rates
        self.explorer = make_explorer(self.pool, config, levels, rates, ranks.size)
        self.monitor = self.owns(Monitor(self.device, workers=emulation_threads))
        self.action_generator = torch.Generator(self.device)
        self.action_generator.manual_seed(
            seed_of(config.seed, Stream.ACTIONS, ranks.rank)
        )
        self.filmer: Filmer | None = None
        if config.videos and is_native(env.task):
            self.filmer = Filmer(self.pool, log)
        self.collector = self.owns(
            Collector(
                self.pool,
                self.store,
                groups=groups_of(env, asynchronous=asynchronous),
                asynchronous=asynchronous,
                episodes=OpenEpisodes(
                    env.num_envs,
                    levels=levels,
                    game=game,
                    num_stages=getattr(self.pool, "num_stages", None),
                ),
                finished=self.own_episodes,
                timings=self.timings,
                recorder=self.filmer.recorder if self.filmer else None,
                explorer=self.explorer,
                mixture=self.learner.mixture(self.action_generator),
                ranks=ranks.size,
            )
        )

    def _build_model(self) -> None:
        config = self.rank_config
        self.obs_shape = tuple(self.pool.observation_space.shape)
        self.num_actions = int(self.pool.action_space.n)
        model = build_model(config.model, self.obs_shape, self.num_actions)
        self.dtype = autocast_dtype(
            self.device, config.precision, own_code=computes(model, self.obs_shape)
        )
        self.model: PolicyModel = to_device(model, config.model.name, self.device)
        self.ranks.copy_first(list(self.model.parameters()))
        if config.replay.burn_in and not model.state_size:
            raise ValueError(
                f"burn_in={config.replay.burn_in} needs a network with a memory; "
                "choose --memory, or --burn-in 0"
            )

    def _build_store(self) -> None:
        """Makes the store of unrolls with room for replay, and makes replay."""
        config, shape = self.rank_config, self.obs_shape
        stack_num = config.env.stack_num
        divides = len(shape) == 3 and shape[0] % stack_num == 0
        spec: dict[str, Any] = {
            "unroll": config.learner.unroll,
            "burn_in": config.replay.burn_in,
            "obs_shape": shape,
            "stack_num": stack_num if divides else 1,
        }
        slots = store_slots(config)
        check_fits(slots * Rollouts.bytes_per_slot(**spec), self.device)
        self.replay: PrioritizedReplay | None = None
        if config.replay.replay_share:
            self.replay = PrioritizedReplay(
                config.replay.replay_capacity,
                slots,
                alpha=config.replay.replay_alpha,
                device=self.device,
                generator=self.learner.generator,
            )
        self.store = Rollouts(
            num_envs=config.env.num_envs,
            num_slots=slots,
            num_actions=self.num_actions,
            device=self.device,
            state_size=self.model.state_size,
            **spec,
        )

    def _build_episodes(self, *, whole_game: bool) -> None:
        """The windows of finished episodes: of the run, and of this process.

        Each process chooses levels by its own window. It spans about the same time as
        the window of the run, which has `ranks.size` times as many episodes.
        """
        levels, size = self.config.env.levels, self.ranks.size
        self.episodes = FinishedEpisodes(levels=levels, whole_game=whole_game)
        self.own_episodes = self.episodes
        if size > 1:
            self.own_episodes = FinishedEpisodes(
                max(_LEAST_WINDOW, self.episodes.window // size),
                levels=levels,
                whole_game=whole_game,
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

    def start(self) -> None:
        """Starts the clock, and collecting, which alternates or overlaps with learning.

        A pipeline that overlaps has its own actors.
        """
        self.started, self._seconds_before = time.perf_counter(), self.progress.seconds
        config = self.rank_config
        unrolls = config.learner.unrolls_per_batch
        if config.lag == 0:
            self.pipeline = self.owns(
                InTurns(self.collector, self.store, self._actor(self.model), unrolls)
            )
            return
        in_order = config.mode == "sync"
        sets = config.lag + 1 if in_order else 2
        self.pipeline = self.owns(
            Overlapped(
                self.collector,
                self.store,
                [self._actor(copy.deepcopy(self.model)) for _ in range(sets)],
                self.model,
                unrolls=unrolls,
                lag=config.lag,
                in_order=in_order,
                timings=self.timings,
            )
        )

    def _actor(self, model: PolicyModel) -> Actor:
        actor = Actor(
            model,
            num_actions=self.num_actions,
            dtype=self.dtype,
            generator=self.action_generator,
            graphs=self.graphs,
        )
        actor.version = self.learner.version  # above 0 in a resumed run
        return self.owns(actor)

    def seconds(self) -> float:
        """Wall-clock time of the run, including that before it was resumed."""
        return self._seconds_before + time.perf_counter() - self.started


def share_of(config: RunConfig, ranks: Ranks) -> RunConfig:
    """The config from which one of several processes builds its part of a run.

    The processes of a machine share its cores, unless options give the number of
    threads. Only rank 0 writes files.
    """
    share = share_cores(config.share(ranks.size), ranks.local_size)
    return share if ranks.is_first else replace(share, videos=False, profile=0)


def store_slots(config: RunConfig) -> int:
    """Unrolls that the store holds: in progress, waiting, in an update, for replay."""
    capacity = config.replay.replay_capacity if config.replay.replay_share else 0
    return config.working_slots + capacity


def store_bytes(config: RunConfig) -> int:
    """Bytes of the store on the device, replay included.

    The state of a memory is not counted; it is small beside the frames.
    """
    env = config.resolved().env
    shape = env.stack_num, env.img_height, env.img_width
    unroll, burn_in = config.learner.unroll, config.replay.burn_in
    per_slot = Rollouts.bytes_per_slot(unroll, burn_in, shape, env.stack_num)
    return store_slots(config) * per_slot


def out_of_memory_advice(config: RunConfig, error: BaseException) -> str:
    """What to lower when the device memory is full, with the current values."""
    env, learner, replay = config.env, config.learner, config.replay
    options = [
        f"--num-envs (now {env.num_envs})",
        f"--unrolls-per-batch ({learner.unrolls_per_batch})",
        f"--unroll ({learner.unroll})",
    ]
    if replay.replay_share:
        options.append(f"--replay-capacity ({replay.replay_capacity})")
    what = str(error).strip().split("\n")[0].split(". ")[0]
    return (
        f"out of device memory ({what}). The store of unrolls takes about "
        f"{store_bytes(config) / 2**20:,.0f} MB: lower {', '.join(options)}. The "
        "memory of a gradient step grows with its rows: lower --minibatch-size (now "
        f"{learner.minibatch_size}), or raise --grad-accum-steps "
        f"({learner.grad_accum_steps}), which changes nothing else"
    )


def set_up_arithmetic(config: RunConfig, device: torch.device) -> Shards:
    """Sets threads, precision and repeatability of PyTorch for the whole process."""
    if device.type == "cpu":
        keep_large_blocks()
        # Acting uses one thread beside the emulation; learning uses shards.
        torch.set_num_threads(1)
        return Shards(1 if config.serial else shard_count(config))
    # With bf16 and fp16, inputs rounded to 11 bits matter little: for the heads, whose
    # features have 8 or 11 bits, and for Muon, which tolerates it.
    tf32 = config.precision != "fp32"
    with warnings.catch_warnings():
        # PyTorch 2.9 and some later releases prefer fp32_precision. But after it is
        # set, torch.compile fails there, because it still reads allow_tf32.
        warnings.filterwarnings("ignore", "Please use the new API settings")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    # The fastest convolution may add in a different order in every run.
    torch.backends.cudnn.benchmark = config.mode == "async"
    exact = config.mode == "sync"
    torch.backends.cudnn.deterministic = exact
    # For gtrxl, whose gradient these kernels add in any order.
    torch.backends.cuda.enable_mem_efficient_sdp(not exact)
    torch.backends.cuda.enable_cudnn_sdp(not exact)
    return Shards(1)


def shard_count(config: RunConfig) -> int:
    """CPU threads of the learner; by default each gets at least 64 rows.

    With fewer rows, starting and joining the shards costs more than they save.
    """
    learner = config.learner
    useful = max(1, learner.minibatch_size // 64)
    return learner.learner_threads or min(available_cores(), useful)
