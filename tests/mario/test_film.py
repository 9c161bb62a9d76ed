"""A filmed step: the same game as an ordinary one, with each frame's picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rom

OPTIONS = {"action_set": "right_only", "repeat_action_probability": 0.25}


@pytest.mark.parametrize("frame_max", [False, True])
def test_the_film_is_the_game_frame_by_frame(make_env: Any, frame_max: bool) -> None:
    ends = set()
    for seed in range(5, 9):
        options = {**OPTIONS, "frame_max": frame_max, "noop_max": 30, "seed": seed}
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
        ends.add(lengths[-1])
    # A step that ends between its first and its last frame recalls the state before.
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
