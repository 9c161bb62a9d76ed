"""A tensor of one stream that another stream uses is announced to the allocator.

PyTorch gives the memory of a dropped tensor to the next one of its stream, even while
another stream still reads it. The collecting code of a GPU runs here on a CPU, on a
fake of torch.cuda, and every operation is noted with its stream.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.config import network
from trainer.config.schema import ModelConfig
from trainer.machine import cuda
from trainer.machine.cuda import HostToDevice
from trainer.machine.timings import Timings
from trainer.models import build_model
from trainer.rollout import arrays
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.store import Rollouts

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ENVS, T = 6, 5
GRU = network.GRU(8)


class Uses(TorchDispatchMode):
    """Notes which stream makes each tensor, and which other streams use it.

    What was made before, such as weights and the store, lasts as long as a run.
    """

    def __init__(self, fake):
        super().__init__()
        self._fake = fake
        self._made = {}  # address of the memory: stream
        self._kept = []  # so that no two tensors have the same address
        self.foreign, self.announced = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        stream = self._fake.current
        given = {address(tensor) for tensor in tensors_of((args, kwargs))}
        self.foreign |= {
            (at, stream) for at in given if self._made.get(at, stream) != stream
        }
        for tensor in tensors_of(result):
            if address(tensor) not in given:  # neither a view nor written in place
                self._made[address(tensor)] = stream
                self._kept.append(tensor)
        return result

    def announce(self, tensor, stream):
        self.announced.add((address(tensor), stream.name))


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def address(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def fake(monkeypatch):
    """A GPU whose tensors are on the CPU."""
    result = FakeCuda()
    monkeypatch.setattr(cuda, "_cuda", result)
    monkeypatch.setattr(cuda, "_free_streams", defaultdict(list))
    monkeypatch.setattr(cuda, "_copies", {})
    monkeypatch.setattr(arrays, "on_host", lambda device: False)
    to = torch.Tensor.to

    def move(tensor, *where, **options):
        if where != (GPU,):
            return to(tensor, *where, **options)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        copy.numpy()[...] = tensor.numpy()  # the host's tensor is of no stream
        return copy

    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return result


class System:
    """A collector in sync mode that takes its tensors for a GPU's."""

    def __init__(self, pool, memory=None):
        self.pool = pool
        shape = pool.observation_space.shape
        torch.manual_seed(0)
        model = build_model(ModelConfig(memory=memory), shape, 3)
        self.actor = Actor(
            model, num_actions=3, dtype=None, generator=torch.Generator()
        )
        self.rollouts = Rollouts(
            num_envs=ENVS, num_slots=10 * ENVS, unroll=T, obs_shape=shape,
            num_actions=3, device=CPU, stack_num=4, state_size=model.state_size,
        )  # fmt: skip
        self.collector = Collector(
            pool, self.rollouts, groups=2, asynchronous=False,
            episodes=OpenEpisodes(ENVS), finished=FinishedEpisodes(), timings=Timings(),
        )  # fmt: skip
        self.collector._stage = HostToDevice(GPU, pool)
        self.collector._device = self.rollouts.device = GPU
        self.rollouts._frames._device = GPU

    def collect(self):
        self.collector.collect(ENVS, lambda: self.actor, lambda: True)


def stream(fake, name):
    return fake.stream(SimpleNamespace(name=name))


def check(uses):
    assert uses.foreign, "nothing crosses: the test does not see what it should"
    missing = uses.foreign - uses.announced
    assert not missing, f"{len(missing)} uses of other streams' tensors"


@pytest.fixture
def uses(fake, monkeypatch):
    result = Uses(fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *of: result.announce(*of))
    return result


@pytest.mark.parametrize("memory", [None, GRU], ids=["no memory", "gru"])
def test_the_first_batch_of_the_main_thread(fake, fake_pool, uses, memory):
    """With lag 1 and more, the collecting thread decides on its last rows."""
    system = System(fake_pool(ENVS, ENVS), memory)
    with uses:
        system.collector.start()
        with stream(fake, "main"):
            system.collect()
        with stream(fake, "collector"):
            system.collect()
            system.collect()
    check(uses)


@pytest.mark.parametrize("memory", [None, GRU], ids=["no memory", "gru"])
def test_a_resumed_run(fake, fake_pool, uses, memory):
    """The rows are restored in the default stream, before there is any other."""
    first, resumed = (System(fake_pool(ENVS, ENVS), memory) for _ in range(2))
    first.collector.start()
    first.collect()
    state = first.collector.state(())
    with uses:
        with stream(fake, "default"):
            resumed.collector.restore(state)
            resumed.collector.start()
        with stream(fake, "main"):
            resumed.collect()
    check(uses)


def test_a_store_that_grows(fake, fake_pool, uses):
    """The collecting thread makes it larger, the learner's reads it."""
    system = System(fake_pool(ENVS, ENVS, steps=(1, 0)))
    with uses:
        system.collector.start()
        before = system.rollouts._frames.frames
        with stream(fake, "collector"):
            while system.rollouts._frames.frames is before:
                system.collect()
                slots = system.rollouts.take(ENVS)
                system.rollouts.release(slots)
            system.collect()
        system.rollouts.device = CPU  # a batch is made in its device
        with stream(fake, "learner"):
            system.rollouts.batch(system.rollouts.take(ENVS))
    check(uses)
