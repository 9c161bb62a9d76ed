"""Kinds of observation: shapes, one or several at once, motion, nothing drawn."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import mario_envpool
import mario_envpool.env
import mario_envpool.vector
from mario_envpool import _core, tiles

pytestmark = pytest.mark.rom

TASK = "SuperMarioBros-1-1-v0"
SHAPES = {
    "gray": (4, 84, 84),
    "rgb": (12, 84, 84),
    "ram": (2048,),
    "tiles": (4, 13, 16),
    "motion": (8, 6),
    "motion_world": (8, 6),
}


def play(pool: Any, steps: int = 60) -> list[Any]:
    rng = np.random.default_rng(3)
    seen = [pool.reset()[0]]
    seen += [pool.step(rng.integers(0, 7, len(pool)))[0] for _ in range(steps)]
    return seen


@pytest.mark.parametrize("kind", SHAPES)
def test_one_kind_is_an_array(kind: str) -> None:
    pool = mario_envpool.make(TASK, num_envs=2, obs_type=kind)
    assert pool.observation_space.shape == SHAPES[kind]
    assert type(pool) is mario_envpool.MarioGymnasiumEnvPool
    for obs in play(pool, 5):
        assert obs.shape == (2, *SHAPES[kind])
        assert pool.observation_space.contains(obs[0])


def test_several_kinds_are_a_dictionary_of_the_same_arrays() -> None:
    kinds = list(SHAPES)
    both = mario_envpool.make(TASK, num_envs=2, obs_type=kinds, seed=1)
    assert isinstance(both, mario_envpool.MarioGymnasiumEnvPool)
    assert isinstance(both.observation_space, gymnasium.spaces.Dict)
    seen = play(both)
    for kind in kinds:
        alone = play(mario_envpool.make(TASK, num_envs=2, obs_type=kind, seed=1))
        for together, single in zip(seen, alone, strict=True):
            assert np.array_equal(together[kind], single)


def test_dm_env_has_the_parts_by_name() -> None:
    pool = mario_envpool.make(TASK, "dm", num_envs=2, obs_type=["tiles", "ram"])
    step = pool.reset()
    assert step.observation.tiles.shape == (2, 4, 13, 16)
    assert step.observation.ram.shape == (2, 2048)
    assert pool.observation_spec().tiles.maximum == len(tiles.NAMES) - 1


def test_gymnasium_classes_take_dictionaries() -> None:
    kinds = ["tiles", "motion"]
    env = mario_envpool.env.MarioEnv(TASK, obs_type=kinds)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    blob = env.snapshot()
    after = env.step(3)[0]
    env.restore(blob)
    assert all(np.array_equal(after[k], env.step(3)[0][k]) for k in kinds[:1])
    envs = mario_envpool.vector.MarioVectorEnv(3, TASK, obs_type=kinds)
    envs.reset(seed=[1, 2, 3])
    before = envs.step(np.array([1, 2, 3]))[0]
    mask = np.array([True, False, False])
    obs, _ = envs.reset(options={"reset_mask": mask})
    assert envs.observation_space.contains(obs)
    for kind in kinds:
        assert np.array_equal(obs[kind][1:], before[kind][1:])


def test_reward_fn_sees_the_parts() -> None:
    pool = mario_envpool.make(
        TASK,
        num_envs=2,
        obs_type=["tiles", "motion"],
        reward_fn=lambda batch: batch["obs"]["motion"][:, 0, 3],
    )
    obs, _ = pool.reset()
    for _ in range(10):
        obs, reward, *_ = pool.step(np.array([1, 3]))
    assert np.array_equal(reward, obs["motion"][:, 0, 3].astype(np.float32))
    assert reward.all()


def test_ram_tiles_and_motion_are_those_of_the_moment(make_env: Any) -> None:
    env = make_env(obs_type="ram+tiles+motion", stack_num=1)
    rng = np.random.default_rng(0)
    env.reset()
    for _ in range(40):
        _, done, _, result = env.step(int(rng.integers(7)))
        assert np.array_equal(result["obs:ram"], env.ram)
        assert np.array_equal(result["obs:tiles"][0], _core.tiles(env.ram))
        assert np.array_equal(result["obs:motion"], _core.motion(env.ram))
        if done:
            env.reset()


def test_tiles_are_stacked_oldest_first(make_env: Any) -> None:
    env = make_env(obs_type="tiles", stack_num=3)
    last = env.reset()["obs"]
    assert np.array_equal(last[0], last[2])
    for _ in range(30):
        now = env.step(3)[3]["obs"]
        assert np.array_equal(now[:2], last[1:])
        last = now


def test_the_game_is_the_same_without_pictures(make_env: Any) -> None:
    gray, ram = make_env(), make_env(obs_type="ram")
    rng = np.random.default_rng(1)
    gray.reset(), ram.reset()
    for _ in range(200):
        action = int(rng.integers(7))
        a, b = gray.step(action), ram.step(action)
        assert a[:3] == b[:3]
        assert np.array_equal(gray.ram, ram.ram)
        if a[1]:
            gray.reset(), ram.reset()
    assert np.array_equal(gray.render(), ram.render())


def test_gray_scale_false_is_rgb(make_env: Any) -> None:
    by_name = make_env(obs_type="rgb").reset()["obs"]
    assert np.array_equal(by_name, make_env(gray_scale=False).reset()["obs"])
    both = make_env(obs_type="gray+tiles", gray_scale=False).reset()
    assert np.array_equal(both["obs:rgb"], by_name)


def test_motion_of_mario(make_env: Any) -> None:
    env = make_env(obs_type="motion", action_set="raw", frame_skip=1)
    row = env.reset()["obs"][0]
    assert tiles.NAMES[row[0]] == "small mario"
    assert row[2] == 208 - 128  # on the ground
    assert row[3] == row[4] == row[5] == 0
    jump, run_right = 1, 128 + 2
    row = env.step(jump)[3]["obs"][0]
    assert row[4] < 0  # upward
    assert row[5] == 1 + 4  # and A is held
    for _ in range(50):
        row = env.step(run_right)[3]["obs"][0]
    assert row[3] > 0
    assert -8 <= row[1] <= 7


def test_motion_of_enemies(make_env: Any) -> None:
    env = make_env(obs_type="tiles+motion", stack_num=1, action_set="raw")
    env.reset()
    for _ in range(40):
        result = env.step(128)[3]
    thing = dict(zip(tiles.MOTION, result["obs:motion"][1].tolist(), strict=True))
    assert tiles.NAMES[thing["tile"]] == "enemy"
    assert thing["x"] > 0
    assert thing["y"] in (0, 1)  # it walks on the same ground
    assert thing["speed_x"] < 0  # towards Mario
    assert "E" in tiles.show(result["obs:tiles"][0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tile", "obs_type='tile' is not possible: there is no tile; choose"),
        ("", "obs_type='' is not possible: a name is empty"),
        (["ram", "ram"], r"obs_type='ram\+ram' is not possible: it names ram twice"),
        ([], "obs_type='' is not possible"),
    ],
)
def test_other_kinds_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mario_envpool.make(TASK, obs_type=kind)


@pytest.mark.parametrize(
    ("level", "states"),
    [
        ("1-1", [8, 0, 0, 0, 0, 0, 0]),
        ("7-2", [0, 0, 0, 0, 0, 0, 8]),
        ("8-4", [0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_world_is_in_the_states_of_objects(
    make_env: Any, level: str, states: list[int]
) -> None:
    env = make_env(obs_type="motion+motion_world", stages=[level])
    result = env.reset()
    motion, marked = result["obs:motion"], result["obs:motion_world"]
    assert np.array_equal(motion[:, :-1], marked[:, :-1])
    assert marked[0, -1] == motion[0, -1]
    assert not motion[1:, -1].any()
    assert marked[1:, -1].tolist() == states


@pytest.mark.parametrize("world", [0, 6, 7, 8, 255])
def test_any_ram_has_a_world(world: int) -> None:
    """RAM that no game has, too."""
    ram = np.zeros(2048, np.uint8)
    ram[_core.ram_addresses["World"]] = world
    states = _core.motion(ram, world=True)[1:, -1].tolist()
    assert states == [8 * (row == world) for row in range(7)]


@pytest.mark.parametrize("kind", [3, ["tiles", 1], None])
def test_what_is_no_name_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"obs_type=.* is not a kind of observation"):
        mario_envpool.make(TASK, obs_type=kind)


def test_legend_has_every_code() -> None:
    assert list(tiles.LEGEND) == list(tiles.NAMES)
    signs = [sign for sign, _, _ in tiles.LEGEND.values()]
    assert len(set(signs)) == len(signs)
    with pytest.raises(ValueError, match=r"take one frame .* obs\[0, -1\]"):
        tiles.show(np.zeros((4, 13, 16), np.uint8))


def test_pictures_for_people(tmp_path: Any, capsys: Any) -> None:
    pytest.importorskip("PIL", reason="the picture needs Pillow")
    out = tmp_path / "tiles.png"
    assert tiles.main(["--out", str(out), "--count", "1", "--steps", "5"]) == 0
    assert out.stat().st_size > 1000
    assert "question" in capsys.readouterr().out


def test_codes_that_there_are_not_are_refused(make_env: Any) -> None:
    env = make_env(obs_type="tiles", stack_num=2)
    env.reset()
    blob = bytearray(env.snapshot())
    blob[-1] = len(tiles.NAMES) - 1
    env.restore(bytes(blob))
    blob[-1] = len(tiles.NAMES)
    with pytest.raises(ValueError, match="damaged"):
        env.restore(bytes(blob))
