"""`make` for a pool whose environments only count: what the pool itself costs.

Same queues, threads, batches and EnvPool classes as the game's pool, same bytes of
observation; the counting environment fills it and adds one.
"""

from __future__ import annotations

from typing import Any

import workload

from mario_envpool.envpool_layer import python_layer

with python_layer():
    from envpool.python.api import py_env

from mario_envpool import _testing

_Spec, _, _Pool = py_env(_testing._CountingEnvSpec, _testing._CountingEnvPool)
ACTIONS = len(workload.SIMPLE)


def make(task_id: str, env_type: str, **config: Any) -> Any:
    """A pool of counting environments; `task_id` and `env_type` say nothing new."""
    del task_id, env_type
    chosen = {"num_actions": ACTIONS, "episode_steps": 200, **config}
    return _Pool(_Spec(_Spec.gen_config(**chosen)))
