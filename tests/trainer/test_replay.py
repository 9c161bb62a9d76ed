"""Replay: what is kept, how often it is drawn, against a model in plain Python."""

from __future__ import annotations

import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.rollout import replay
from trainer.rollout.replay import EPSILON, TOTAL, PrioritizedReplay, check_fits, draw

CPU = torch.device("cpu")
SLOTS = 7


def make(capacity=4, num_slots=SLOTS, alpha=0.7, seed=1):
    return PrioritizedReplay(
        capacity,
        num_slots,
        alpha=alpha,
        device=CPU,
        generator=torch.Generator().manual_seed(seed),
    )


def filled(priorities, alpha=0.7):
    """Keeps slot i with priority i."""
    count = len(priorities)
    replay = make(count, count, alpha)
    assert replay.add(list(range(count)), torch.tensor(priorities)) == []
    return replay


class Model:
    """The same in plain Python; a dict is in the order of its first writes."""

    def __init__(self, capacity, alpha):
        self.capacity, self.alpha = capacity, alpha
        self.priorities = {}

    def add(self, slots, priorities):
        self.priorities.update(zip(slots, priorities, strict=True))
        count = max(0, len(self.priorities) - self.capacity)
        evicted = list(self.priorities)[:count]
        for slot in evicted:
            del self.priorities[slot]
        return evicted

    def update(self, slots, priorities):
        greatest = {}
        for slot, priority in zip(slots, priorities, strict=True):
            greatest[slot] = max(priority, greatest.get(slot, 0))
        for slot in self.priorities.keys() & greatest.keys():
            self.priorities[slot] = greatest[slot]

    def probabilities(self):
        masses = {s: (p + EPSILON) ** self.alpha for s, p in self.priorities.items()}
        total = math.fsum(masses.values())
        return {slot: mass / total for slot, mass in masses.items()}

    def weights(self, beta):
        chances = self.probabilities()
        count = len(chances)
        raw = {slot: (count * p) ** -beta for slot, p in chances.items()}
        return {slot: weight / max(raw.values()) for slot, weight in raw.items()}


def check_equal(replay, model, beta):
    """Contents, probabilities, and a sample with its weights."""
    assert replay.state_dict()["slots"] == list(model.priorities)
    assert len(replay) == len(model.priorities)
    if not model.priorities:
        return
    widths = replay.widths()
    assert widths.sum() <= TOTAL
    shares = (widths / widths.sum()).tolist()
    chances, weights = model.probabilities(), model.weights(beta)
    for slot, share in enumerate(shares):
        assert share == pytest.approx(chances.get(slot, 0), rel=1e-5, abs=0)
    sample = replay.sample(6, beta)
    assert sample.slots.dtype == torch.int64
    assert sample.weights.dtype == torch.float32
    for slot, weight in zip(*(part.tolist() for part in sample), strict=True):
        assert weight == pytest.approx(weights[slot], rel=1e-5)
    mean = sum(model.priorities.values()) / len(model.priorities)
    assert replay.statistics()["replay/priority"].item() == pytest.approx(mean)


PRIORITY = st.floats(0, 1000, width=32)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "update", "restore"]),
        st.lists(st.tuples(st.integers(0, SLOTS - 1), PRIORITY), max_size=SLOTS),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    operations=OPERATIONS,
    capacity=st.integers(1, SLOTS),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
)
def test_any_sequence_of_operations_equals_the_model(operations, capacity, alpha, beta):
    replay, model = make(capacity, alpha=alpha), Model(capacity, alpha)
    for name, pairs in operations:
        slots, priorities = [s for s, _ in pairs], [p for _, p in pairs]
        if name == "add":
            fresh = {s: p for s, p in pairs if s not in model.priorities}
            slots, priorities = list(fresh), list(fresh.values())
            evicted = replay.add(slots, torch.tensor(priorities))
            assert evicted == model.add(slots, priorities)
        elif name == "update":  # some of them twice, some not kept
            index = torch.tensor(slots, dtype=torch.int64)
            replay.update(index, torch.tensor(priorities))
            model.update(slots, priorities)
        else:
            state = replay.state_dict()
            replay = make(capacity, alpha=alpha, seed=99)
            replay.load_state_dict(state)
        check_equal(replay, model, beta)


def test_a_slot_let_go_since_it_was_drawn_stays_away():
    replay = make(capacity=2)
    replay.add([3, 5], torch.tensor([1.0, 1.0]))
    drawn = replay.sample(50, 0.4).slots
    assert set(drawn.tolist()) == {3, 5}
    assert replay.add([6], torch.tensor([1.0])) == [3]
    replay.update(drawn, torch.full((50,), 1e6))
    assert set(replay.sample(200, 0.4).slots.tolist()) <= {5, 6}
    assert replay.add([3], torch.tensor([1.0])) == [5]  # it may come back


def test_more_than_capacity_at_once_lets_go_of_new_ones_too():
    replay = make(capacity=2)
    replay.add([0], torch.ones(1))
    assert replay.add([4, 3, 2], torch.ones(3)) == [0, 4]
    assert set(replay.sample(50, 0.0).slots.tolist()) == {3, 2}


# -- how often ----------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_draws_are_as_frequent_as_priorities_say(alpha):
    priorities = [10.0 ** (i % 7 - 3) for i in range(53)]
    replay, model = make(51, 53, alpha), Model(51, alpha)
    evicted = replay.add(list(range(53)), torch.tensor(priorities))
    assert evicted == model.add(range(53), priorities) == [0, 1]
    count = 40_000
    seen = torch.bincount(replay.sample(count, 0.4).slots, minlength=53).tolist()
    assert seen[:2] == [0, 0]
    expected = {slot: count * p for slot, p in model.probabilities().items()}
    chi2 = sum((seen[slot] - e) ** 2 / e for slot, e in expected.items())
    # 50 degrees of freedom: mean 50, deviation 10; the seed is fixed.
    assert 20 < chi2 < 90


def test_evenly_spread_numbers_draw_each_slot_as_often_as_its_width_says():
    generator = torch.Generator().manual_seed(3)
    widths = torch.randint(0, 10**6, (300,), generator=generator)
    widths[::5] = 0
    count = 100_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    seen = torch.bincount(draw(widths, uniform), minlength=300)
    expected = widths.double() / widths.sum() * count
    assert (seen - expected).abs().max() <= 1
    assert seen[::5].sum() == 0


def test_65_536_priorities_over_nine_powers_of_ten_keep_their_probability():
    count = 65_536
    generator = torch.Generator().manual_seed(4)
    priorities = 10 ** (9 * torch.rand(count, generator=generator) - 3)
    replay = filled(priorities.tolist())
    widths = replay.widths()
    assert widths.sum() <= TOTAL
    masses = (priorities.double() + EPSILON).pow(0.7)
    expected = masses / masses.sum()
    shares = widths.double() / widths.sum()
    torch.testing.assert_close(shares, expected, rtol=2e-5, atol=0)
    # Float32 sums would lose the smallest: each is found, at both of its ends.
    ends = widths.cumsum(0)
    for inside in (ends - widths, ends - 1):
        uniform = (inside.double() + 0.5) / ends[-1]
        assert torch.equal(draw(widths, uniform), torch.arange(count))


def test_the_outermost_random_numbers_draw_kept_slots_only():
    below_one = math.nextafter(1.0, 0.0)
    uniform = torch.tensor([0.0, below_one, 1.0], dtype=torch.float64)
    for widths in ([0, 0, 3, 0, 5, 0, 0], [0, TOTAL, 0], [1], [0, 1, 0, TOTAL - 1, 0]):
        held = [i for i, width in enumerate(widths) if width]
        slots = draw(torch.tensor(widths), uniform).tolist()
        assert slots == [held[0], held[-1], held[-1]]


def test_random_numbers_are_fine_enough_for_the_narrowest_width(monkeypatch):
    drawn_with = []

    def spy(widths, uniform):
        drawn_with.append(uniform)
        return draw(widths, uniform)

    monkeypatch.setattr("trainer.rollout.replay.draw", spy)
    filled([1.0, 2.0]).sample(50, 0.4)
    points = drawn_with[0].double() * TOTAL
    assert (points == points.floor()).all()
    assert (points % 2**20 != 0).any()  # float32 numbers would all be multiples


def test_nothing_kept_is_too_small_to_be_drawn():
    replay = filled([0.0, 3e38])
    assert replay.widths().tolist() == [1, TOTAL // 2]


def test_weights_do_not_depend_on_what_else_was_drawn():
    replay = filled([0.1, 1.0, 10.0], alpha=1.0)
    sample = replay.sample(200, 0.5)
    for slot, mass in enumerate([0.11, 1.01, 10.01]):
        some = sample.weights[sample.slots == slot]
        expected = torch.full_like(some, (0.11 / mass) ** 0.5)
        torch.testing.assert_close(some, expected)
    assert torch.equal(replay.sample(20, 0.0).weights, torch.ones(20))
    assert not (replay.sample(9, 1.0).weights == 1).all()


# -- the device ---------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Notes operations and shapes; refuses those that wait for the device."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        moved = name == "_to_copy" and "device" in (kwargs or {})
        if moved or name in self.WAITING:
            raise AssertionError(f"{name} waits for the device")
        result = func(*args, **(kwargs or {}))
        self.seen.append((name, tuple(getattr(result, "shape", ()))))
        return result


def test_sampling_and_updating_never_wait_and_always_look_the_same():
    def operations(replay):
        with Operations() as mode:
            sample = replay.sample(8, 0.4)
            replay.update(sample.slots, sample.weights)
            replay.statistics()
        return mode.seen

    replay = make(capacity=4)
    address = replay._priorities.data_ptr()
    replay.add([0], torch.ones(1))
    few = operations(replay)
    replay.add([5, 1, 2, 3], torch.tensor([0.1, 5.0, math.nan, -2.0]))
    assert operations(replay) == few
    replay.load_state_dict(replay.state_dict())
    assert replay._priorities.data_ptr() == address
    with pytest.raises(AssertionError, match="waits"), Operations():
        replay.state_dict()


def test_statistics_of_priorities_and_draws():
    replay = filled([4.0, 1.0, 3.0, 2.0])
    replay.generator.manual_seed(0)
    drawn = replay.sample(6, 0.4).slots.tolist()
    found = {name: value.item() for name, value in replay.statistics().items()}
    names = [f"replay/priority_p{percent}" for percent in (10, 50, 90)]
    assert [found[name] for name in names] == [1.0, 2.0, 3.0]
    assert found["replay/distinct_draws"] == pytest.approx(len(set(drawn)) / 6)
    empty = make().statistics()
    assert empty["replay/priority_p50"] == 0
    assert "replay/distinct_draws" not in empty


def test_what_is_no_priority_is_counted_and_hides_nothing():
    replay = filled([1.0, 2.0, 3.0, 4.0])
    bad = torch.tensor([math.nan, math.inf, -1.0])
    replay.update(torch.tensor([0, 1, 2]), bad)
    assert replay.statistics()["replay/rejected"].item() == 3
    widths = replay.widths().double()
    least = (EPSILON / (4 + EPSILON)) ** 0.7
    torch.testing.assert_close(
        widths / widths[3], torch.tensor([least, least, least, 1.0]).double()
    )
    sample = replay.sample(2000, 0.4)
    assert set(sample.slots.tolist()) == {0, 1, 2, 3}
    assert torch.isfinite(sample.weights).all()
    fresh = make()
    fresh.add([1], bad[:1])
    assert fresh.statistics()["replay/rejected"].item() == 1


# -- saving, sizes, errors ----------------------------------------------------


def test_a_restored_replay_goes_on_like_the_one_saved():
    replay = make()
    replay.add([4, 0, 6, 2, 1], torch.tensor([0.1, 3.0, 0.5, 7.0, 0.2]))
    replay.update(torch.tensor([6]), torch.tensor([math.nan]))
    replay.sample(3, 0.4)
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    file.seek(0)
    other = make(seed=7)
    other.add([3, 5], torch.ones(2))
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        for ours, theirs in zip(
            replay.sample(20, 0.4), other.sample(20, 0.4), strict=True
        ):
            assert torch.equal(ours, theirs)
    assert replay.statistics() == other.statistics()
    assert replay.add([3, 4], torch.ones(2)) == other.add([3, 4], torch.ones(2))
    assert replay.state_dict()["slots"] == other.state_dict()["slots"] == [2, 1, 3, 4]


def test_a_state_that_does_not_fit_changes_nothing():
    saved = make()
    saved.add([0, 4, 2], torch.ones(3))
    # Too few places, and a store without slot 4.
    for small in (make(2), make(4, 4)):
        small.add([1], torch.ones(1))
        before = small.state_dict()
        with pytest.raises(ValueError, match=r"slots up to number 4.*resume with"):
            small.load_state_dict(saved.state_dict())
        after = small.state_dict()
        assert after["slots"] == [1]
        assert torch.equal(after["generator"], before["generator"])


def test_wrong_arguments_are_refused_and_change_nothing():
    replay = make(capacity=3)
    with pytest.raises(ValueError, match=r"empty: add\(\)"):
        replay.sample(1, 0.4)
    replay.add([2, 4], torch.ones(2))
    for slots in ([4], [7], [-1], [5, 5]):
        with pytest.raises(ValueError, match="distinct, 0 to 6 and not yet kept"):
            replay.add(slots, torch.ones(len(slots)))
    with pytest.raises(ValueError, match=r"shape \(2,\), but slots have shape \(1,\)"):
        replay.add([5], torch.ones(2))
    with pytest.raises(ValueError, match=r"shape \(1,\), but slots have shape \(2,\)"):
        replay.update(torch.tensor([2, 4]), torch.ones(1))
    for count, beta in ((0, 0.4), (1, -0.1), (1, 1.1), (1, math.nan)):
        with pytest.raises(ValueError, match="count must be at least 1 and beta"):
            replay.sample(count, beta)
    assert replay.state_dict()["slots"] == [2, 4]


def test_wrong_sizes_are_refused():
    for capacity in (0, SLOTS + 1):
        with pytest.raises(ValueError, match=f"1 to num_slots=7, got {capacity}"):
            make(capacity)
    for alpha in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"0 .uniform. to 1, got {alpha}"):
            make(alpha=alpha)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_store_without_memory_for_it_is_refused(monkeypatch, kind):
    free = 3_000_000_000
    other = "cuda" if kind == "cpu" else "cpu"
    available = {kind: free, other: 0}
    # Less than the machine has: the limit of a container, as the monitor finds it.
    monkeypatch.setattr(replay, "memory_left", lambda: (available["cpu"], 2**40))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: (available["cuda"], 2**40)
    )
    check_fits(free, torch.device(kind))
    with pytest.raises(ValueError, match=r"4\.50 GB, but \w+ has 3\.00 GB") as error:
        check_fits(4_500_000_000, torch.device(kind))
    for option in ("--replay-capacity", "--num-envs", "--unroll"):
        assert option in str(error.value)
