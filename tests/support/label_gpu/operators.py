"""Operators on the device: they run on CPU memory, and what they touch is recorded."""

from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from . import memory, order, transfers
from .memory import Touch

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
# Their results are on the host, or have a shape that the host must know.
_WAIT = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
    "aten::masked_select", "aten::_unique2", "aten::unique_dim",
}  # fmt: skip
_INDEX = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}
# Operators that touch only rows of their first argument, and which argument has the
# numbers of the rows; the third is behind the number of a dimension.
_ROWS = dict.fromkeys(_INDEX, 1) | {
    "aten::embedding": 1, "aten::index_select": 2, "aten::index_copy_": 2,
    "aten::index_fill_": 2, "aten::index_add_": 2, "aten::scatter_reduce_": 2,
    "aten::scatter_": 2,
}  # fmt: skip


def mapped(function, tree):
    """Arguments or results of an operator with other tensors."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([mapped(function, each) for each in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, each) for name, each in tree.items()}
    return tree


def tensors_in(tree):
    """The tensors of arguments or results of an operator."""
    found = []
    mapped(found.append, tree)
    return found


class Labels(TorchDispatchMode):
    """Runs the operators of a thread on tensors of the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func.namespace == "label_gpu":
            return func(*args, **kwargs)
        device = kwargs.get("device")
        device = torch.device(device).type if device is not None else ""
        locked = kwargs.pop("pin_memory", None)
        labels, hosts = [], []  # with their memory; tensors of the host

        def on_cpu(tensor):
            if not tensor.is_cuda:
                hosts.append(tensor)
                return tensor
            labels.append((tensor, memory.behind(tensor)))
            return labels[-1][1]

        given, (args, kwargs) = args, mapped(on_cpu, (args, kwargs))
        if labels or device == "cuda":
            way = _direction(func._schema.name, given, device)
            return _on_device(func, args, kwargs, labels, hosts, device, way)
        transfers.check_read(func._schema.name, hosts)
        result = func(*args, **kwargs)
        return transfers.page_locked(result) if locked else result


def _on_device(func, args, kwargs, labels, hosts, device, way):
    name, graph, (to_host, from_host) = func._schema.name, order.host.graph, way
    indexes = args[1] if name in _INDEX else ()
    masks = any(index is not None and index.dtype == torch.bool for index in indexes)
    waits = name in _WAIT or masks  # the host must know how many rows a mask has
    _check(func, waits, to_host or from_host, hosts)
    if device == "cuda":
        kwargs["device"] = CPU
    changed = (args[n : n + 1] or kwargs.get(key) for n, key in _changed(func))
    written = tensors_in(list(changed))
    if graph is not None:
        graph.keep(written)
    result = func(*args, **kwargs)
    targets, index = {id(tensor) for tensor in written}, _rows(name, args)
    touches = []
    for label, view in labels:
        of = index if index and view is args[0] else ()
        touches.append(Touch(memory.block_of(label), view, id(view) in targets, of))
    output, new = (result, []) if to_host else _labelled(result, labels)
    touches += [Touch(memory.block_of(label), view, True) for label, view in new]

    # What is named aten::empty_like, and so on, allocates only.
    launches = waits or to_host or ("empty" not in name and (written or new))
    if not launches or not any(touch.view.numel() for touch in touches):
        return output
    if graph is not None:
        graph.operations.append((func, args, kwargs, tensors_in(result), touches))
        return output
    if not to_host:
        # PyTorch takes a list of several data types one by one.
        kinds = {tensor.dtype for tensor in written}
        times = len(written) if "_foreach_" in name and len(kinds) > 1 else 1
        order.count("copies" if from_host else "launches", name, times)
    number = memory.launch(name, touches)
    if to_host or from_host:
        host = result if to_host else hosts[0]
        goes_on = kwargs.get("non_blocking", len(args) > 2 and args[2])
        if goes_on and to_host and host is not args[0]:
            transfers.page_locked(host)  # as PyTorch makes it
        begun = goes_on and transfers.begin(host, number, to_host=to_host)
        waits = not begun and (to_host or not goes_on)
    if waits:
        order.count("waits", name)
        order.wait(order.host.stream.clock)
    return output


def _direction(name, args, device):
    """Whether an operator copies to the host, and whether to the device."""
    source = target = True
    if name == "aten::copy_":
        target, source = args[0].is_cuda, args[1].is_cuda
    elif name == "aten::_to_copy":
        source, target = args[0].is_cuda, device != "cpu"
    return source and not target, target and not source


def _check(func, waits, is_copy, hosts):
    """Raises what PyTorch raises for tensors of the host, and in recordings."""
    name, hosts = func._schema.name, [each for each in hosts if each.ndim]
    transfers.check_read(name, hosts)
    if hosts and name in _INDEX:
        order.report("device", f"{name} has an index on the CPU")
    elif hosts and not is_copy:
        text = f"{name} takes CPU tensors {[tuple(each.shape) for each in hosts]}"
        order.report("device", text)
        raise RuntimeError(f"Expected all tensors to be on the same device: {text}")
    draws = torch.Tag.nondeterministic_seeded in func.tags
    if order.host.graph is not None and (waits or is_copy or draws):
        what = "draws random numbers" if draws else "waits for the device"
        order.report("capture", f"{name} {what} in a recording")
        order.host.graph.broken = True
        raise RuntimeError("operation not permitted when stream is capturing")


def _labelled(result, labels):
    """An operator's result on the device, and its new tensors: label and memory."""
    same = {id(view): label for label, view in labels}
    by_storage = {_storage(view): label for label, view in labels}
    new = []

    def label_of(value):
        if id(value) in same:
            return same[id(value)]
        old = by_storage.get(_storage(value))
        if old is not None:
            return memory.view_of(old, value)
        label = by_storage[_storage(value)] = memory.label(value)
        new.append((label, value))
        return label

    return mapped(label_of, result), new


def replay(operations):
    """One launch of recorded operators."""
    name = f"a graph of {len(operations)}"
    order.count("launches", name)
    order.count("replays", name)
    with order.lock, _disable_current_modes(), torch.no_grad():
        number = memory.launch(name, ())
        for func, args, kwargs, results, touches in operations:
            memory.use(name, number, touches)
            again = tensors_in(func(*args, **kwargs))
            for old, new in zip(results, again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _storage(tensor):
    return tensor.untyped_storage()._cdata


@cache
def _changed(func):
    """The arguments that an operator writes in place: their places and names."""
    pairs = enumerate(func._schema.arguments)
    return [(n, a.name) for n, a in pairs if a.alias_info and a.alias_info.is_write]


def _rows(name, args):
    """Which rows an operator touches of its first argument; () for all."""
    place = _ROWS.get(name)
    if place is None or not args[0].ndim:
        return ()
    index = args[place]
    if place == 1:
        return (index,) if isinstance(index, Tensor) else tuple(index)
    if name.startswith("aten::scatter") and args[0].ndim > 1:
        return ()
    return (*[None] * (args[1] % args[0].ndim), index)
