"""Snapshots continue exactly, here and elsewhere, and foreign ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


def play(pool: Any, steps: int, ids: Any = None) -> list[bytes]:
    """The bytes of all fields but the env ids, for a fixed run of actions."""
    result = []
    for step in range(steps):
        batch = pool.step(step * step % 4, ids)
        result += [batch[key].tobytes() for key in batch if not key.endswith("env_id")]
    return result


OPTIONS = {"num_envs": 3, "episode_steps": 9, "max_episode_steps": 7, "seed": 3}


@pytest.mark.parametrize("steps_before", [0, 4, 7, 8])
def test_a_restored_env_goes_on_exactly(make_pool: Any, steps_before: int) -> None:
    # 7 steps: the row before the snapshot was a truncation.
    pool = make_pool(**OPTIONS)
    last = pool.restart()
    for _ in range(steps_before):
        last = pool.step(1)
    blobs = pool.native.snapshot(pool.ids)
    assert blobs.dtype == np.uint8
    assert blobs.shape[0] == 3
    expected = play(pool, 30)
    for target in (pool, make_pool(**OPTIONS)):  # itself, and one never reset
        target.native.restore(target.ids, blobs)
        row = target.recv()
        assert row["reward"].tolist() == [0.0] * 3
        done = steps_before == 7
        assert row["step_type"].tolist() == [2 if done else 0] * 3
        for key in ("obs", "done", "trunc", "discount", "elapsed_step", "info:hash"):
            np.testing.assert_array_equal(row[key], last[key], err_msg=key)
        assert play(target, 30) == expected


def test_a_blob_may_go_to_another_env_and_order(make_pool: Any) -> None:
    pool = make_pool(**OPTIONS)
    pool.restart()
    play(pool, 3)
    blobs = pool.native.snapshot(int32(2, 0))
    expected = play(pool, 12, [2, 0])
    pool.native.restore(int32(1, 2), blobs)
    assert pool.recv()["info:env_id"].tolist() == [1, 2]
    assert play(pool, 12, [1, 2]) == expected


def test_a_batch_of_async_restores(make_pool: Any) -> None:
    pool = make_pool(num_envs=3, batch_size=2)
    pool.reset()
    ids = pool.recv()["info:env_id"]
    blobs = pool.native.snapshot(ids)
    pool.native.restore(ids, blobs)
    assert len(pool.recv()["info:env_id"]) == 2


def test_rng_saved_or_kept(make_pool: Any) -> None:
    pool = make_pool(num_envs=1, episode_steps=2)

    def starts() -> list[int]:
        return [int(pool.restart()["info:hash"][0]) for _ in range(3)]

    pool.restart()
    blob = pool.native.snapshot(int32(0))
    first, second = starts(), starts()
    pool.native.restore(int32(0), blob, rng="saved")
    pool.recv()
    assert starts() == first
    pool.native.restore(int32(0), blob, rng="keep")
    pool.recv()
    assert starts() == second
    with pytest.raises(ValueError, match="'saved' or 'keep', got 'other'"):
        pool.native.restore(int32(0), blob, rng="other")


CONTINUE = """
import sys
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
folder, options = sys.argv[1], eval(sys.argv[2])
values = dict(zip(Spec._config_keys, Spec._default_config_values)) | options
pool = Pool(Spec(tuple(values.values())))
ids = np.arange(3, dtype=np.int32)
pool.restore(ids, np.load(folder + "/blobs.npy"))
pool._recv()
rows = []
for step in range(30):
    pool._send([ids, ids, np.full(3, step * step % 4, np.int32)])
    rows += [array.tobytes() for array in pool._recv()[2:]]
with open(folder + "/rows", "wb") as file:
    file.write(b"".join(rows))
"""


def test_another_process_goes_on_exactly(make_pool: Any, tmp_path: Path) -> None:
    options = {**OPTIONS, "obs_shape": [64]}
    pool = make_pool(**options)
    pool.restart()
    play(pool, 5)
    np.save(tmp_path / "blobs.npy", pool.native.snapshot(pool.ids))
    expected = b"".join(play(pool, 30))
    subprocess.run(
        [sys.executable, "-c", CONTINUE, str(tmp_path), repr(options)],
        check=True,
        timeout=60,
    )
    assert (tmp_path / "rows").read_bytes() == expected


GOLDEN = Path(__file__).parent / "golden"


def test_the_golden_snapshot_restores_and_goes_on(make_pool: Any) -> None:
    """Blobs that the first pool of this version wrote, and what became of them.

    Only with a new ``kVersion`` (csrc/pool/snapshot.h), delete the old file, run this
    test, which then makes the new one and fails once, and commit what it has made.
    """
    pool = make_pool(**OPTIONS)
    pool.restart()
    play(pool, 5)
    written = pool.native.snapshot(pool.ids)
    version = int(written[0, 8:12].view(np.uint32)[0])
    path = GOLDEN / f"snapshot-v{version}.npz"
    if not path.exists():
        play(pool, 12)
        GOLDEN.mkdir(exist_ok=True)
        np.savez(path, before=written, after=pool.native.snapshot(pool.ids))
        pytest.fail(f"made {path}")
    target = make_pool(**OPTIONS | {"seed": 99})
    with np.load(path) as file:
        target.native.restore(target.ids, file["before"])
        target.recv()
        np.testing.assert_array_equal(
            target.native.snapshot(target.ids), file["before"]
        )
        play(target, 12)
        np.testing.assert_array_equal(target.native.snapshot(target.ids), file["after"])


def damaged(blobs: Any, place: int) -> Any:
    blobs = blobs.copy()
    blobs[-1, place] ^= 1
    return blobs


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: damaged(b, 0), ValueError, "blob 1 is refused.*snapshot header"),
        (lambda b: damaged(b, 8), ValueError, "version 5, this build reads version 4"),
        (lambda b: damaged(b, 16), ValueError, "holds an environment of"),
        (lambda b: damaged(b, 24), ValueError, "checksum is wrong"),
        (lambda b: damaged(b, -1), ValueError, "checksum is wrong"),
        (lambda b: damaged(b, 12), ValueError, "checksum is wrong"),  # elapsed_step
        (lambda b: damaged(b, 32), ValueError, "checksum is wrong"),  # done
        (lambda b: damaged(b, 36), ValueError, "checksum is wrong"),  # the limit
        (lambda b: b[:, :-1], ValueError, r"got \d+ bytes for 2 envs"),
        (lambda b: b[:1], ValueError, "2 env ids and 1 blobs"),
        (lambda b: b.astype(np.int8), TypeError, "dtype int8"),
        (lambda b: b[0], TypeError, r"shape \(n, bytes\)"),
        (lambda b: b.tobytes(), TypeError, "got bytes"),
    ],
)
def test_a_foreign_blob_is_refused(
    make_pool: Any, change: Any, error: type[Exception], message: str
) -> None:
    pool = make_pool(**OPTIONS)
    pool.restart()
    play(pool, 2)
    blobs = pool.native.snapshot(pool.ids)
    with pytest.raises(error, match=message):
        pool.native.restore(int32(0, 1), change(blobs[:2]))
    np.testing.assert_array_equal(pool.native.snapshot(pool.ids), blobs)


def test_a_blob_that_the_env_refuses_leaves_the_pool_open(make_pool: Any) -> None:
    pool, other = make_pool(**OPTIONS), make_pool(**OPTIONS, label="another game")
    pool.restart()
    other.restart()
    before = pool.native.snapshot(pool.ids)
    play(pool, 3)
    now = pool.native.snapshot(pool.ids)
    mixed = np.concatenate([before[:2], other.native.snapshot(int32(2))])
    with pytest.raises(ValueError, match="blob 2 is refused: saved under"):
        pool.native.restore(pool.ids, mixed)
    # None or all: the two good blobs before it were taken back.
    np.testing.assert_array_equal(pool.native.snapshot(pool.ids), now)
    assert pool.step(0)["elapsed_step"].tolist() == [4, 4, 4]


def test_a_blob_of_another_step_limit_is_refused(make_pool: Any) -> None:
    """The limit decides how an episode goes on."""
    source, pool = make_pool(**OPTIONS), make_pool(**OPTIONS | {"max_episode_steps": 8})
    source.restart()
    pool.restart()
    blobs = source.native.snapshot(source.ids)
    with pytest.raises(
        ValueError, match=r"blob 0 .* saved with max_episode_steps=7, this pool has 8"
    ):
        pool.native.restore(pool.ids, blobs)
    assert pool.step(0)["elapsed_step"].tolist() == [1, 1, 1]


def test_an_env_that_was_never_reset_has_no_snapshot(make_pool: Any) -> None:
    pool = make_pool(num_envs=2)
    pool.restart([0])
    with pytest.raises(RuntimeError, match="env 1 has never been reset"):
        pool.native.snapshot(pool.ids)
    with pytest.raises(RuntimeError, match="render: env 1 has never been reset"):
        pool.native._render(int32(1), 0, 0, -1)


def test_a_refused_restore_leaves_a_new_env_as_it_was(make_pool: Any) -> None:
    """Even the generator of an env that was never reset."""
    source, other = make_pool(**OPTIONS), make_pool(**OPTIONS, label="another game")
    source.restart()
    other.restart()
    mixed = np.concatenate(
        [source.native.snapshot(int32(0, 1)), other.native.snapshot(int32(2))]
    )
    pool = make_pool(**OPTIONS | {"seed": 77})
    with pytest.raises(ValueError, match="blob 2 is refused"):
        pool.native.restore(pool.ids, mixed)
    start = make_pool(**OPTIONS | {"seed": 77}).restart()
    np.testing.assert_array_equal(pool.restart()["info:hash"], start["info:hash"])
