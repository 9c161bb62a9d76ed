"""A thin client of the native counting pool, shared by the tests of the pool.

It adds names and default ids to the native calls and nothing else, so that what the
tests see is the pool's own behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec

Ids = npt.NDArray[np.int32]
Batch = dict[str, npt.NDArray[Any]]


class CountingPool:
    """A ``_CountingEnvPool`` made from keyword options."""

    def __init__(self, **options: Any) -> None:
        values = dict(
            zip(
                _CountingEnvSpec._config_keys,
                _CountingEnvSpec._default_config_values,
                strict=True,
            )
        )
        unknown = set(options) - set(values)
        assert not unknown, unknown
        # A short observation by default: it starts with the env's counters.
        values |= {"obs_shape": [64]} | options
        self.native = _CountingEnvPool(_CountingEnvSpec(tuple(values.values())))
        self.ids: Ids = np.arange(values["num_envs"], dtype=np.int32)

    def reset(self, ids: Any = None, seeds: Any = None) -> None:
        """Sends a reset of all or some envs."""
        self.native._reset(self.ids if ids is None else as_ids(ids), seeds)

    def send(self, actions: Any, ids: Any = None) -> None:
        """Sends actions to all or some envs."""
        ids = self.ids if ids is None else as_ids(ids)
        self.native._send([ids, ids, np.broadcast_to(as_ids(actions), ids.shape)])

    def recv(self) -> Batch:
        """Receives a batch by name."""
        return dict(zip(self.native._state_keys, self.native._recv(), strict=True))

    def step(self, actions: Any, ids: Any = None) -> Batch:
        """Sends and receives."""
        self.send(actions, ids)
        return self.recv()

    def restart(self, ids: Any = None, seeds: Any = None) -> Batch:
        """Resets and receives."""
        self.reset(ids, seeds)
        return self.recv()


def as_ids(values: int | Sequence[int] | npt.NDArray[Any]) -> Ids:
    """int32, as the native calls demand."""
    return np.asarray(values, dtype=np.int32)


@pytest.fixture
def make_pool() -> type[CountingPool]:
    """``make_pool(num_envs=..., ...)`` makes a ``CountingPool``."""
    return CountingPool
