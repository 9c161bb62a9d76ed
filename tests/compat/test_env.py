"""The drop-in's own behaviour: RAM, pictures, states, both APIs, wrappers."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gym
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mario_envpool import nes, rom
from mario_envpool._core import _MarioEnv
from mario_envpool.compat import (
    SuperMarioBrosEnv,
    SuperMarioBrosRandomStagesEnv,
    make,
    task_ids,
)
from mario_envpool.compat.actions import COMPLEX_MOVEMENT, RIGHT_ONLY, SIMPLE_MOVEMENT
from mario_envpool.compat.wrappers import JoypadSpace

pytestmark = pytest.mark.rom

RUN = nes.RIGHT | nes.B


def run_into_death(env: Any) -> dict[str, Any]:
    """Runs to the right until a life is lost, and returns that step's info."""
    while True:
        info = env.step(RUN)[-1]
        if env.unwrapped._life != info["life"]:
            return dict(info)


def test_seven_has_observations_and_4_tuples() -> None:
    env = make("SuperMarioBros-v0")
    assert env.observation_space == gym.spaces.Box(0, 255, (240, 256, 3), np.uint8)
    assert env.action_space == gym.spaces.Discrete(256)
    assert env.reward_range == (-15, 15)
    obs = env.reset()
    assert env.observation_space.contains(obs)
    before = obs.copy()
    obs_next, reward, done, info = env.step(np.uint8(RUN))
    assert np.array_equal(obs, before)  # a later step does not write to it
    assert env.observation_space.contains(obs_next)
    assert obs_next.flags.c_contiguous
    assert (type(reward), type(done)) == (float, bool)
    assert info == {
        "coins": 0,
        "flag_get": False,
        "life": 2,
        "score": 0,
        "stage": 1,
        "status": "small",
        "time": 400,
        "world": 1,
        "x_pos": 40,
        "y_pos": 79,
    }
    assert {type(value) for value in info.values()} == {int, np.int64, bool, str}
    info = make("SuperMarioBros-v0", api="gymnasium").reset()[1]
    assert {type(value) for value in info.values()} == {int, bool, str}


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({}, 4),
        ({"api": "gym", "render_mode": "rgb_array"}, 4),
        ({"api": "gymnasium"}, 5),
        ({"render_mode": "rgb_array"}, 5),
        ({"apply_api_compatibility": True}, 5),
        ({"apply_api_compatibility": True, "api": "gym"}, 5),
        ({"apply_api_compatibility": True, "render_mode": "rgb"}, 5),
    ],
)
@pytest.mark.filterwarnings("ignore:.*mode .rgb. that is not in")  # of Gym
def test_the_api_is_what_was_asked_for(arguments: dict[str, Any], size: int) -> None:
    env = make("SuperMarioBros-1-2-v0", **arguments)
    assert isinstance(env.reset(), tuple) == (size == 5)
    assert len(env.step(0)) == size


def test_ram_is_a_live_view_and_writing_has_its_effect() -> None:
    env = make("SuperMarioBros-v0").unwrapped
    ram = env.ram
    assert ram.shape == (2048,)
    assert ram.dtype == np.uint8
    env.reset()
    ram[0x075A] = 5  # lives
    ram[0x07F8:0x07FB] = (1, 2, 3)  # the clock
    ram[0x0756] = 1  # tall
    info = env.step(0)[-1]
    assert info["life"] == 5
    assert info["time"] == 123
    assert info["status"] == "tall"
    assert env.ram is ram
    for _ in range(60):
        env.step(RUN)
    assert env._x_position == 256 * int(ram[0x6D]) + int(ram[0x86]) > 100
    env.reset()
    assert ram[0x075A] == 2
    env.close()
    assert ram[0x075A] == 2  # the array outlives the game


def test_killing_by_ram_ends_a_stage() -> None:
    env = make("SuperMarioBros-1-1-v0").unwrapped
    env.reset()
    env.ram[0x000E] = 0x0B  # dying
    _, reward, done, _ = env.step(0)
    assert (reward, done, env.done) == (-15, True, True)
    assert env._is_dying
    with pytest.raises(ValueError, match="reset"):
        env.step(0)
    env.reset()
    env.step(0)


def test_properties_are_read_from_ram() -> None:
    env = make("SuperMarioBros-4-2-v0", reward="v9", api="gymnasium").unwrapped
    _, info = env.reset()
    for _ in range(50):
        info = env.step(RUN)[-1]
    names = {
        "_world": "world",
        "_stage": "stage",
        "_area": "area",
        "_level": "level",
        "_score": "score",
        "_time": "time",
        "_coins": "coins",
        "_life": "life",
        "_x_position": "x_pos",
        "_left_x_position": "left_x_pos",
        "_y_position": "y_pos",
        "_y_pixel": "y_pixel",
        "_y_viewport": "y_viewport",
        "_player_status": "status",
        "_player_state": "player_state",
        "_is_dying": "is_dying",
        "_is_dead": "is_dead",
        "_is_game_over": "is_game_over",
        "_is_world_over": "is_world_over",
        "_is_stage_over": "is_stage_over",
        "_flag_get": "flag_get",
        "_enemy_types": "enemy_types",
    }
    for name, key in names.items():
        assert getattr(env, name) == info[key], name
    assert not env._is_busy
    assert (info["world"], info["stage"], info["area"]) == (4, 2, 3)
    assert info["level"] == 13
    assert info["x_pos"] == info["x_pos_max"] == info["progress"] > 40
    assert info["task_id"] == "SuperMarioBros-4-2-v0"
    assert (info["target_world"], info["target_stage"]) == (4, 2)


def test_info_is_of_the_frame_picture_and_ram_come_after_the_wait() -> None:
    env = make("SuperMarioBros-v0", reward="v9", api="gymnasium").unwrapped
    env.reset()
    info = run_into_death(env)
    assert info["death"]
    assert info["is_dying"] or info["is_dead"]
    assert info["life"] == 2
    assert info["x_pos"] > 200
    assert info["reward_components"]["death"] == -25
    assert not env.done
    assert env._life == 1  # the next life has begun
    assert env._x_position < 100


@pytest.mark.parametrize("env_id", ["SuperMarioBros-v0", "SuperMarioBros2-v0"])
def test_observations_equal_the_frames_run_again(env_id: str) -> None:
    """The picture of a step is what a second console draws of that frame."""
    env, other = make(env_id).unwrapped, make(env_id).unwrapped
    env.reset()
    other.reset()
    deaths = 0
    for t in range(700):
        lives = env._life
        obs = env.step(RUN if t % 40 else RUN | nes.A)[0]
        deaths += env._life != lives
        if t % 23 == 0 or env._life != lives:
            other.load_state(env.dump_state())
            assert np.array_equal(obs, other.screen), t
        if env.done:
            break
    assert deaths > 1


def test_a_state_goes_on_bit_for_bit() -> None:
    env = make("SuperMarioBros-1-1-v0", reward="v9")
    env.reset()
    for _ in range(60):
        env.step(RUN)
    state = env.dump_state()
    wanted = [env.step(RUN | nes.A) for _ in range(30)]
    env.load_state(state)
    for obs, reward, done, info in wanted:
        got = env.step(RUN | nes.A)
        assert np.array_equal(got[0], obs)
        assert got[1:] == (reward, done, info)
    with pytest.raises(ValueError, match="snapshot"):
        make("SuperMarioBros-1-2-v0", reward="v9").load_state(state)
    with pytest.raises(ValueError, match="under timing='nes_py', but this"):
        make("SuperMarioBros-1-1-v0", reward="v9", timing="console").load_state(state)
    with pytest.raises(ValueError, match="snapshot"):
        env.load_state(b"")


def test_the_timing_is_upstreams_unless_the_user_chooses() -> None:
    """At the start upstream's clock has ticked up to two frames later."""
    frames = {}
    for timing in ("nes_py", "console"):
        env = make("SuperMarioBros-1-1-v0", timing=timing)
        env.reset()
        frames[timing] = bytes(env.ram)
    assert frames["nes_py"] != frames["console"]
    env = make("SuperMarioBros-1-1-v0")
    env.reset()
    assert bytes(env.ram) == frames["nes_py"]
    copied = copy.deepcopy(make("SuperMarioBros-1-1-v0", timing="console"))
    copied.reset()
    assert bytes(copied.ram) == frames["console"]
    random_stages = make("SuperMarioBrosRandomStages-v0", stages=["1-1"])
    random_stages.reset()
    assert bytes(random_stages.ram) == frames["nes_py"]
    with pytest.raises(ValueError, match="timing='x' is not possible; choose console"):
        make("SuperMarioBros-1-1-v0", timing="x")


def test_backup_and_restore_as_upstream() -> None:
    env = make("SuperMarioBros-1-1-v0").unwrapped
    start = env.reset()
    for _ in range(60):
        env.step(RUN)
    env._restore()  # upstream has kept the start
    assert np.array_equal(env.screen, start)
    for _ in range(60):
        env.step(RUN)
    env._backup()
    x = env._x_position
    for _ in range(30):
        env.step(RUN)
    env._restore()
    assert env._x_position == x
    env.step(RUN)
    env.reset()  # goes to what was kept
    assert env._x_position == x


def test_frames_can_be_played_beside_the_task() -> None:
    env = make("SuperMarioBros-1-1-v0").unwrapped
    before = env.reset()
    for _ in range(30):
        env._frame_advance(RUN)
    assert env._x_position > 50
    assert not np.array_equal(env.screen, before)
    for buttons in (-1, 256):
        with pytest.raises(IndexError, match=str(buttons)):
            env._frame_advance(buttons)


def test_the_native_environment_has_only_its_stages() -> None:
    native = SuperMarioBrosRandomStagesEnv()._native
    fields = native.reset(stage=31)
    assert (fields["info:world"], fields["info:stage"]) == (8, 4)
    for stage in (-1, 32):
        with pytest.raises(IndexError, match=str(stage)):
            native.reset(stage=stage)


def test_a_seed_counts_with_a_chosen_stage_too() -> None:
    native = _MarioEnv(rom.load("vanilla"), {"noop_max": 30})

    def after(seed: int) -> bytes:
        native.reset(seed=seed, stage=0)
        return bytes(native.ram)

    starts = [after(seed) for seed in range(4)]
    assert len(set(starts)) > 1
    assert starts == [after(seed) for seed in range(4)]


def test_vectors_of_gymnasium() -> None:
    envs = gymnasium.make_vec(
        "mario_envpool_compat/SuperMarioBros-1-1-v0",
        num_envs=2,
        vectorization_mode="sync",
        reward="v9",
    )
    obs, _ = envs.reset(seed=1)
    assert obs.shape == (2, 240, 256, 3)
    infos = envs.step(np.array([0, RUN]))[-1]
    assert list(infos["task_id"]) == 2 * ["SuperMarioBros-1-1-v0"]
    envs.close()


@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize(
    "env_id", ["SuperMarioBros-1-1-v0", "SuperMarioBrosRandomStages-v0"]
)
def test_a_copy_is_where_the_original_is(env_id: str, make_copy: Any) -> None:
    env = make(env_id).unwrapped
    env.reset(seed=3)
    for _ in range(50):
        env.step(RUN)
    other = make_copy(env)
    assert np.array_equal(other.screen, env.screen)
    assert other.spec.id == env.spec.id
    env.step(RUN)
    assert other._time >= env._time
    first, second = env.reset(), other.reset()
    assert np.array_equal(first, second)
    assert (env._target_world, env._target_stage) == (
        other._target_world,
        other._target_stage,
    )


@pytest.mark.parametrize(
    "env_id",
    ["SuperMarioBros-v0", "SuperMarioBrosRandomStages-v0", "SuperMarioBros2-A-1-v0"],
)
@pytest.mark.parametrize("reward", ["classic", "v9"])
def test_gymnasium_checks_the_environment(env_id: str, reward: str) -> None:
    env = make(env_id, api="gymnasium", reward=reward)
    with warnings.catch_warnings():
        # Upstream has this method, so it stays.
        warnings.filterwarnings("ignore", ".*support for the `seed` function")
        check_env(env.unwrapped, skip_render_check=True)


def test_render_modes_old_and_new() -> None:
    env = make("SuperMarioBros-v0")
    obs = env.reset()
    assert np.array_equal(env.render(mode="rgb_array"), obs)
    assert np.array_equal(env.screen, obs)
    with pytest.raises(NotImplementedError, match="rgb_array"):
        env.render(mode="ansi")
    with pytest.raises(NotImplementedError, match="rgb_array"):
        SuperMarioBrosEnv(render_mode="ansi")
    new = make("SuperMarioBros-v0", render_mode="rgb_array")
    obs, _ = new.reset()
    assert np.array_equal(new.render(), obs)
    silent = make("SuperMarioBros-v0", api="gymnasium").unwrapped
    with pytest.warns(UserWarning, match="render_mode"):
        assert silent.render() is None


def test_a_window_shows_each_picture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame", reason="render_mode='human' needs pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(SuperMarioBrosEnv.metadata, "render_fps", 0)  # no waiting
    for arguments in ({}, {"render_mode": "human"}):
        env = make("SuperMarioBros-v0", **arguments)
        env.reset()
        env.render()
        shown = []
        viewer = env.unwrapped.viewer
        monkeypatch.setattr(viewer, "show", shown.append)
        for _ in range(3):
            obs = env.step(RUN)[0]
            env.render()
        assert len(shown) == 3
        assert shown[-1] is obs
        env.close()


def test_close_twice() -> None:
    env = make("SuperMarioBros-v0")
    env.reset()
    env.close()
    for call in (env.close, env.reset, env.render, env.dump_state, lambda: env.step(0)):
        with pytest.raises(ValueError, match="closed"):
            call()
    new = make("SuperMarioBros-v0", api="gymnasium")
    new.close()
    new.close()


def test_old_time_limit() -> None:
    env = make("SuperMarioBros-v0", max_episode_steps=3)
    env.reset()
    for _ in range(2):
        assert env.step(0)[2] is False
    _, _, done, info = env.step(0)
    assert done
    assert info["TimeLimit.truncated"] is True
    assert env.ram[0x075A] == 2
    env.reset()
    assert env.step(0)[2] is False


def test_random_stages_draw_from_some() -> None:
    env = SuperMarioBrosRandomStagesEnv(stages=["1-4", "2-4"])
    ram = env.ram
    seen = set()
    for _ in range(12):
        env.reset()
        seen.add((env._world, env._stage))
        assert (env._target_world, env._target_stage) == (env._world, env._stage)
    assert seen == {(1, 4), (2, 4)}
    env.reset(options={"stages": ["8-3"]})
    assert (ram[0x075F] + 1, ram[0x075C] + 1) == (8, 3)
    assert env.env.ram is ram
    assert env.seed() == []
    assert env.seed(5) == [5]
    with pytest.raises(ValueError, match="9-1"):
        env.reset(options={"stages": ["9-1"]})
    with pytest.raises(ValueError, match="0-1"):
        SuperMarioBrosRandomStagesEnv(stages=["0-1"])


def test_joypad_space() -> None:
    assert SIMPLE_MOVEMENT[:5] == RIGHT_ONLY
    assert COMPLEX_MOVEMENT[:7] == SIMPLE_MOVEMENT
    assert [
        len(actions) for actions in (RIGHT_ONLY, SIMPLE_MOVEMENT, COMPLEX_MOVEMENT)
    ] == [5, 7, 12]
    assert COMPLEX_MOVEMENT[9:] == [["left", "A", "B"], ["down"], ["up"]]
    raw = make("SuperMarioBros-1-1-v0").unwrapped
    env = JoypadSpace(raw, SIMPLE_MOVEMENT)
    assert env.action_space == gym.spaces.Discrete(7)
    assert env.get_action_meanings()[4] == env.get_action_meaning(4) == "right A B"
    assert env.get_keys_to_action()[tuple(sorted(map(ord, "dop")))] == 4
    assert set(env.buttons()) >= {"A", "start", "NOOP"}
    assert env.unwrapped is raw
    env.reset()
    twin = make("SuperMarioBros-1-1-v0")
    twin.reset()
    for action, byte in enumerate([0, 128, 129, 130, 131, 1, 64]):
        assert np.array_equal(env.step(action)[0], twin.step(byte)[0])
    for action in (7, -1):
        with pytest.raises(ValueError, match=str(action)):
            env.step(action)
    with pytest.raises(ValueError, match="jump"):
        JoypadSpace(raw, [["jump"]])
    with pytest.raises(TypeError, match="object"):
        JoypadSpace(object(), SIMPLE_MOVEMENT)


def test_joypad_space_says_what_to_do_with_our_own_environments() -> None:
    own = gymnasium.make("mario_envpool/SuperMarioBros-1-1-v3")
    with pytest.raises(ValueError, match="mario_envpool_compat/"):
        JoypadSpace(own, SIMPLE_MOVEMENT)
    raw = gymnasium.make("mario_envpool/SuperMarioBros-1-1-v3", action_set="raw")
    env = JoypadSpace(raw, SIMPLE_MOVEMENT)
    env.reset(seed=1)
    assert len(env.step(1)) == 5


def test_keys_of_the_pad() -> None:
    keys_to_action = make("SuperMarioBros-v0").get_keys_to_action()
    assert len(keys_to_action) == 256
    assert keys_to_action[()] == 0
    assert keys_to_action[ord("d"),] == nes.RIGHT
    assert keys_to_action[ord("\r"),] == nes.START
    assert keys_to_action[tuple(sorted((ord("a"), ord("o"))))] == nes.LEFT | nes.A


@pytest.mark.parametrize(
    "env_id",
    ["SuperMarioBros3-v0", "SuperMarioBros-9-1-v0", "SuperMarioBros1-1-v1", "Pong-v0"],
)
def test_unknown_ids(env_id: str) -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match=env_id):
        make(env_id)


@pytest.mark.parametrize("prefix", ["gym_super_mario_bros:", "mario_envpool_compat/"])
def test_ids_with_a_prefix(prefix: str) -> None:
    assert make(f"{prefix}SuperMarioBros-1-1-v0").is_single_stage_env


def test_bad_choices() -> None:
    with pytest.raises(ValueError, match="classic"):
        SuperMarioBrosEnv(reward="v8")
    with pytest.raises(ValueError, match="gymnasium"):
        make("SuperMarioBros-v0", api="dm")
    with pytest.raises(IndexError, match="256"):
        make("SuperMarioBros-v0").unwrapped.step(256)


def test_every_id_of_9_is_made() -> None:
    for env_id in task_ids(include_aliases=True)[::9]:
        env = make(env_id, reward="v9", api="gymnasium")
        _, info = env.reset()
        task_id = (
            env_id.replace("Bros1", "Bros-1") if info["game"] == "smb1" else env_id
        )
        assert info["single_stage"] == (env_id.count("-") > 1)
        assert info["task_id"].replace("-", "") == task_id.replace("-", "")


def test_the_timing_reaches_the_pools_of_the_other_doors() -> None:
    """The console's by default there; by name, nes-py's."""
    from mario_envpool.compat import envpool
    from mario_envpool.compat.sb3 import MarioVecEnv

    task = "SuperMarioBros-1-1-v0"
    for given, expected in (({}, "console"), ({"timing": "nes_py"}, "nes_py")):
        vector = MarioVecEnv(task, num_envs=1, **given)
        assert vector._pool.config["timing"] == expected
        vector.close()
        pool = envpool.make(task, env_type="gymnasium", num_envs=1, **given)
        assert pool.config["timing"] == expected
        pool.close()
        env = gymnasium.make("mario_envpool/SuperMarioBros-1-1-v3", **given)
        assert env.unwrapped._pool.config["timing"] == expected
        env.close()
    with pytest.raises(ValueError, match=r"timing.*pal.*console.*nes_py"):
        MarioVecEnv(task, num_envs=1, timing="pal")
