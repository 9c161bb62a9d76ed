"""A filmed step: the same game as an ordinary one, with each frame's picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mario_envpool

pytestmark = pytest.mark.rom

OPTIONS = {"action_set": "right_only", "repeat_action_probability": 0.25}


@pytest.mark.parametrize("frame_max", [False, True])
def test_the_film_is_the_game_frame_by_frame(make_env: Any, frame_max: bool) -> None:
    options = {**OPTIONS, "frame_max": frame_max, "noop_max": 30, "seed": 5}
    filmed = make_env(frame_skip=6, **options)
    plain = make_env(frame_skip=6, **options)
    single = make_env(frame_skip=1, **options)
    for env in (filmed, plain, single):
        env.reset()
    lengths = []
    terminated = False
    while not terminated:
        frames, reward, terminated, truncated, fields = filmed.film(4)
        assert (reward, terminated, truncated) == plain.step(4)[:3]
        for frame in frames:
            ended = single.step(4)[1]
            np.testing.assert_array_equal(frame, single.render())
        assert ended == terminated
        assert filmed.snapshot() == plain.snapshot()
        lengths.append(len(frames))
    assert set(lengths[:-1]) == {6}
    assert 1 <= lengths[-1] <= 6
    assert fields["info:end_reason"] == 1  # a death


@pytest.mark.parametrize("kind", ["gray", "rgb", "tiles"])
def test_a_pool_keeps_what_a_film_shows(make_env: Any, kind: str) -> None:
    """A pool draws only what changes, and does not remember every state of a step.

    A film draws and remembers everything, and makes observations of its pictures.
    """
    levels = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]
    options = {**OPTIONS, "frame_skip": 6, "noop_max": 30, "obs_type": kind}
    options |= {"stages": levels, "img_height": 60}
    pool = mario_envpool.make("SuperMarioBros-v0", num_envs=32, seed=5, **options)
    pool.reset()
    playing = {i: make_env(seed=5 + i, number=i, **options) for i in range(32)}
    for env in playing.values():
        env.reset()
    ends = set()
    random = np.random.default_rng(3)
    for _ in range(80):
        actions = random.choice(5, size=32, p=(0.2, 0.1, 0.1, 0.2, 0.4))
        pool.step(actions.astype(np.int32))
        blobs = pool.snapshot(np.arange(32, dtype=np.int32))
        for i, env in list(playing.items()):
            frames, _, terminated, *_ = env.film(actions[i])
            assert env.snapshot() in blobs[i].tobytes(), levels[i]
            if terminated:
                ends.add(len(frames))
                del playing[i]
    assert ends & {2, 3, 4, 5}, ends


def test_only_filmed_steps_are_filmed(make_env: Any) -> None:
    env = make_env(frame_skip=4, **OPTIONS)
    env.reset()
    first = env.film(1)[0]
    assert first.dtype == np.uint8
    assert first.shape == (4, 240, 256, 3)
    env.step(1)
    assert len(env.film(1)[0]) == 4
    with pytest.raises(IndexError, match="action 5 is outside 0 to 4"):
        env.film(5)
