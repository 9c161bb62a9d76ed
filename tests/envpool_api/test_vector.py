"""MarioVectorEnv: equal, step by step, to a SyncVectorEnv of MarioEnv."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mario_envpool.env import MarioEnv
from mario_envpool.vector import MarioVectorEnv

pytestmark = pytest.mark.rom
TASK = "SuperMarioBros-1-1-v0"


def pair(count: int, **config: Any) -> tuple[MarioVectorEnv, SyncVectorEnv]:
    ours = MarioVectorEnv(count, TASK, **config)
    theirs = SyncVectorEnv([lambda: MarioEnv(TASK, **config) for _ in range(count)])
    return ours, theirs


def assert_same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)
        if key.startswith("_"):
            assert value.dtype == theirs[key].dtype == np.bool_


def assert_same_step(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    for mine, reference in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(mine, reference)
        assert mine.dtype == reference.dtype
    assert_same_infos(ours[-1], theirs[-1])


def right_biased(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    return rng.choice(7, size=count, p=[0.02, 0.1, 0.15, 0.25, 0.4, 0.04, 0.04])


def test_agrees_with_a_sync_vector_env_step_by_step() -> None:
    config = {"noop_max": 30, "max_episode_steps": 60, "repeat_action_probability": 0.1}
    ours, theirs = pair(4, **config)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"]
    assert_same_step(ours.reset(seed=11), theirs.reset(seed=11))
    rng = np.random.default_rng(0)
    ends = 0
    for step in range(250):
        actions = right_biased(rng, 4)
        mine = ours.step(actions)
        assert_same_step(mine, theirs.step(actions))
        ends += int((mine[2] | mine[3]).sum())
        if step == 120:  # masked, with new seeds for some of them
            mask = np.array([True, False, True, True])
            results = [
                envs.reset(seed=[5, None, None, 9], options={"reset_mask": mask.copy()})
                for envs in (ours, theirs)
            ]
            np.testing.assert_array_equal(results[0][0], results[1][0])
            assert_same_infos(results[0][1], results[1][1])
        if step == 160:
            assert_same_step(ours.reset(), theirs.reset())
        if step == 170:
            assert_same_step(
                ours.reset(seed=[1, 2, 3, 4]), theirs.reset(seed=[1, 2, 3, 4])
            )
    assert ends > 8


@pytest.mark.parametrize("mode", ["Disabled", AutoresetMode.DISABLED])
def test_resets_by_the_caller(mode: Any) -> None:
    config = {"noop_max": 30, "max_episode_steps": 30}
    ours = MarioVectorEnv(3, TASK, autoreset_mode=mode, **config)
    assert (
        ours.autoreset_mode
        is ours.metadata["autoreset_mode"]
        is copy.copy(ours).autoreset_mode
    )
    theirs = SyncVectorEnv(
        [lambda: MarioEnv(TASK, **config) for _ in range(3)], autoreset_mode=mode
    )
    assert_same_step(ours.reset(seed=4), theirs.reset(seed=4))
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(100):
        actions = right_biased(rng, 3)
        mine = ours.step(actions)
        assert_same_step(mine, theirs.step(actions))
        ended = mine[2] | mine[3]
        if ended.any():
            ends += 1
            with pytest.raises(gymnasium.error.ResetNeeded, match="autoreset is disab"):
                ours.step(actions)
            results = [
                envs.reset(options={"reset_mask": ended.copy()})
                for envs in (ours, theirs)
            ]
            np.testing.assert_array_equal(results[0][0], results[1][0])
    assert ends >= 3


def test_a_restored_end_is_an_end() -> None:
    envs = MarioVectorEnv(2, TASK, autoreset_mode="Disabled", max_episode_steps=2)
    envs.reset(seed=1)
    begin = envs.snapshot()
    for _ in range(2):
        envs.step(np.ones(2, int))
    end = envs.snapshot()
    envs.restore(None, begin)
    envs.step(np.ones(2, int))
    envs.restore(None, end)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"of \[0 1\] are over"):
        envs.step(np.ones(2, int))


@pytest.mark.parametrize("mode", ["SameStep", AutoresetMode.SAME_STEP, None])
def test_other_autoreset_modes_are_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="autoreset_mode="):
        MarioVectorEnv(2, TASK, autoreset_mode=mode)


def test_resets_by_the_caller_need_whole_batches() -> None:
    with pytest.raises(ValueError, match="needs batch_size == num_envs, here it is 1"):
        MarioVectorEnv(2, TASK, autoreset_mode="Disabled", batch_size=1)


def test_made_by_gymnasium() -> None:
    envs = gymnasium.make_vec(f"mario_envpool:{TASK}", num_envs=3, frame_skip=2)
    assert isinstance(envs, MarioVectorEnv)
    assert envs.spec is not None
    assert envs.spec.id == TASK
    assert envs.num_envs == 3
    obs, infos = envs.reset(seed=0)
    assert envs.observation_space.contains(obs)
    assert infos["_x_pos"].all()
    obs, rewards, *_ = envs.step(envs.action_space.sample())
    assert rewards.dtype == np.float64
    # EnvPool's own parts still work, for it holds a pool and is none.
    assert envs.pool.spec.config.frame_skip == 2
    assert len(repr(envs)) > 10
    envs.close()
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.reset()


def test_a_time_limit_given_to_make_vec() -> None:
    envs = gymnasium.make_vec(f"mario_envpool:{TASK}", num_envs=2, max_episode_steps=3)
    envs.reset(seed=0)
    truncated = [envs.step(np.zeros(2, int))[3].tolist() for _ in range(4)]
    assert truncated == [[False, False], [False, False], [True, True], [False, False]]


def test_gymnasium_wrappers_work_on_it() -> None:
    envs = gymnasium.make_vec(f"mario_envpool:{TASK}", num_envs=2, max_episode_steps=5)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    wrapped.reset(seed=0)
    for _ in range(5):
        infos = wrapped.step(np.ones(2, int))[-1]
    assert infos["episode"]["l"].tolist() == [5, 5]
    listed = gymnasium.wrappers.vector.DictInfoToList(envs)
    _, infos = listed.reset(seed=0)
    assert [info["x_pos"] for info in infos] == [40, 40]


def test_reset_seeds_really_seed() -> None:
    def play(envs: MarioVectorEnv, **reset: Any) -> np.ndarray[Any, Any]:
        obs = [envs.reset(**reset)[0]]
        obs += [envs.step(np.ones(3, int))[0] for _ in range(5)]
        return np.stack(obs)

    envs = MarioVectorEnv(3, TASK, noop_max=100)
    first = play(envs, seed=4)
    following = play(envs)
    assert not np.array_equal(first, following)
    np.testing.assert_array_equal(play(envs, seed=4), first)
    np.testing.assert_array_equal(play(envs), following)
    np.testing.assert_array_equal(play(envs, seed=[4, 5, 6]), first)
    np.testing.assert_array_equal(play(envs, seed=3)[:, 1:], first[:, :2])


@pytest.mark.parametrize("as_mask", [np.array, list, tuple])
def test_a_mask_touches_only_its_environments(as_mask: Any) -> None:
    envs = MarioVectorEnv(3, TASK)
    envs.reset(seed=0)
    for _ in range(10):
        before, *_ = envs.step(np.ones(3, int))
    mask = [False, True, False]
    obs, infos = envs.reset(options={"reset_mask": as_mask(mask)})
    np.testing.assert_array_equal(obs[[0, 2]], before[[0, 2]])
    assert not np.array_equal(obs[1], before[1])
    assert infos["_x_pos"].tolist() == mask
    *_, infos = envs.step(np.ones(3, int))
    assert infos["elapsed_step"].tolist() == [11, 1, 11]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mask": 1}, ValueError, "'reset_mask' only, got .'mask'"),
        ({"stages": ["1-1"]}, ValueError, r"option of make: stages=\['1-1'\]"),
        ({"reset_mask": [1, 0]}, TypeError, r"list of bool, got \[1, 0\]"),
        ({"reset_mask": np.ones(2)}, TypeError, "list of bool"),
        ({"reset_mask": [True] * 3}, ValueError, r"shape \(2,\), got \(3,\)"),
        ({"reset_mask": np.ones(3, np.bool_)}, ValueError, r"shape \(2,\), got \(3,\)"),
        ({"reset_mask": np.zeros(2, np.bool_)}, ValueError, "no environment"),
        (
            {"reset_mask": np.array([True, False])},
            gymnasium.error.ResetNeeded,
            "first reset",
        ),
    ],
)
def test_wrong_reset_options(options: Any, error: Any, text: str) -> None:
    envs = MarioVectorEnv(2, TASK)
    with pytest.raises(error, match=text):
        envs.reset(options=options)
    envs.reset()


def test_wrong_calls_are_refused() -> None:
    envs = MarioVectorEnv(2, TASK)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(2, int))
    envs.reset()
    for actions in (np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2)):
        with pytest.raises(ValueError, match=r"integers of shape \(2,\)"):
            envs.step(actions)
    with pytest.raises((ValueError, IndexError), match="action"):
        envs.step(np.array([0, 99]))
    with pytest.raises(ValueError, match="got 3"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="render_mode='human'"):
        MarioVectorEnv(2, TASK, render_mode="human")
    assert envs.step(np.zeros(2, int))[0].shape == (2, 4, 84, 84)


def test_async_send_and_recv() -> None:
    envs = MarioVectorEnv(4, TASK, batch_size=2)
    assert envs.observation_space.shape == (2, 4, 84, 84)
    for call in (envs.reset, lambda: envs.step(np.zeros(4, int))):
        with pytest.raises(RuntimeError, match="batch_size == num_envs"):
            call()
    envs.async_reset(seed=0)
    steps = np.zeros(4, int)
    for _ in range(40):
        obs, rewards, _, _, infos = envs.recv()
        assert obs.shape == (2, 4, 84, 84)
        assert rewards.shape == (2,)
        ids = infos["env_id"]
        np.testing.assert_array_equal(infos["elapsed_step"], steps[ids])
        steps[ids] += 1
        envs.send(np.ones(2, int), ids)
    assert steps.sum() == 80


def test_render_gives_every_screen() -> None:
    envs = MarioVectorEnv(2, TASK, render_mode="rgb_array")
    envs.reset(seed=0)
    frames = envs.render()
    assert frames is not None
    assert [frame.shape for frame in frames] == [(240, 256, 3)] * 2
    silent = MarioVectorEnv(1, TASK)
    silent.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert silent.render() is None


def test_render_gives_the_screens_of_an_episode() -> None:
    """As render_mode="rgb_array_list" of a SyncVectorEnv."""
    arguments = {"num_envs": 2, "render_mode": "rgb_array_list", "max_episode_steps": 5}
    native, sync = (
        gymnasium.make_vec(
            "mario_envpool/SuperMarioBros-1-1-v3",
            vectorization_mode=mode,
            noop_max=9,
            **arguments,
        )
        for mode in (None, "sync")
    )
    for envs in (native, sync):
        envs.reset(seed=[3, 4])
    for t in range(9):
        for envs in (native, sync):
            envs.step(np.array([3, 4]))
        if t in (2, 8):  # before and after an episode has ended
            for screens, expected in zip(native.render(), sync.render(), strict=True):
                assert len(screens) == len(expected) == 4
                np.testing.assert_array_equal(screens, expected)
    with pytest.raises(ValueError, match="needs batch_size == num_envs"):
        MarioVectorEnv(2, TASK, render_mode="rgb_array_list", batch_size=1)


def test_snapshots_go_back_to_any_environment() -> None:
    config = {"noop_max": 30, "repeat_action_probability": 0.3}
    envs = MarioVectorEnv(3, TASK, **config)
    envs.reset(seed=0)
    for _ in range(8):
        obs, *_ = envs.step(np.full(3, 3))
    saved = envs.snapshot()
    assert saved.dtype == np.uint8
    np.testing.assert_array_equal(envs.snapshot([2, 0]), saved[[2, 0]])
    actions = [np.full(3, (3, 0)[i % 2]) for i in range(8)]  # sticky ones show
    played = [envs.step(action) for action in actions]
    back, infos = envs.restore(None, saved)
    np.testing.assert_array_equal(back, obs)
    assert infos["elapsed_step"].tolist() == [8] * 3
    for before, action in zip(played, actions, strict=True):
        assert_same_step(before, envs.step(action))
    # Some, crosswise; the others stay.
    last = played[-1][0]
    back, infos = envs.restore([2, 0], saved[[0, 1]])
    np.testing.assert_array_equal(back, np.stack([obs[1], last[1], obs[0]]))
    assert infos["_x_pos"].tolist() == [True, False, True]
    assert infos["elapsed_step"].tolist() == [8, 0, 8]
    # All, in another order, in an environment that has played nothing.
    fresh = MarioVectorEnv(3, TASK, **config)
    with pytest.raises(gymnasium.error.ResetNeeded, match="all environments"):
        fresh.restore([1], saved[:1])
    back, _ = fresh.restore([2, 0, 1], saved[[2, 0, 1]])
    np.testing.assert_array_equal(back, obs)
    assert_same_step(played[0], fresh.step(actions[0]))


def test_wrong_snapshots_are_refused() -> None:
    envs = MarioVectorEnv(2, TASK)
    obs, _ = envs.reset(seed=0)
    saved = envs.snapshot()
    for ids, blobs, text in (
        ([0.5], saved[:1], "env_ids must be integers .* got float 0.5"),
        ([0], saved, "one blob for each env"),
        ([0], saved[:1, :-1], "bytes each"),
        ([0, 0], saved, "twice|more than once|0"),
        ([2], saved[:1], "2"),
    ):
        with pytest.raises((ValueError, IndexError, TypeError), match=text):
            envs.restore(ids, blobs)  # type: ignore[arg-type]
    np.testing.assert_array_equal(envs.restore([1], saved[1:])[0], obs)
    partial = MarioVectorEnv(2, TASK, batch_size=1)
    with pytest.raises(RuntimeError, match=r"use pool.restore\(\) and recv"):
        partial.restore(None, saved)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))]
)
def test_copies_are_new_environments_of_the_same_kind(again: Any) -> None:
    envs = gymnasium.make_vec(f"mario_envpool:{TASK}", 3, noop_max=60, stack_num=2)
    envs.reset(seed=1)
    for _ in range(5):
        obs, *_ = envs.step(np.ones(3, int))
    other = again(envs)
    gc.collect()  # nothing dropped on the way takes the pool along
    assert other.spec == envs.spec
    assert other.observation_space == envs.observation_space
    np.testing.assert_array_equal(other.restore(None, envs.snapshot())[0], obs)
    assert_same_step(envs.step(np.ones(3, int)), other.step(np.ones(3, int)))
    envs.close()
    other.step(np.ones(3, int))


@pytest.mark.parametrize("kind", ["gray", ["tiles", "motion"]])
def test_channels_last_and_float32(kind: Any) -> None:
    """The values of the plain environment, with another layout."""
    layout = {"channels_last": True, "float32": True}
    plain = MarioVectorEnv(2, TASK, obs_type=kind)
    envs = MarioVectorEnv(2, TASK, obs_type=kind, **layout)
    one = MarioEnv(TASK, obs_type=kind, **layout)
    assert one.observation_space == envs.single_observation_space
    expected, _ = plain.reset(seed=1)
    assert_layout(envs, expected, envs.reset(seed=1)[0])
    assert one.observation_space.contains(one.reset(seed=1)[0])
    for _ in range(5):
        expected = plain.step(np.array([3, 1]))[0]
        obs = envs.step(np.array([3, 1]))[0]
        assert_layout(envs, expected, obs)
        assert_layout(envs, expected, {0: one.step(3)[0]})
    mask = {"reset_mask": np.array([False, True])}
    assert_layout(envs, plain.reset(options=mask)[0], envs.reset(options=mask)[0])
    assert pickle.loads(pickle.dumps(one)).observation_space == one.observation_space
    with pytest.raises(TypeError, match="float32='yes' is not a bool"):
        MarioEnv(TASK, float32="yes")  # type: ignore[arg-type]


def assert_layout(envs: MarioVectorEnv, plain: Any, obs: Any) -> None:
    """Compares observations of two layouts; {0: row} is the first row alone."""
    row = obs[0] if isinstance(obs, dict) and 0 in obs else None
    parts = plain if isinstance(plain, dict) else {"": plain}
    for key, values in parts.items():
        got = obs if row is None else row
        got = got[key] if key else got
        expected = values if row is None else values[0]
        space = envs.single_observation_space
        if expected.ndim - (row is None) == 3:
            expected = np.moveaxis(expected, -3, -1)
        if expected.dtype == np.uint8:
            assert got.dtype == np.float32
            top = 255 if not key else 20
            np.testing.assert_allclose(got, expected / top, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, expected)
        assert space.contains(row if row is not None else sample(obs))


def sample(obs: Any) -> Any:
    return {k: v[0] for k, v in obs.items()} if isinstance(obs, dict) else obs[0]
