"""The processes of one run, called ranks, and their communication.

torchrun starts them and sets environment variables with the rank of each; they
communicate through torch.distributed (Gloo between CPUs, NCCL between GPUs). A run with
one process has the ranks `ALONE`, whose exchanges do nothing.

All ranks call the same exchanges in the same order, on their main threads. Rank 0 makes
the decisions (`first`) and writes the files. `seed_of` gives each random generator of
each rank its own seed.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer.machine.timings import Timings

Value = TypeVar("Value")

# How long a rank waits for the other ranks at the start, in seconds, and the
# environment variable that overrides it.
_JOIN_S = 300
JOIN_VARIABLE = "MARIO_JOIN_SECONDS"
_POLL_S = 0.02
_FOLLOW_S = 0.5
# Later, ranks wait for work of rank 0, such as an evaluation of many levels. The end of
# a process is detected at once, and torchrun detects the loss of a machine.
_PATIENCE = timedelta(hours=12)

# Errors of NCCL that are not of the connection: wrong arguments or calls, and the own
# GPU.
_DEFECTS_OF_NCCL = ("ncclInvalid", "ncclUnhandledCudaError")


class LostRankError(RuntimeError):
    """Another rank has ended or cannot be reached."""


class FirstRankError(RuntimeError):
    """Rank 0 has failed, and reports the reason itself."""


class Ranks:
    """The ranks of a run, from the view of one rank; `local` ones are of its machine.

    `timings` counts the time of exchanges, as `allreduce` (gradients; on a GPU only the
    time to start it) and `ranks` (all other exchanges, with waiting).
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        local_size: int = 1,
        group: Any = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.timings = Timings()
        self.ending = False  # all are ending; then the loss of torchrun adds nothing
        self._group = group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run folder."""
        return self.rank == 0

    def first(self, function: Callable[[], Value]) -> Value:
        """Calls a function on rank 0 only, and returns its result on all ranks."""
        if self._group is None:
            return function()
        result, failure = None, None
        if self.is_first:
            try:
                result = function()
            except BaseException as error:
                failure = error
        ends = failure.code if isinstance(failure, SystemExit) else None
        message: list[Any] = [(result, failure is not None, ends)]
        try:
            with self._exchange("ranks"):
                dist.broadcast_object_list(message, 0, self._group)
        except LostRankError:
            if failure is None:
                raise
        if failure is not None:
            raise failure
        value: Value
        value, failed, ends = message[0]
        if ends is not None:
            raise SystemExit(ends)
        if failed:
            raise FirstRankError("rank 0 has failed")
        return value

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank, on rank 0; elsewhere an empty list."""
        if self._group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        with self._exchange("ranks"):
            dist.gather_object(value, values, 0, self._group)
        return [value, *values[1:]] if values else []

    def scatter(self, values: Sequence[Value]) -> Value:
        """Returns on each rank its value from a list on rank 0, one per rank."""
        if self._group is None:
            return values[0]
        received: list[Any] = [None]
        sent = list(values) if self.is_first else None
        with self._exchange("ranks"):
            dist.scatter_object_list(received, sent, 0, self._group)
        value: Value = values[0] if self.is_first else received[0]
        return value

    def total(self, count: int) -> int:
        """The sum of the numbers of all ranks."""
        return int(self.sum(torch.tensor(count)))

    def sum(self, tensor: Tensor) -> Tensor:
        """Replaces a tensor by the sum over all ranks, in place; returns it."""
        if self._group is not None:
            with self._exchange("ranks"):
                dist.all_reduce(tensor, group=self._group)
        return tensor

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their means over all ranks, with equal bits on each."""
        if self._group is None:
            return
        with self._exchange("allreduce"):
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat, group=self._group)
            flat /= self.size
            _spread(flat, tensors)

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by the tensors of rank 0; arguments as in `average`."""
        if self._group is None or not tensors:
            return
        with self._exchange("ranks"):
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.broadcast(flat, 0, group=self._group)
            _spread(flat, tensors)

    def close(self) -> None:
        """Closes the connections; may be called again."""
        if self._group is not None:
            self._group = None
            dist.destroy_process_group()

    @contextmanager
    def _exchange(self, name: str) -> Iterator[None]:
        """Counts the time of an exchange, and explains the loss of a rank."""
        try:
            with self.timings(name):
                yield
        except RuntimeError as error:
            if not _is_loss(error):
                raise
            # torchrun is about to end this process, which must report the error first.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise LostRankError(
                f"another rank has ended or cannot be reached ({_line(error)})"
            ) from error


# The ranks of a run with one process.
ALONE = Ranks()


class Stream(enum.IntEnum):
    """The purpose of a generator; its number is part of the derived seed."""

    WEIGHTS = 0
    ACTIONS = 1
    MINIBATCHES = 2


def seed_of(seed: int, stream: Stream, rank: int = 0) -> int:
    """The 64-bit seed of one generator of a run, independent of its other seeds.

    Generators with the same seed would draw weights, actions and minibatches from the
    same sequence. NumPy derives the seeds (O'Neill 2015, "Developing a seed_seq
    alternative").
    """
    key = (int(stream), rank) if rank else (int(stream),)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])


def join() -> Ranks:
    """Waits for all ranks that torchrun started; without torchrun, it is `ALONE`."""
    env = os.environ
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= env.keys():
        return ALONE
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    seconds = _join_seconds()
    where = f"{env['MASTER_ADDR']}:{env.get('MASTER_PORT', '?')}"
    # NCCL connects with the first exchange of a GPU tensor.
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    patience = timedelta(seconds=seconds)
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=patience))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=PrefixStore(_meet(store, rank, size, seconds), store),
            rank=rank,
            world_size=size,
            timeout=patience,
        )
        group = dist.new_group(timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"rank {rank} of {size} on {socket.gethostname()} could not reach the "
            f"others at {where} within {seconds:g} s ({_line(error)}): start all "
            f"ranks, open the ports between their machines, and if there are several "
            f"networks, name one with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; "
            f"{JOIN_VARIABLE} sets the time to wait"
        ) from error
    ranks = Ranks(
        rank,
        size,
        local_rank=int(env.get("LOCAL_RANK", "0")),
        local_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
        group=group,
    )
    if "TORCHELASTIC_RUN_ID" in env:
        agent = os.getppid()
        threading.Thread(target=_follow, args=[ranks, agent], daemon=True).start()
    return ranks


def _follow(ranks: Ranks, agent: int) -> None:
    """Ends this process like SIGTERM when torchrun is gone, as by SIGUSR1."""
    while os.getppid() == agent:
        time.sleep(_FOLLOW_S)
    # Each rank looks at its own times; another may have ended the run already.
    if not ranks.ending:
        os.kill(os.getpid(), signal.SIGTERM)


def _meet(store: Any, rank: int, size: int, seconds: float) -> str:
    """Waits for all ranks, and agrees on a name that no earlier start has used."""
    # torchrun's store outlives the processes. Without a new name, entries of dead
    # processes, such as addresses, would be mistaken for those of their successors.
    own = uuid.uuid4().hex
    if rank:
        store.set(f"here/{rank}", own)
        store.wait([f"start/{own}"], timedelta(seconds=seconds))
        name: str = store.get(f"start/{own}").decode()
        store.set(f"met/{name}/{rank}", "")
        return name
    missing, deadline = set(range(1, size)), time.monotonic() + seconds
    while missing:
        for other in tuple(missing):
            here = f"here/{other}"
            # The entry may be of a dead process, whose successor joins later.
            if store.check([here]):
                store.set(f"start/{store.get(here).decode()}", own)
            if store.check([f"met/{own}/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"missing: {', '.join(map(str, sorted(missing)))}")
        time.sleep(_POLL_S)
    return own


def agent_folder() -> Path | None:
    """The folder of torchrun here, the same after each restart; None without one."""
    # LOG_DIR/attempt_N/LOCAL_RANK/error.json
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    folder = file.parents[2] if len(file.parts) > 3 else None
    return folder if folder is not None and folder.is_dir() else None


def says_first(text: str) -> bool:
    """Whether no rank of this machine has reported this text since the last restart."""
    folder = agent_folder()
    if folder is None:
        return True
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        with suppress(PermissionError):
            (folder / f"said-{attempt}-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@torch.no_grad()
def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies the parts of a flat tensor to tensors of other shapes."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _join_seconds() -> float:
    """Seconds to wait for the other ranks at the start."""
    text = os.environ.get(JOIN_VARIABLE, "").strip() or str(_JOIN_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"{JOIN_VARIABLE} must be a number of seconds, got {text!r}")
    return seconds


def _is_loss(error: RuntimeError) -> bool:
    """Whether an error of an exchange means that another rank cannot be reached.

    Gloo has no type of error for this. Its message begins with the source file of its
    transport, such as "[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer".
    Messages that begin with "[enforce fail at" report a defect: ranks exchanged tensors
    of different sizes. Messages of NCCL contain the name of the error.
    """
    text = str(error)
    if isinstance(error, dist.DistBackendError):
        return not any(name in text for name in _DEFECTS_OF_NCCL)
    if isinstance(error, dist.DistError):  # of the network, or of torchrun's store
        return True
    return re.match(r"\[\S*gloo[/\\]transport\S*\]", text) is not None


def _line(error: BaseException) -> str:
    """The first sentence of an error of PyTorch, without the source location."""
    line = str(error).strip().partition("\n")[0].partition(". ")[0]
    return re.sub(r"\[\S*\.\w+:\d+\] *", "", line).rstrip(". ")
