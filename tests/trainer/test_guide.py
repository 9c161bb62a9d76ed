"""The guide: what getting on along demonstrations pays."""

import types

import numpy as np
import pytest

from trainer.explore.demonstrations import ReplayedWay
from trainer.explore.explorer import Guide

NOTHING = np.empty(0, np.uint8)


def way(*cells):
    return ReplayedWay(
        0, np.zeros(len(cells) - 1, np.int64), NOTHING, NOTHING, np.array(cells)
    )


def columns(*first):
    return types.SimpleNamespace(
        env_id=np.arange(len(first), dtype=np.int32), is_first=np.array(first)
    )


def pay(guide, cells, first=None):
    """What environments earn in some cells."""
    begins = [False] * len(cells) if first is None else first
    return guide.pay(columns(*begins), np.array(cells)).tolist()


@pytest.fixture
def guide():
    """Six steps from cell 10 to cell 40; a shorter way begins in cell 20."""
    result = Guide(0.5, num_envs=2)
    result.take([way(10, 10, 20, 20, 30, 30, 40), way(20, 35, 40)])
    return result


def test_each_step_of_the_way_pays_once(guide):
    assert pay(guide, [10, 20], [True, True]) == [0.0, 0.0]
    # From 5 steps left to 2 (the shorter way's), and from 2 to 1.
    assert pay(guide, [20, 30]) == [1.5, 0.5]
    assert pay(guide, [10, 99]) == [0.0, 0.0]  # back, and aside
    assert pay(guide, [20, 30]) == [0.0, 0.0]
    assert pay(guide, [40, 40]) == [1.0, 0.5]
    assert guide.statistics() == {"guide": pytest.approx(3.5 / 10)}
    assert guide.statistics() == {"guide": 0.0}


def test_an_episode_begins_without_debts(guide):
    pay(guide, [30, 30], [True, True])
    assert pay(guide, [10, 99], [True, True]) == [0.0, 0.0]
    # The second begins somewhere unknown: where it meets the way is no gain.
    assert pay(guide, [20, 20]) == [1.5, 0.0]
    assert pay(guide, [30, 30]) == [0.5, 0.5]


@pytest.mark.parametrize("asked", [False, True])
def test_without_demonstrations_nothing_is_paid(asked):
    guide = Guide(0.5, num_envs=1)
    if asked:
        guide.take([])  # none was found
    assert pay(guide, [10], [True]) == [0.0]
    assert pay(guide, [20]) == [0.0]


def test_it_goes_on_where_it_was(guide):
    pay(guide, [10, 20], [True, True])
    other = Guide(0.5, num_envs=2)
    other.take([way(10, 10, 20, 20, 30, 30, 40), way(20, 35, 40)])
    other.restore(guide.state(), going_on=True)
    assert pay(other, [30, 30]) == pay(guide, [30, 30]) == [2.0, 0.5]
