"""Unrolls hold what the pool said, in order, for every environment."""

import logging

import numpy as np
import pytest
import torch

from trainer.rollout import arrays, frames, store
from trainer.rollout.frames import observations
from trainer.rollout.replay import Sample
from trainer.rollout.store import Rollouts

T = 4
CPU = torch.device("cpu")


def make(num_envs=6, extra=8, shape=(4, 36, 36), **options):
    options = {"stack_num": shape[0], "state_size": 2} | options
    return Rollouts(
        num_envs=num_envs,
        num_slots=num_envs + extra,
        unroll=T,
        obs_shape=shape,
        num_actions=3,
        device=CPU,
        **options,
    )


def decided(actions, logits, values, version):
    """The records of decisions."""
    return store.decisions(actions, logits, values, torch.tensor([version]))


def pixels_of(rollouts, batch):
    """(K, B, C, H, W) observations of a batch."""
    return observations(batch.frames, batch.stacks, rollouts.obs_shape)


def act(pool, rollouts, rng, version=0):
    """One recv with random decisions; gives what was stored, row by row."""
    obs, reward, terminated, truncated, info = pool.recv()
    n, env_id, done = len(reward), info["env_id"], terminated | truncated
    first = info["elapsed_step"] == 0
    actions = torch.from_numpy(rng.integers(0, 3, n))
    logits = torch.from_numpy(rng.normal(size=(n, 3))).float()
    values = torch.from_numpy(rng.normal(size=n)).float()
    state = torch.from_numpy(rng.normal(size=(n, 2))).float()
    rows = rollouts.write_env(
        env_id,
        first,
        torch.from_numpy(obs),
        reward,
        done,
        truncated,
        state,
    )
    rollouts.write_policy(rows, decided(actions, logits, values, version))
    pool.send(actions.numpy().astype(np.int32), env_id)
    names = "obs rewards done truncated is_first actions logits values state".split()
    fields = (obs, reward, done, truncated, first, actions, logits, values, state)
    told = []
    for i, env in enumerate(env_id.tolist()):
        row = {name: np.asarray(f[i]) for name, f in zip(names, fields, strict=True)}
        told.append((env, row | {"versions": np.asarray(version)}))
    return told


def check_roles(rollouts, kept=()):
    """Every slot has one role; those taken are `kept`."""
    roles = [*rollouts._slot.tolist(), *rollouts._free, *rollouts._full, *kept]
    assert sorted(roles) == list(range(rollouts.num_slots))


def play(pool, rollouts, recvs):
    """Acts and takes every unroll; gives rows and unrolls of each environment."""
    rng = np.random.default_rng(1)
    told = {env: [] for env in range(pool.num_envs)}
    taken = {env: [] for env in range(pool.num_envs)}
    pool.async_reset()
    for version in range(recvs):
        for env, row in act(pool, rollouts, rng, version):
            told[env].append(row)
        check_roles(rollouts)
        while rollouts.num_full:
            slots = rollouts.take(1)
            batch = rollouts.batch(slots)
            taken[_owner_of(batch, rollouts, told)].append(
                (pixels_of(rollouts, batch)[:, 0], batch)
            )
            rollouts.release(slots)
    return told, taken


def _owner_of(batch, rollouts, told):
    """The environment whose row this is, by its random value."""
    value = batch.values[-1, 0].item()
    return next(
        env
        for env, rows in told.items()
        if any(row["values"] == value for row in rows[-2:])
    )


@pytest.fixture(params=["numpy", "kernels"], autouse=True)
def written_by(request, monkeypatch):
    """Stores are written as on a CPU, and as on a GPU."""
    if request.param == "kernels":
        monkeypatch.setattr(arrays, "on_host", lambda device: False)
    return request.param


@pytest.mark.parametrize("burn_in", [0, 1, 2, T])
@pytest.mark.parametrize("stack", [1, 4])
def test_unrolls_are_what_the_pool_returned(fake_pool, burn_in, stack):
    pool = fake_pool(stack=stack)
    rollouts = make(shape=(stack, 36, 36), burn_in=burn_in)
    told, taken = play(pool, rollouts, 70)
    length = burn_in + T + 1
    for env, unrolls in taken.items():
        assert len(unrolls) >= 8
        for number, (pixels, batch) in enumerate(unrolls):
            start = number * T
            rows = told[env][start : start + length]
            assert len(rows) == length
            assert np.array_equal(pixels, np.stack([row["obs"] for row in rows]))
            for name in set(rows[0]) - {"obs", "state"}:
                stored = getattr(batch, name)[:, 0].numpy()
                expected = np.stack([row[name] for row in rows])
                assert np.array_equal(stored, expected), name
            # The memory before row 0; at the very start there is none.
            expected = rows[0]["state"] if number else np.zeros(2)
            assert np.array_equal(batch.state[0], expected)
    starts = sum(row["is_first"] for rows in told.values() for row in rows)
    assert starts > 30


def test_frames_are_stored_once(fake_pool):
    pool, rollouts = fake_pool(steps=(100, 0)), make(extra=60)
    pool.async_reset()
    rng = np.random.default_rng(1)
    for _ in range(40):
        act(pool, rollouts, rng)
    batch = rollouts.batch(rollouts.take(24))
    # A whole stack for row 0, one frame for each row behind it.
    for column in range(24):
        assert batch.stacks[:, column].unique().numel() == 4 + T


@pytest.mark.parametrize("burn_in", [0, T])
def test_very_short_episodes_make_the_store_grow(fake_pool, caplog, burn_in):
    pool = fake_pool(steps=(1, 0))
    rollouts = make(burn_in=burn_in)
    before = rollouts._frames.frames.shape[0]
    with caplog.at_level(logging.WARNING):
        told, taken = play(pool, rollouts, 60)
    assert rollouts._frames.frames.shape[0] > before
    warnings = [r for r in caplog.records if "grows from" in r.getMessage()]
    assert len(warnings) == 1
    for env, unrolls in taken.items():
        for number, (pixels, _) in enumerate(unrolls):
            rows = told[env][number * T : number * T + len(pixels)]
            assert np.array_equal(pixels, np.stack([row["obs"] for row in rows]))


def test_a_batch_outlives_the_growth_of_the_store(fake_pool):
    pool, rollouts = fake_pool(steps=(30, 0)), make(extra=80)
    rng = np.random.default_rng(1)
    pool.async_reset()
    while rollouts.num_full < 2:
        act(pool, rollouts, rng)
    slots = rollouts.take(2)
    old = rollouts.batch(slots)
    expected = pixels_of(rollouts, old)
    pool.steps = (1, 0)
    while rollouts._frames.frames is old.frames:
        act(pool, rollouts, rng)
    assert torch.equal(pixels_of(rollouts, old), expected)
    assert torch.equal(pixels_of(rollouts, rollouts.batch(slots)), expected)


def test_truncation_is_kept_apart_from_done(fake_pool):
    pool, rollouts, rng = fake_pool(), make(extra=120), np.random.default_rng(1)
    pool.async_reset()
    for _ in range(100):
        act(pool, rollouts, rng)
    batch = rollouts.batch(rollouts.take(60))
    assert batch.truncated.any()
    assert (batch.done & ~batch.truncated).any()
    assert not (batch.truncated & ~batch.done).any()


def test_a_bootstrap_completes_unrolls_before_anything_is_decided(fake_pool):
    """What is decided on the rows later is the next unroll's alone."""
    pool, rollouts = fake_pool(6, 6), make()
    pool.async_reset()
    rng = np.random.default_rng(1)
    for _ in range(T):
        act(pool, rollouts, rng, version=3)
    obs, reward, terminated, truncated, info = pool.recv()
    done, first = terminated | truncated, info["elapsed_step"] == 0
    assert rollouts.closes(info["env_id"])
    pixels = torch.from_numpy(obs)
    rows = rollouts.write_env(info["env_id"], first, pixels, reward, done, truncated)
    assert rollouts.num_full == 0
    values = torch.arange(6.0)
    later = rollouts.write_bootstrap(rows, values, 4)
    assert rollouts.num_full == 6
    slots = rollouts.take(6)
    logits = torch.randn(6, 3)
    records = decided(torch.full((6,), 2), logits, torch.full((6,), 9.0), 5)
    rollouts.write_policy(later, records)
    batch = rollouts.batch(slots)
    assert torch.equal(batch.values[-1], values)
    assert (batch.versions[:-1] == 3).all()
    assert (batch.versions[-1] == 4).all()
    index = rollouts._slot  # row 0 of the slots that are now written
    assert (rollouts.columns["values"][index] == 9.0).all()
    assert (rollouts.columns["actions"][index] == 2).all()
    assert torch.equal(rollouts.columns["logits"][index], logits)
    assert (rollouts.columns["versions"][index] == 5).all()


def test_every_row_knows_its_policy(fake_pool):
    pool, rollouts, rng = fake_pool(6, 6), make(), np.random.default_rng(1)
    pool.async_reset()
    for version in range(2 * T + 1):
        act(pool, rollouts, rng, version)
        if rollouts.num_full:
            slots = rollouts.take(6)
            versions = rollouts.batch(slots).versions
            # The last row is the next unroll's first: one policy acted on both.
            expected = torch.arange(version - T, version + 1)
            assert torch.equal(versions, expected[:, None].expand(T + 1, 6))
            rollouts.release(slots)
    assert version == 2 * T


def test_a_batch_tells_fresh_unrolls_from_replayed_ones(fake_pool):
    pool, rollouts, rng = fake_pool(), make(extra=40), np.random.default_rng(1)
    pool.async_reset()
    while rollouts.num_full < 5:
        act(pool, rollouts, rng)
    slots = rollouts.take(5)
    check_roles(rollouts, slots)
    replayed, weights = torch.tensor([slots[4], slots[4]]), torch.tensor([0.5, 0.25])
    batch = rollouts.batch(slots[:3], Sample(replayed, weights))
    assert batch.fresh.tolist() == [True] * 3 + [False] * 2
    assert batch.weights.tolist() == [1, 1, 1, 0.5, 0.25]
    alone = rollouts.batch([slots[4]])
    assert torch.equal(batch.values[:, 3:4], alone.values)
    assert torch.equal(batch.stacks[:, 4:5], alone.stacks)
    assert alone.fresh.all()


@pytest.mark.parametrize("burn_in", [0, 3])
def test_learned_steps_are_rows_whose_actions_count(fake_pool, burn_in):
    pool, rollouts = fake_pool(6, 6), make(extra=60, burn_in=burn_in)
    rng = np.random.default_rng(1)
    pool.async_reset()
    for _ in range(30):
        act(pool, rollouts, rng)
    slots = rollouts.take(rollouts.num_full)
    counted = ~rollouts.batch(slots).done[burn_in:-1]
    assert 0 < counted.sum() < counted.numel()
    assert rollouts.learned_steps(slots) == int(counted.sum())
    for number, slot in enumerate(slots):
        assert rollouts.learned_steps([slot]) == int(counted[:, number].sum())


@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 3, 5), (6, 3, 3)])
def test_odd_observations_are_stored_too(shape):
    rollouts = make(num_envs=1, shape=shape, stack_num=max(1, shape[0] // 3))
    none = np.zeros(1, bool)
    given = torch.randint(0, 255, (T + 1, *shape), dtype=torch.uint8)
    for obs in given:
        rows = rollouts.write_env(
            np.array([0], np.int32),
            np.array([True]),
            obs[None],
            np.zeros(1, np.float32),
            none,
            none,
            torch.zeros(1, 2),
        )
        zeros = torch.zeros(1)
        rollouts.write_policy(rows, decided(zeros.long(), zeros.expand(1, 3), zeros, 0))
    batch = rollouts.batch(rollouts.take(1))
    assert torch.equal(pixels_of(rollouts, batch)[:, 0], given)


def test_running_out_of_slots_is_an_error(fake_pool):
    pool, rollouts, rng = fake_pool(), make(extra=2), np.random.default_rng(1)
    pool.async_reset()

    def act_without_learning():
        for _ in range(50):
            act(pool, rollouts, rng)

    with pytest.raises(RuntimeError, match="slots are free"):
        act_without_learning()
    with pytest.raises(ValueError, match="needs 99 full unrolls"):
        rollouts.take(99)


def test_a_slot_is_about_as_large_as_said():
    rollouts = make(num_envs=2, extra=8)
    parts = [*vars(rollouts).values(), *vars(rollouts._frames).values()]
    parts += rollouts.columns.values()
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    size = sum(t.nbytes for t in tensors) / rollouts.num_slots
    said = Rollouts.bytes_per_slot(
        unroll=T, burn_in=0, obs_shape=(4, 36, 36), stack_num=4
    )
    assert 0.9 < said / size < 1.2


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], None),
        ([3], slice(3, 4)),
        ([3, 4, 5], slice(3, 6)),
        ([5, 4, 3], None),
        ([3, 5, 4, 6], None),
        ([3, 5], None),
    ],
)
def test_neighbours_in_rising_order_are_a_slice(positions, expected):
    for dtype in (np.int32, np.int64):
        found = arrays.span(np.array(positions, dtype))
        if expected is None:
            assert found.dtype == np.int64
            assert found.tolist() == positions
        else:
            assert found == expected


def random_requests(seed, num_envs, count):
    """Rows for a store: groups in order, groups out of order, and single ones."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        begin = rng.integers(num_envs)
        ids = np.arange(begin, rng.integers(begin, num_envs) + 1, dtype=np.int32)
        if rng.random() < 0.5:
            ids = rng.permutation(num_envs).astype(np.int32)[: len(ids)]
        n = len(ids)
        obs = rng.integers(0, 256, (n, 4, 6, 8), np.uint8)
        first, done, truncated = rng.random((3, n)) < 0.1
        decided = (rng.integers(0, 3, n), rng.normal(size=(n, 3)), rng.normal(size=n))
        state = rng.normal(size=(n, 2)).astype(np.float32)
        reward = rng.normal(size=n).astype(np.float32)
        yield ids, first, obs, reward, done, truncated, state, decided


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_slices_numpy_and_kernels_write_the_same(monkeypatch, seed, burn_in):
    num_envs = 7
    stores = {}
    whole = arrays.span
    ways = {
        "slices": (lambda device: True, whole),
        "indices": (lambda device: True, lambda x: np.asarray(x, np.int64)),
        "kernels": (lambda device: False, whole),
    }
    for name, (on_host, span) in ways.items():
        monkeypatch.setattr(arrays, "on_host", on_host)
        for module in (arrays, frames, store):
            monkeypatch.setattr(module, "span", span)
        rollouts = make(num_envs, 60, (4, 6, 8), burn_in=burn_in)
        for version, request in enumerate(random_requests(seed, num_envs, 60)):
            ids, first, obs, *results, state, decision = request
            pixels, memory = torch.from_numpy(obs), torch.from_numpy(state)
            levels = ids.astype(np.int64) % 3
            rows = rollouts.write_env(ids, first, pixels, *results, memory, levels)
            actions, logits, values = map(torch.from_numpy, decision)
            records = decided(actions, logits.float(), values.float(), version)
            rollouts.write_policy(rows, records)
        check_roles(rollouts)
        stores[name] = rollouts
    kept = {name: rollouts.snapshot() for name, rollouts in stores.items()}
    assert kept["slices"]["full"]
    for name in ("indices", "kernels"):
        assert_equal(kept[name], kept["slices"])
        full = stores[name].take(stores[name].num_full)
        assert torch.equal(
            pixels_of(stores[name], stores[name].batch(full)),
            pixels_of(stores["slices"], stores["slices"].batch(full)),
        )


def assert_equal(one, two):
    """Two snapshots of stores hold the same."""
    assert one.keys() == two.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_equal(value, two[key])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, two[key]), key
        else:
            assert value == two[key], key
