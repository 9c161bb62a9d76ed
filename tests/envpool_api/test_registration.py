"""Every id of gym-super-mario-bros exists, everywhere, once."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import mario_envpool
from mario_envpool import registration
from mario_envpool.envpool_layer import python_layer

with python_layer():
    from envpool import registration as envpool

ROM_OF_VERSION = ["vanilla", "downsample", "pixel", "rectangle"]


def ids_of_7() -> set[str]:
    """The ids as 7.4.0's registration makes them, spelled out here again."""
    ids = {
        f"SuperMarioBros{kind}-v{v}" for kind in ("", "RandomStages") for v in "0123"
    }
    ids |= {
        f"SuperMarioBros-{w}-{s}-v{v}"
        for w in "12345678"
        for s in "1234"
        for v in "0123"
    }
    return ids | {"SuperMarioBros2-v0", "SuperMarioBros2-v1"}


def ids_of_9() -> set[str]:
    """Those of 9.1.0 for the two games that this package plays."""
    ids = {"SuperMarioBros-v0", "SuperMarioBros2-v0"}
    for s in "1234":
        ids |= {f"SuperMarioBros-{w}-{s}-v0" for w in "12345678"}
        ids |= {f"SuperMarioBros{w}-{s}-v0" for w in "12345678"}
        ids |= {f"SuperMarioBros2-{w}-{s}-v0" for w in "123456789ABCD"}
    return ids


# "SuperMarioBros2-1-v0" is no such id, but 2-1 of the first game.
LOST_LEVELS = {"SuperMarioBros2-v0", "SuperMarioBros2-v1"} | {
    f"SuperMarioBros2-{w}-{s}-v0" for w in "123456789ABCD" for s in "1234"
}


def upstream_ids() -> set[str]:
    return ids_of_7() | ids_of_9()


def test_the_ids_are_upstreams() -> None:
    assert set(mario_envpool.list_all_envs()) == upstream_ids()
    assert (len(ids_of_7()), len(ids_of_9()), len(upstream_ids())) == (138, 118, 222)
    assert upstream_ids() <= set(envpool.list_all_envs())
    assert upstream_ids() <= set(gymnasium.registry)
    assert {f"mario_envpool/{name}" for name in upstream_ids()} <= set(
        gymnasium.registry
    )


def test_registering_again_changes_nothing() -> None:
    before = len(envpool.list_all_envs()), len(gymnasium.registry)
    registration.register_all()
    assert (len(envpool.list_all_envs()), len(gymnasium.registry)) == before


@pytest.mark.rom
@pytest.mark.parametrize("task_id", sorted(upstream_ids()))
def test_every_id_can_be_played(task_id: str) -> None:
    try:
        spec = envpool.make_spec(task_id)
    except mario_envpool.RomError as error:
        pytest.skip(str(error))
    assert spec.config.rom == registration.TASKS[task_id]["rom"]
    if task_id in LOST_LEVELS:
        assert spec.config.rom.startswith("lost-levels")
    else:
        assert spec.config.rom == ROM_OF_VERSION[int(task_id[-1])]
    pool = envpool.make_gymnasium(task_id)
    _, info = pool.reset()
    level = f"{info['world'][0]:X}-{info['stage'][0]}"
    if spec.config.stages:
        assert spec.config.stages == [level] == [task_id[-6:-3]]
    elif not spec.config.random_stages:
        assert level == "1-1"
    obs, *_ = pool.step(np.array([1]))
    assert obs.shape == (1, 4, 84, 84)


@pytest.mark.rom
def test_world_revision_by_option() -> None:
    env = gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0", rom="world")
    assert env.unwrapped._pool.config["rom"] == "world"
    env.close()


def in_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "always::UserWarning:__main__", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_foreign_gymnasium_id_is_left_alone_with_one_warning() -> None:
    output = in_new_process(
        "import gymnasium, warnings\n"
        "for s in ('SuperMarioBros-v0', 'SuperMarioBros-1-1-v0'):\n"
        "    gymnasium.register(id=s, entry_point='other.package:Env')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import mario_envpool\n"
        "ours = [w for w in caught if 'mario_envpool' in str(w.message)]\n"
        "assert len(ours) == 1, [str(w.message) for w in caught]\n"
        "print(ours[0].message)\n"
        "print(gymnasium.spec('SuperMarioBros-v0').entry_point)\n"
        "print(gymnasium.spec('SuperMarioBros-v1').entry_point)\n"
        "print(gymnasium.spec('mario_envpool/SuperMarioBros-v0').entry_point)\n"
    )
    message, theirs, ours, named = output.strip().splitlines()[-4:]
    assert "Gymnasium already has 'SuperMarioBros-v0' and 1 more ids" in message
    assert "for this package use 'mario_envpool/SuperMarioBros-v0'" in message
    assert theirs == "other.package:Env"
    assert ours == named == "mario_envpool.env:MarioEnv"


@pytest.mark.families
def test_a_foreign_envpool_id_is_left_alone_with_a_warning() -> None:
    output = in_new_process(
        "import warnings, envpool\n"
        "envpool.register(task_id='SuperMarioBros-v0', import_path='other',\n"
        "                 spec_cls='S', dm_cls='D', gymnasium_cls='G')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import mario_envpool\n"
        "print([str(w.message) for w in caught if 'EnvPool' in str(w.message)])\n"
        "print(envpool.registration.registry.specs['SuperMarioBros-v0'][0])\n"
    )
    message, theirs = output.strip().splitlines()[-2:]
    assert "EnvPool already has 'SuperMarioBros-v0' from another package" in message
    assert theirs == "other"


@pytest.mark.slow
def test_the_report_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool"],
        capture_output=True,
        text=True,
        check=False,
    )
    for word in ("mario-envpool", "EnvPool", "CPU path", "threads", "GPU", "ROM"):
        assert word in done.stdout, done.stderr
    assert (done.returncode == 0) == ("playable:" in done.stdout)
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool", "--options"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "frame_skip = 4\n    frames per step" in done.stdout


def test_the_package_lists_its_own_names_only() -> None:
    listed = {name for name in dir(mario_envpool) if not name.startswith("__")}
    assert listed == set(mario_envpool.__all__) - {"__version__"}
    assert all(hasattr(mario_envpool, name) for name in dir(mario_envpool))
