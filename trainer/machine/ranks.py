"""The processes of one run, its ranks: who is which, and what they tell each other.

torchrun starts them and says in environment variables which one each is; PyTorch
carries what they exchange (torch.distributed: Gloo between CPUs, NCCL between GPUs).
A run of one process has the ranks `ALONE`, for which every exchange is nothing at all.

All ranks call the same exchanges in the same order, on their main threads. Rank 0
decides what is decided once (`first`) and writes what a run writes.
"""

from __future__ import annotations

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

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer.machine.timings import Timings

Value = TypeVar("Value")

# How long a rank waits for the others at the start, in seconds, and the environment
# variable with another number.
_JOIN_S = 300
JOIN_VARIABLE = "MARIO_JOIN_SECONDS"
_POLL_S = 0.02
# Later they wait for what rank 0 does alone, such as an evaluation of many levels. The
# end of a process is noticed at once; torchrun notices that of a machine.
_PATIENCE = timedelta(hours=12)


class LostRankError(RuntimeError):
    """Another rank has ended, or cannot be reached any more."""


class FirstRankError(RuntimeError):
    """Rank 0 has failed, and says itself why."""


class Ranks:
    """The ranks of a run, as one of them sees them.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.
        local_rank: of this process among those of its machine.
        local_size: ranks on its machine.
        timings: counts the time of exchanges, as `allreduce` (gradients; on a GPU only
            the time to start it) and `ranks` (all else, waiting included).
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
        """One rank; `join` makes them.

        Args:
            rank: of this process.
            size: number of ranks.
            local_rank: among those of its machine.
            local_size: ranks on its machine.
            group: process group of PyTorch; None: a run of one process.
        """
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.timings = Timings()
        self._group = group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run folder."""
        return self.rank == 0

    def first(self, function: Callable[[], Value]) -> Value:
        """What a function gives on rank 0, which alone calls it; for all ranks.

        Raises:
            FirstRankError: it failed there, where its own exception is raised.
            SystemExit: as there.
            LostRankError: a rank is gone.
        """
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
        found, failed, ends = message[0]
        if ends is not None:
            raise SystemExit(ends)
        if failed:
            raise FirstRankError("rank 0 has failed")
        value: Value = found
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
        """To each rank its own of the values that rank 0 has, one for each."""
        if self._group is None:
            return values[0]
        own: list[Any] = [None]
        given = list(values) if self.is_first else None
        with self._exchange("ranks"):
            dist.scatter_object_list(own, given, 0, self._group)
        value: Value = values[0] if self.is_first else own[0]
        return value

    def total(self, count: int) -> int:
        """The sum of the numbers of all ranks."""
        if self._group is None:
            return count
        with self._exchange("ranks"):
            numbers = torch.tensor(count)
            dist.all_reduce(numbers, group=self._group)
        return int(numbers)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all ranks, in the place of this one's."""
        if self._group is not None:
            with self._exchange("ranks"):
                dist.all_reduce(tensor, group=self._group)
        return tensor

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their means over all ranks, with the same bits on each.

        Args:
            tensors: of one type and device, with the same shapes on all ranks.
        """
        if self._group is None:
            return
        with self._exchange("allreduce"):
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat, group=self._group)
            flat /= self.size
            _spread(flat, tensors)

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by those of rank 0; arguments as of `average`."""
        if self._group is None or not tensors:
            return
        with self._exchange("ranks"):
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.broadcast(flat, 0, group=self._group)
            _spread(flat, tensors)

    def close(self) -> None:
        """Ends the connections; may be called again."""
        if self._group is not None:
            self._group = None
            dist.destroy_process_group()

    @contextmanager
    def _exchange(self, name: str) -> Iterator[None]:
        """Counts the time of an exchange, and explains its errors.

        Raises:
            LostRankError: another rank is gone.
        """
        try:
            with self.timings(name):
                yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # torchrun is about to end this process, which has something to say first.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise LostRankError(
                f"another rank has ended or cannot be reached ({_line(error)})"
            ) from error


# Of a run of one process.
ALONE = Ranks()


def join() -> Ranks:
    """This process's ranks: those that torchrun started, or `ALONE`.

    Waits until all have come.

    Raises:
        RuntimeError: some have not come, or cannot be reached.
        ValueError: MARIO_JOIN_SECONDS is no number.
    """
    given = os.environ
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= given.keys():
        return ALONE
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    seconds = _join_seconds()
    where = f"{given['MASTER_ADDR']}:{given.get('MASTER_PORT', '?')}"
    # NCCL connects when the first tensor of a GPU is exchanged.
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
            f"others at {where} within {seconds:g} s ({_line(error)}): start all of "
            f"them, open the ports between their machines, and name the network with "
            f"GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where there are several; "
            f"{JOIN_VARIABLE} is how long to wait"
        ) from error
    return Ranks(
        rank,
        size,
        local_rank=int(given.get("LOCAL_RANK", "0")),
        local_size=int(given.get("LOCAL_WORLD_SIZE", "1")),
        group=group,
    )


def _meet(store: Any, rank: int, size: int, seconds: float) -> str:
    """Waits for all ranks, and agrees on a name that no earlier start has used.

    torchrun's store outlives its processes: what those that have died left in it, such
    as addresses, would be taken for that of their successors.

    Raises:
        RuntimeError: some ranks have not come.
    """
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
            # Perhaps of one that has died: then its successor comes later.
            if store.check([here]):
                store.set(f"start/{store.get(here).decode()}", own)
            if store.check([f"met/{own}/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"not there: {', '.join(map(str, sorted(missing)))}")
        time.sleep(_POLL_S)
    return own


def agent_folder() -> Path | None:
    """The folder of torchrun's process on this machine, the same after each restart.

    None where there is none: not started by torchrun, or with --log-dir /dev/null.
    """
    # LOG_DIR/attempt_N/LOCAL_RANK/error.json
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    folder = file.parents[2] if len(file.parts) > 3 else None
    return folder if folder is not None and folder.is_dir() else None


def restarts_left() -> int:
    """How often torchrun will still start the ranks anew."""
    most, count = (
        int(os.environ.get(f"TORCHELASTIC_{name}", "0"))
        for name in ("MAX_RESTARTS", "RESTART_COUNT")
    )
    return most - count


def says_first(text: str) -> bool:
    """Whether no other rank of this machine has said the same since the last restart.

    What all ranks find wrong, such as an option, is then said once.
    """
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


def on_device(value: Any, device: torch.device) -> Any:
    """A nest of dicts and lists with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: on_device(part, device) for key, part in value.items()}
    if isinstance(value, list):
        return [on_device(part, device) for part in value]
    return value


@torch.no_grad()
def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Writes the parts of a flat tensor to tensors of other shapes."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _join_seconds() -> float:
    """How long to wait for the others at the start."""
    given = os.environ.get(JOIN_VARIABLE, "").strip() or str(_JOIN_S)
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"{JOIN_VARIABLE} must be a number of seconds, got {given!r}")
    return seconds


def _line(error: BaseException) -> str:
    """The first sentence of an error of PyTorch's, without the place in its source."""
    line = str(error).strip().partition("\n")[0].partition(". ")[0]
    return re.sub(r"\[\S*\.\w+:\d+\] *", "", line).rstrip(". ")
