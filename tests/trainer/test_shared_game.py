"""The game that viewers share: a policy's play, a person's, and rewinding."""

from itertools import islice, takewhile

import numpy as np
import pytest
from small_runs import save_policy

from mario_envpool import nes
from trainer.film.live import Pace, PlayOptions, QuitError, policy_episodes
from trainer.film.shared_game import Command, SharedGame

pytestmark = pytest.mark.rom

ANN, BOB = 1, 2


class Played:
    """A shared game, and its shots one by one; Ann watches from the beginning."""

    def __init__(self, policy=None, *, level="", argmax=False):
        self.game = SharedGame(PlayOptions(policy, level, argmax, seed=5), Pace(1e6))
        self.ask(ANN, "join")
        self.shots = self.all_shots()
        self.endings = []

    def all_shots(self):
        for shots in self.game.episodes():
            for shot in shots:
                yield shot
            self.endings.append(shot.reading.ending)

    def ask(self, viewer, name, value=None):
        self.game.commands.put(Command(viewer, name, value))

    def next(self, count=1):
        *_, shot = islice(self.shots, count)
        return shot

    @property
    def x(self):
        return self.game._reading().x


@pytest.fixture
def policy(tmp_path):
    save_policy(tmp_path, 1000, action=None)
    return tmp_path / "checkpoints" / "step-000001000.pt"


def test_a_policy_plays_as_in_a_window(policy):
    """The same observations, actions, pictures and rewards, though frame by frame."""
    episode = next(policy_episodes(PlayOptions(policy, seed=5)))
    steps = list(takewhile(lambda shot: not shot.reading.ending, islice(episode, 60)))
    assert len(steps) > 20
    played = Played(policy)
    now = played.next().reading
    actions = []
    for shot in steps:
        expected = shot.reading
        assert (now.obs == expected.obs).all()
        assert now.action == expected.action
        np.testing.assert_array_equal(now.probabilities, expected.probabilities)
        assert now.value == expected.value
        frames = [played.next() for _ in range(played.game.frame_skip)]
        for one, other in zip(frames, shot.frames, strict=True):
            assert (one.frames == other).all()
        now = frames[-1].reading
        assert (now.x, now.step) == (expected.x, expected.step)
        assert now.total == pytest.approx(expected.total, abs=1e-5)
        actions.append(now.action)
    assert len(set(actions)) > 2, "the policy takes any action"


def test_a_person_acts_on_every_frame():
    played = Played(level="4-1")
    first = played.next()
    assert (first.reading.level, first.reading.probabilities) == ("4-1", None)
    played.ask(ANN, "take")
    played.ask(ANN, "buttons", nes.RIGHT | nes.B)
    assert played.next().reading.buttons == nes.RIGHT | nes.B
    played.ask(ANN, "buttons", nes.LEFT)
    assert played.next().reading.buttons == nes.LEFT
    played.ask(ANN, "buttons", nes.RIGHT)
    before = played.x
    assert played.next(100).reading.x > before + 50


def test_taking_over_and_giving_back(tmp_path):
    save_policy(tmp_path, 1000, action=1)  # right
    played = Played(tmp_path)
    assert played.next(10).reading.buttons == nes.RIGHT
    played.ask(ANN, "take")
    played.ask(ANN, "buttons", nes.LEFT)
    assert played.next().reading.buttons == nes.LEFT
    assert played.next(20).reading.action == 1, "the policy goes on deciding"
    # One at a time holds the pad, and only that one's buttons act.
    played.ask(BOB, "join")
    played.ask(BOB, "take")
    played.ask(BOB, "buttons", nes.UP)
    played.ask(BOB, "give")
    assert played.next().reading.buttons == nes.LEFT
    assert played.game.status["player"] == ANN
    played.ask(ANN, "give")
    assert played.next().reading.buttons == nes.RIGHT
    # A player who leaves gives back.
    played.ask(BOB, "take")
    assert played.next().reading.buttons == 0
    played.ask(BOB, "leave")
    assert played.next().reading.buttons == nes.RIGHT
    assert played.game.status["viewers"] == 1


def test_stepping_while_paused(policy):
    played = Played(policy)
    played.next(3)
    played.ask(ANN, "pause", True)
    played.ask(ANN, "step")
    skip = played.game.frame_skip
    # Two frames were played: the step is what is left of six.
    assert [played.next().reading.step for _ in range(skip - 2)][-1] == 1
    assert played.game._stands_still()
    played.ask(ANN, "step")
    assert played.next(skip).reading.step == 2
    assert played.game._stands_still()
    assert played.game.status["paused"]
    played.ask(ANN, "take")
    played.ask(ANN, "step")
    played.next()
    assert played.game._stands_still(), "a person's step is a frame"
    played.ask(ANN, "pause", False)
    played.next(10)


def test_rewinding_is_exact(tmp_path):
    save_policy(tmp_path, 1000, action=1)  # right
    played = Played(tmp_path)
    shots = [played.next() for _ in range(150)]
    played.ask(ANN, "rewind", 1)
    again = played.next()
    # To the newest snapshot, of one every 30 frames, that is a second old.
    at = 60
    assert (again.frames == shots[at].frames).all()
    assert again.reading.x == shots[at].reading.x > 60
    assert again.reading.total == shots[at].reading.total
    for shot in shots[at + 1 :]:
        one = played.next()
        assert (one.frames == shot.frames).all()
        assert one.reading.total == shot.reading.total
        np.testing.assert_array_equal(one.reading.obs, shot.reading.obs)
    # Further than there is history: to the beginning.
    played.ask(ANN, "rewind", 600)
    assert (played.next().frames == shots[0].frames).all()
    assert played.game.status["history"] == 0


def test_rewinding_brings_the_dead_back(tmp_path):
    save_policy(tmp_path, 1000, action=1)  # right, into the first enemy
    played = Played(tmp_path)
    while not played.next().reading.ending:
        pass
    shot = played.next()
    assert shot.reading.ending == "died"
    dead_at = shot.reading.x
    played.next(20)  # on the way down
    played.ask(ANN, "pause", True)
    played.ask(ANN, "rewind", 3)
    shot = played.next()
    assert shot.reading.ending == ""
    assert shot.reading.x < dead_at
    assert played.game._stands_still(), "a game that is paused stays paused"
    # Also out of the next episode into the one before.
    played.ask(ANN, "pause", False)
    while not played.endings:
        played.next()
    played.next(30)
    played.ask(ANN, "rewind", 1.5)
    assert played.next().reading.x > 100


def test_levels_and_beginning_again(policy):
    played = Played(policy)
    played.next(50)
    played.ask(ANN, "level", "1-4")
    assert played.next().reading.level == "1-4"
    assert played.game.status["chosen"] == "1-4"
    played.next(90)
    played.ask(ANN, "restart")
    assert played.next().reading.step == 0
    played.ask(ANN, "level", "")
    assert played.next().reading.level == "1-1"


def test_a_person_who_clears_a_level_goes_on_to_the_next():
    played = Played(level="1-1")
    played.ask(ANN, "take")
    played.next(2)
    # As if at the flag: the game's own state for it.
    played.game._step = played.game._step._replace(terminated=True)
    played.game._ending = "cleared"
    while not played.endings:
        played.next()
    assert played.game._chosen == "1-2"
    assert played.game._reading().level == "1-2"


def test_the_limits_of_the_run_are_the_policys(tmp_path):
    save_policy(tmp_path, 1000, action=0)  # stands
    played = Played(tmp_path)
    limit = played.game._env.stall_steps * played.game.frame_skip
    for _ in range(limit + 40):
        shot = played.next()
        if shot.reading.ending:
            break
    assert shot.reading.ending == "stopped"
    assert shot.reading.step == pytest.approx(limit // 6, abs=6)
    person = Played()
    person.ask(ANN, "take")
    assert person.next(limit + 300).reading.ending == "", "a person may stand"


def test_a_game_that_nobody_watches_stands_still(policy):
    played = Played(policy)
    assert played.next(5)
    played.ask(ANN, "leave")
    played.ask(0, "quit")
    with pytest.raises(QuitError):
        played.next(2)
    assert played.game.status["viewers"] == 0


def test_the_newest_weights_play_the_next_episode(tmp_path):
    save_policy(tmp_path, 1000)
    played = Played(tmp_path)
    assert played.next().reading.caption == "trained 1,000 steps"
    save_policy(tmp_path, 2000)
    played.ask(ANN, "restart")
    assert played.next(2).reading.caption == "trained 2,000 steps"
