"""Collecting beside learning: which weights, how far ahead, and how it ends."""

import threading
import time

import numpy as np
import pytest
import torch

from trainer.config.schema import ModelConfig
from trainer.machine.cuda import ACTING, own_stream
from trainer.machine.timings import Timings
from trainer.models import build_model
from trainer.rollout import pipeline
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.pipeline import InTurns, Overlapped, Weights
from trainer.rollout.store import Rollouts

CPU = torch.device("cpu")
T = 4
ENVS = 6


@pytest.fixture
def make_system(fake_pool):
    """Makes systems; in the end all are closed, and no thread is left."""
    before, made = set(threading.enumerate()), []

    def make(*, lag, in_order, **options):
        pool = fake_pool(ENVS, ENVS if in_order else 4)
        made.append(System(pool, lag=lag, in_order=in_order, **options))
        return made[-1]

    yield make
    for system in made:
        system.pipeline.close()
    assert set(threading.enumerate()) <= before


def make_model(value=0.0):
    torch.manual_seed(0)
    model = build_model(ModelConfig(), (4, 36, 36), 3)
    with torch.no_grad():
        # The critic says nothing but its bias, which tells the weights.
        model.head.value.weight.zero_()
        model.head.value.bias.fill_(value)
    return model


def make_actors(count):
    generator = torch.Generator().manual_seed(1)
    return [
        Actor(make_model(), num_actions=3, dtype=None, generator=generator)
        for _ in range(count)
    ]


class System:
    """A pipeline over a fake pool, and a learner that only counts."""

    def __init__(self, pool, *, lag, in_order, unrolls=ENVS):
        self.rollouts = Rollouts(
            num_envs=ENVS,
            num_slots=2 * ENVS + (lag + 2) * unrolls,
            unroll=T,
            obs_shape=(4, 36, 36),
            num_actions=3,
            device=CPU,
            stack_num=4,
        )
        self.pool, self.timings = pool, Timings()
        self.collector = Collector(
            pool,
            self.rollouts,
            groups=2,
            asynchronous=not in_order,
            episodes=OpenEpisodes(ENVS),
            finished=FinishedEpisodes(),
            timings=self.timings,
        )
        self.model, self.version = make_model(), 0
        if lag == 0:
            self.pipeline = InTurns(
                self.collector, self.rollouts, make_actors(1)[0], unrolls
            )
            return
        self.pipeline = Overlapped(
            self.collector,
            self.rollouts,
            make_actors(lag + 1 if in_order else 2),
            self.model,
            unrolls=unrolls,
            lag=lag,
            in_order=in_order,
            timings=self.timings,
        )

    def update(self, pause=0.0):
        """One round of the training loop, with 1 added to the critic's bias."""
        slots = self.pipeline.next_batch()
        batch = self.rollouts.batch(slots)
        time.sleep(pause)
        with torch.no_grad():
            self.model.head.value.bias += 1
            self.model.head.policy.bias[0] += 0.3
        self.rollouts.release(slots)
        self.version += 1
        self.pipeline.publish(self.version)
        return batch


@pytest.mark.parametrize("in_order", [True, False])
def test_the_collecting_thread_has_priority(make_system, monkeypatch, in_order):
    """All environments wait for its kernels, and nothing for the learner's."""
    asked = []

    def note(device, priority=0):
        asked.append((threading.current_thread().name, priority))
        return own_stream(device, priority)

    monkeypatch.setattr(pipeline, "own_stream", note)
    system = make_system(lag=1, in_order=in_order)
    for _ in range(2):
        system.update()
    assert asked == [("collector", ACTING)]


@pytest.mark.parametrize("in_order", [True, False])
def test_weights_are_copied_and_passed_on(in_order):
    actors = make_actors(3)
    weights = Weights(actors, CPU, in_order=in_order)
    assert weights.current is actors[0]
    weights.publish(make_model(1.0), 1)
    weights.publish(make_model(2.0), 2)
    assert weights.current.version == 0
    for version in (1, 2):
        assert weights.advance()
        assert weights.current.version == version
        assert weights.current.model.head.value.bias == version
    assert not in_order or actors[0].model.head.value.bias == 0
    weights.close()


def test_the_newest_weights_win_where_they_may():
    weights = Weights(make_actors(2), CPU, in_order=False)
    assert weights.advance()  # nothing new: the old ones stay
    assert weights.current.version == 0
    for version in (1, 2, 3):
        weights.publish(make_model(float(version)), version)
    assert weights.advance()
    assert weights.current.version == 3
    assert weights.current.model.head.value.bias == 3
    weights.close()
    assert not weights.advance()


def test_every_version_is_used_and_none_is_written_meanwhile():
    """A reader and a writer that hold each other up, for a hundred versions."""
    weights = Weights(make_actors(3), CPU, in_order=True)
    seen, torn = [], []

    def read():
        while weights.advance():
            actor = weights.current
            before = (actor.version, actor.model.head.value.bias.item())
            time.sleep(0.001)
            after = (actor.version, actor.model.head.value.bias.item())
            seen.append(before[0])
            if before != after or before[0] != before[1]:
                torn.append((before, after))

    reader = threading.Thread(target=read)
    reader.start()
    model = make_model()
    for version in range(1, 101):
        with torch.no_grad():
            model.head.value.bias.fill_(version)
        weights.publish(model, version)
    while len(seen) < 100:
        time.sleep(0.001)
    weights.close()
    reader.join(10)
    assert seen == list(range(1, 101))
    assert torn == []


@pytest.mark.parametrize("waiting", ["writer", "reader"])
def test_closing_wakes_whoever_waits(waiting):
    weights = Weights(make_actors(1 if waiting == "writer" else 2), CPU, in_order=True)
    results = []

    def wait():
        if waiting == "writer":
            results.append(weights.publish(make_model(), 1))
        else:
            results.append(weights.advance())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    assert not results
    weights.close()
    thread.join(10)
    assert results == [None if waiting == "writer" else False]


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_sync_batch_is_exactly_so_many_policies_old(make_system, lag, rounds):
    system = make_system(lag=lag, in_order=True, unrolls=rounds * ENVS)
    for k in range(8):
        batch = system.update(pause=0.01 * (k % 2))
        assert batch.versions.shape == (T + 1, rounds * ENVS)
        assert batch.versions.eq(max(0, k - lag)).all()
        if lag:
            # The weights themselves, not only their number.
            spread = batch.values - max(0, k - lag)
            assert spread.abs().max() < 0.9
    system.pipeline.close()


def test_learned_from_unrolls_are_not_written(make_system):
    """The collector decides on their last rows while they are learned from."""
    system = make_system(lag=1, in_order=True)
    for _ in range(6):
        slots = system.pipeline.next_batch()
        before = system.rollouts.batch(slots)
        time.sleep(0.02)
        after = system.rollouts.batch(slots)
        for name, one, two in zip(before._fields, before, after, strict=True):
            assert name == "frames" or torch.equal(one, two), name
        system.rollouts.release(slots)
        system.version += 1
        system.pipeline.publish(system.version)
    system.pipeline.close()


@pytest.mark.parametrize("lag", [1, 2])
def test_an_async_collector_is_held_back(make_system, lag):
    system = make_system(lag=lag, in_order=False)
    lags = []
    for k in range(12):
        batch = system.update(pause=0.05)
        lags.append(k - batch.versions[:-1].float().mean().item())
        # A recv completes two unrolls more than fit, at most all of its four.
        assert system.rollouts.num_full <= lag * ENVS + 3
    # Rows of an unroll are up to one batch older than its last ones.
    assert np.mean(lags[4:]) > 0
    assert max(lags) <= lag + 1.5
    steps = system.collector.steps
    time.sleep(0.3)  # nothing is learned: it stops when enough unrolls wait
    waiting = system.collector.steps
    time.sleep(0.2)
    assert system.collector.steps == waiting
    assert waiting - steps <= (lag + 1) * ENVS * T + 4
    assert system.rollouts.num_full >= lag * ENVS
    system.pipeline.close()
    assert system.timings.shares()["wait_learner"] > 0


def test_the_next_batch_is_collected_while_one_is_learned_from(make_system):
    """Taking a batch makes room; nothing has to be learned first."""
    system = make_system(lag=1, in_order=False)
    system.update()
    for _ in range(4):
        slots = system.pipeline.next_batch()
        deadline = time.monotonic() + 30
        while system.rollouts.num_full < ENVS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert system.rollouts.num_full >= ENVS
        system.rollouts.release(slots)
    system.pipeline.close()


def test_an_async_batch_is_collected_with_new_weights(make_system):
    system = make_system(lag=1, in_order=False)
    versions = [system.update(pause=0.02).versions.max().item() for _ in range(10)]
    assert versions == sorted(versions)
    assert versions[-1] >= 6
    system.pipeline.close()


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_of_the_collector_reaches_the_learner(make_system, in_order):
    system = make_system(lag=1, in_order=in_order)
    recv, left = system.pool.recv, [40]

    def fail():
        left[0] -= 1
        if left[0] < 0:
            raise OSError("env 3: it broke")
        return recv()

    system.pool.recv = fail

    def learn():
        for _ in range(50):
            system.update()

    with pytest.raises(RuntimeError, match="collecting failed: env 3") as caught:
        learn()
    assert isinstance(caught.value.__cause__, OSError)
    system.pipeline.close()


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("updates", [0, 1, 2, 5])
def test_it_closes_from_every_state(make_system, in_order, lag, updates):
    system = make_system(lag=lag, in_order=in_order)
    for _ in range(updates):
        system.update()
    time.sleep(0.02)
    system.pipeline.close()
    if lag:
        steps = system.collector.steps
        time.sleep(0.02)
        assert system.collector.steps == steps


def test_it_closes_while_a_batch_is_learned_from(make_system):
    system = make_system(lag=1, in_order=True)
    system.update()
    system.pipeline.next_batch()
    system.pipeline.close()
    system.pipeline.publish(2)  # the loop may be here: nobody takes it, nobody waits
