"""Levels: names, results, levels in a row."""

import math

import pytest

from mario_envpool.registration import TASKS
from trainer.config.tasks import all_levels, game_of, own_levels, parse_levels
from trainer.evaluation.play import Played, wilson
from trainer.evaluation.results import by_options, level_result, levels_in_a_row
from trainer.rollout.episodes import Episode, Place

TASK = "SuperMarioBros-1-1-v0"
NONE, DEATH, FLAG, STALL = 0, 1, 2, 6


def played(env, reason, *, steps=100, x=50, y=79, area=37, time=200):
    episode = Episode(float(x), steps, x, reason == FLAG)
    last = {"x_pos": x, "y_pos": y, "area_pointer": area, "time": time}
    last |= {"end_reason": reason, "flag_get": int(reason == FLAG)}
    return Played(env, episode, last)


def result(level, clears, episodes=10, argmax=False, sticky=0.0):
    reasons = [FLAG] * clears + [DEATH] * (episodes - clears)
    return level_result(
        level,
        [played(env, reason) for env, reason in enumerate(reasons)],
        repeat_action_probability=sticky,
        starts=range(episodes) if argmax else None,
    )


@pytest.mark.parametrize(
    ("task", "game", "own"),
    [
        (TASK, "SuperMarioBros-v0", ("1-1",)),
        ("SuperMarioBros-8-4-v3", "SuperMarioBros-v3", ("8-4",)),
        ("SuperMarioBros-v1", "SuperMarioBros-v1", ()),
        ("SuperMarioBros2-v1", "SuperMarioBros2-v1", ()),
        ("SuperMarioBros2-4-v0", "SuperMarioBros-v0", ("2-4",)),
        ("SuperMarioBros2-2-4-v0", "SuperMarioBros2-v0", ("2-4",)),
        ("SuperMarioBros2-5-1-v0", "SuperMarioBros2-v0", ()),  # beyond world 4
        (
            "SuperMarioBrosRandomStages-v2",
            "SuperMarioBros-v2",
            all_levels("SuperMarioBros-v2"),
        ),
    ],
)
def test_levels_of_a_task(task, game, own):
    assert game_of(task) == game
    assert own_levels(task) == own


def test_every_task_has_the_levels_that_it_plays():
    for task, config in TASKS.items():
        own = own_levels(task)
        game = (
            "SuperMarioBros2-v0" if config.get("lost_levels") else "SuperMarioBros-v0"
        )
        if config.get("random_stages"):
            assert own == all_levels(game)
        else:
            played = config.get("stages", ())
            assert own == tuple(level for level in played if level in all_levels(game))


def test_names():
    levels = all_levels(TASK)
    assert len(set(levels)) == 32
    assert (levels[0], levels[4], levels[-1]) == ("1-1", "2-1", "8-4")
    assert all_levels("SuperMarioBros2-v0")[-1] == "4-4"
    assert parse_levels("all", TASK) == levels
    assert parse_levels("4-2, all", TASK) == levels
    assert parse_levels(" 4-2 ,1-1,4-2", TASK) == ("1-1", "4-2")
    assert own_levels("Pong-v5") == ()
    with pytest.raises(ValueError, match="task Pong-v5 has no levels"):
        game_of("Pong-v5")


@pytest.mark.parametrize("text", ["9-1", "0-1", "1-5", "1", "1-1,,1-2", "ALL", ""])
def test_unknown_levels_are_named(text):
    known = "levels are 1-1 to 8-4, as in 1-1,4-2, or all$"
    with pytest.raises(ValueError, match=known):
        parse_levels(text, TASK)


def test_the_lost_levels_have_four_worlds():
    assert parse_levels("4-4", "SuperMarioBros2-v0") == ("4-4",)
    with pytest.raises(ValueError, match="there is no level '5-1' in SuperMarioBros2"):
        parse_levels("5-1", "SuperMarioBros2-v0")


def test_every_episode_ends_in_one_way():
    episodes = [
        played(0, FLAG, steps=300, x=3161),
        played(0, FLAG, steps=200, x=3161),
        played(0, DEATH, x=700, y=79),
        played(0, DEATH, x=1100, y=252),  # fell out of the screen
        played(0, DEATH, x=1200, y=300, area=66),  # above its top
        played(0, DEATH, x=90, time=0),
        played(0, NONE, x=95, time=0),  # out of steps at the same moment
        played(0, STALL, x=434, y=79),
    ]
    level = level_result("1-1", episodes, repeat_action_probability=0.1)
    assert (level.level, level.argmax, level.repeat_action_probability) == (
        "1-1",
        False,
        0.1,
    )
    assert (level.episodes, level.clears, level.clear_rate) == (8, 2, 0.25)
    assert level.interval == wilson(2, 8)
    assert level.deaths == [
        Place(37, 700, 79),
        Place(37, 1100, 0),
        Place(66, 1200, 300),
    ]
    assert level.stalls == [Place(37, 434, 79)]
    assert (level.stalled, level.timed_out) == (1, 2)
    assert level.steps_to_clear_median == 250
    assert level.best_x_median == 900
    assert level.return_mean == pytest.approx(
        sum(e.episode.best_x for e in episodes) / 8
    )
    assert level.cleared_starts is None
    assert level.to_dict()["deaths"][1] == (37, 1100, 0)


def test_starts_that_were_cleared():
    """With two levels, environment i had i // 2 idle frames."""
    starts = [i // 2 for i in range(18)]
    episodes = [played(1 + 2 * k, FLAG if k in (0, 7) else DEATH) for k in range(9)]
    level = level_result(
        "1-2", episodes[::-1], repeat_action_probability=0.0, starts=starts
    )
    assert level.argmax
    assert level.cleared_starts == [0, 7]


def test_levels_in_a_row_sampled():
    levels = [result("1-1", 9), result("1-2", 5), result("1-3", 10), result("1-4", 0)]
    expected = 0.9 + 0.9 * 0.5 + 0.9 * 0.5 * 1.0
    assert levels_in_a_row(levels) == pytest.approx(expected)
    assert levels_in_a_row(levels[:2]) == pytest.approx(0.9 + 0.45)
    # The first level that was left out ends the row.
    assert levels_in_a_row([*levels[:2], levels[3]]) == pytest.approx(0.9 + 0.45)
    assert levels_in_a_row(levels[:1]) is None
    assert levels_in_a_row(levels[1:]) is None
    perfect = [result(level, 10) for level in all_levels(TASK)]
    assert levels_in_a_row(perfect) == 32


def test_levels_in_a_row_argmax():
    """Starts 0 to 8 clear 1-1, 0 to 4 also 1-2; clears behind a failure are none."""
    levels = [("1-1", 9), ("1-2", 5), ("1-3", 0), ("1-4", 10)]
    results = [result(level, clears, argmax=True) for level, clears in levels]
    assert levels_in_a_row(results) == pytest.approx((5 * 2 + 4 * 1) / 10)


def test_results_by_options():
    parts = by_options([result("1-1", 1), result("1-1", 1, argmax=True)])
    assert {key: len(part) for key, part in parts.items()} == {
        (0.0, False): 1,
        (0.0, True): 1,
    }
    assert math.isclose(parts[0.0, True][0].clear_rate, 0.1)
