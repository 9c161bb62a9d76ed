"""Operators on the device: they run on CPU memory, and what they touch is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .memory import Memory, Touch
from .order import Order
from .transfers import Transfers

if TYPE_CHECKING:
    from .cuda import Cuda

CPU = torch.device("cpu")
# They allocate and launch nothing.
_ALLOCATE = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
    "aten::new_empty_strided",
}  # fmt: skip
# Their results are on the host, or have a shape that the host must know.
_WAIT = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
    "aten::masked_select", "aten::_unique2", "aten::unique_dim",
}  # fmt: skip
_COPY = {"aten::copy_", "aten::_to_copy"}
# Operators that touch only rows of their first argument, which argument has the
# numbers of the rows, and whether it is behind the number of a dimension.
_INDEX = {
    "aten::index": 1, "aten::index_put_": 1, "aten::_index_put_impl_": 1,
    "aten::embedding": 1,
    "aten::index_select": 2, "aten::index_copy_": 2, "aten::index_fill_": 2,
    "aten::index_add_": 2, "aten::scatter_reduce_": 2, "aten::scatter_": 2,
}  # fmt: skip


def is_label(value: Any) -> bool:
    """Whether a value is a tensor of the device."""
    return isinstance(value, Tensor) and value.device.type == "cuda"


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Arguments or results of an operator with other tensors."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([mapped(function, each) for each in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, each) for name, each in tree.items()}
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of arguments or results of an operator."""
    found: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(add, tree)
    return found


class Operation(NamedTuple):
    """An operator that a graph has recorded, on CPU memory."""

    name: str
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any
    touches: list[Touch]

    def run(self) -> None:
        """Runs it again, into the same memory."""
        new = tensors_in(self.func(*self.args, **self.kwargs))
        for old, result in zip(tensors_in(self.result), new, strict=True):
            if old.data_ptr() != result.data_ptr():
                old.copy_(result)


class Labels(TorchDispatchMode):
    """Runs the operators of a thread on tensors of the device."""

    def __init__(
        self, order: Order, memory: Memory, transfers: Transfers, cuda: Cuda
    ) -> None:
        super().__init__()
        self._order, self._memory = order, memory
        self._transfers, self._cuda = transfers, cuda

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "label_gpu":
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        labels = [tensor for tensor in tensors if is_label(tensor)]
        device = kwargs.get("device")
        if device is not None:
            device = torch.device(device).type
            kwargs = {**kwargs, "device": CPU} if device == "cuda" else kwargs
        if not labels and device != "cuda":
            return self._on_host(func, args, kwargs, tensors)
        return self._on_device(func, args, kwargs, tensors, labels, device)

    def _on_host(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        self._transfers.check_read(func._schema.name, tensors)
        locked = kwargs.get("pin_memory")
        if locked:
            kwargs = {**kwargs, "pin_memory": False}
        result = func(*args, **kwargs)
        return self._transfers.own(result) if locked else result

    def _on_device(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        tensors: list[Tensor],
        labels: list[Tensor],
        device: str | None,  # of the result, if it is given
    ) -> Any:
        name, graph = func._schema.name, self._cuda.graph
        to_host, from_host = _direction(name, args, device)
        hosts = [tensor for tensor in tensors if not is_label(tensor) and tensor.ndim]
        self._check_hosts(func, args, hosts, to_host or from_host)
        memory = {id(label): torch.ops.label_gpu.memory(label) for label in labels}
        args_, kwargs_ = mapped(lambda each: memory.get(id(each), each), (args, kwargs))
        kwargs_.pop("pin_memory", None)
        written = _written(func, args_, kwargs_)
        if graph is not None:
            graph.keep([tensor for tensor in written if not to_host])
        result = func(*args_, **kwargs_)
        stream = self._cuda.current.number
        if to_host:
            reads = [self._touch(label, memory[id(label)], False) for label in labels]
            self._to_host(name, stream, reads, result, kwargs, args)
            return args[0] if name == "aten::copy_" else result

        by_tensor = {id(memory[id(label)]): label for label in labels}
        by_storage = {_storage(memory[id(label)]): label for label in labels}
        new: list[Tensor] = []

        def label_of(value: Any) -> Any:
            if id(value) in by_tensor:
                return by_tensor[id(value)]
            old = by_storage.get(_storage(value))
            if old is not None:
                return torch.ops.label_gpu.view_of(old, value)
            label = self._memory.label(value, stream, graph)
            by_storage[_storage(value)] = label
            new.append(value)
            return label

        output = mapped(label_of, result)
        waits = name in _WAIT or _index_waits(name, args_)
        if not waits and (name in _ALLOCATE or not (written or new)):
            return output  # nothing was launched
        touches = self._touches(name, args_, labels, memory, written)
        touches += [
            Touch(self._memory.block(by_storage[_storage(tensor)]), tensor, (), True)
            for tensor in new
        ]
        if not any(touch.view.numel() for touch in touches):
            return output
        if graph is not None:
            graph.add(Operation(name, func, args_, kwargs_, result, touches))
            return output
        self._order.count("copies" if from_host else "launches", name)
        self._memory.launch(name, stream, touches)
        if from_host:
            self._from_host(stream, args, kwargs)
        if waits:
            self._wait(name, stream)
        return output

    def _check_hosts(
        self,
        func: Any,
        args: Any,
        hosts: list[Tensor],
        copies: bool,  # between the two
    ) -> None:
        """Raises what PyTorch raises for tensors of the host, and in recordings."""
        name, graph = func._schema.name, self._cuda.graph
        self._transfers.check_read(name, hosts)
        indexes = name in ("aten::index", "aten::index_put_", "aten::_index_put_impl_")
        if hosts and not copies and not indexes:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in hosts)
            self._order.report("device", f"{name} takes CPU tensors {shapes}")
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} got "
                f"cuda:0 and cpu ({shapes})"
            )
        if hosts and indexes:
            self._order.report("device", f"{name} has an index on the CPU")
        if graph is None:
            return
        waits = copies or name in _WAIT or _index_waits(name, args)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if waits or draws:
            what = "draws random numbers" if draws else "waits for the device"
            self._order.report("capture", f"{name} {what} in a recording")
            graph.broken = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def _touch(self, label: Tensor, view: Tensor, writes: bool) -> Touch:
        return Touch(self._memory.block(label), view, (), writes)

    def _touches(
        self,
        name: str,
        args: Any,
        labels: list[Tensor],
        memory: dict[int, Tensor],
        written: list[Tensor],
    ) -> list[Touch]:
        """What an operator reads and writes; of an indexed tensor only those rows."""
        targets = {id(tensor) for tensor in written}
        index = _index(name, args)
        result = []
        for label in labels:
            view = memory[id(label)]
            touch = self._touch(label, view, id(view) in targets)
            if index and view is args[0]:
                touch = touch._replace(index=index)
            result.append(touch)
        return result

    def _to_host(
        self,
        name: str,
        stream: int,
        reads: list[Touch],
        result: Any,
        kwargs: Any,
        args: Any,
    ) -> None:
        """A copy to the host; it waits unless the host's memory is page-locked."""
        self._memory.launch(f"{name} to the host", stream, reads)
        target = result if name == "aten::_to_copy" else args[0]
        runs_on = _non_blocking(args, kwargs)
        if runs_on and name == "aten::_to_copy":
            self._transfers.own(target)
        if runs_on and self._transfers.is_locked(target) and target.is_contiguous():
            self._order.count("copies to the host", name)
            self._transfers.begin(stream, target, to_host=True)
        else:
            self._wait(name, stream)

    def _from_host(self, stream: int, args: Any, kwargs: Any) -> None:
        """After a copy to the device: the host has waited unless it is page-locked."""
        source = next(arg for arg in reversed(args) if isinstance(arg, Tensor))
        if not _non_blocking(args, kwargs):
            self._wait("a copy to the device", stream)
        elif self._transfers.is_locked(source) and source.is_contiguous():
            self._transfers.begin(stream, source, to_host=False)

    def _wait(self, name: str, stream: int) -> None:
        self._order.count("waits", name)
        with self._order.lock:
            self._order.wait(self._order.streams[stream])

    def replay(self, operations: list[Operation]) -> None:
        """One launch of recorded operators."""
        stream, name = self._cuda.current.number, f"a graph of {len(operations)}"
        self._order.count("launches", name)
        self._order.count("replays", name)
        with self._order.lock, _disable_current_modes(), torch.no_grad():
            number = self._order.launch(stream, name)
            for operation in operations:
                for touch in operation.touches:
                    self._memory.use(name, stream, number, touch)
                operation.run()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _non_blocking(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))


def _direction(name: str, args: Any, device: str | None) -> tuple[bool, bool]:
    """Whether an operator copies to the host, and whether to the device."""
    if name not in _COPY:
        return False, False
    source = is_label(args[1 if name == "aten::copy_" else 0])
    target = is_label(args[0]) if name == "aten::copy_" else device != "cpu"
    return source and not target, target and not source


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (number, argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator writes in place."""
    values = [
        args[number] if number < len(args) else kwargs.get(name)
        for number, name in _written_arguments(func)
    ]
    return tensors_in(values)


def _index_waits(name: str, args: Any) -> bool:
    """Whether an index is a mask, whose number of rows the host must know."""
    if name not in ("aten::index", "aten::index_put_", "aten::_index_put_impl_"):
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _index(name: str, args: Any) -> tuple[Tensor | None, ...]:
    """Which rows an operator touches of its first argument; () for all."""
    if name not in _INDEX or not args[0].ndim:
        return ()
    index = args[_INDEX[name]]
    if _INDEX[name] == 1:
        return (index,) if isinstance(index, Tensor) else tuple(index)
    if name.startswith("aten::scatter") and args[0].ndim > 1:
        return ()
    return (*[None] * (args[1] % args[0].ndim), index)
