"""Pictures of whole rooms, compared with what the game shows."""

from types import SimpleNamespace

import numpy as np
import pytest

from mario_envpool import _core
from trainer.config.tasks import all_levels
from trainer.evaluation import plots
from trainer.evaluation.plots import HUD_ROWS, room_picture

pytestmark = pytest.mark.rom
TASK = "SuperMarioBros-1-1-v0"


@pytest.fixture
def start(load_rom):
    """The first picture of a level without status bar, and its room."""

    def play(level):
        options = {"stages": [level], "frame_skip": 1}
        env = _core._MarioEnv(load_rom("vanilla"), options)
        info = env.reset()
        return env.render()[HUD_ROWS:], int(info["info:area_pointer"])

    return play


@pytest.mark.parametrize("level", all_levels(TASK))
def test_every_level_has_a_picture(start, level):
    """It begins with what the game shows, but for the player and the enemies."""
    screen, area = start(level)
    picture = room_picture(TASK, level, area)
    assert picture.dtype == np.uint8
    rows, columns, channels = picture.shape
    assert (rows, channels) == (208, 3)
    assert columns % 16 == 0
    assert 2000 < columns < 6500
    same = (picture[:, :256] == screen).all(-1)
    assert same.mean() > 0.97
    # Nothing repeats the first screen, as a camera that stands still would.
    assert (picture[:, 256:512] != picture[:, :256]).any()


def test_columns_are_positions(start, load_rom):
    """Pipes and walls of the picture are where the game stops the player."""
    _, area = start("1-1")
    picture = room_picture(TASK, "1-1", area)
    env = _core._MarioEnv(
        load_rom("vanilla"), {"stages": ["1-1"], "frame_skip": 1, "action_set": "raw"}
    )
    env.reset()
    for _ in range(400):
        _, over, _, info = env.step(0x80)
        env.ram[0x079F] = 23  # no enemy does him harm
        assert not over
    x = int(info["info:x_pos"])
    assert x == int(env.step(0x80)[3]["info:x_pos"])
    # Over the ground there is the pipe on his right, and sky on his left.
    over_ground = picture[-64:-32].astype(int)
    green = over_ground[..., 1] > over_ground[..., 2]
    assert green[:, x + 16 : x + 32].mean() > 0.6
    assert green[:, x - 32 : x].mean() < 0.1


def test_rooms_behind_pipes():
    bonus, water = room_picture(TASK, "1-1", 0x42), room_picture(TASK, "5-2", 0x00)
    assert bonus.shape[0] == water.shape[0] == 208
    blue = (water[..., 2] > 200) & (water[..., 0] < 50)
    assert blue.mean() > 0.3
    assert (bonus == 0).all(-1).mean() > 0.3


def test_a_camera_that_stands_still_ends_the_search():
    env = SimpleNamespace(
        ram=np.zeros(2048, np.uint8),
        step=lambda action: None,
        render=lambda: np.zeros((240, 256, 3), np.uint8),
    )
    with pytest.raises(RuntimeError, match="does not end within 8192 pixels"):
        plots._scan(env, bytes(0x8010))


def test_a_room_that_is_not_there():
    with pytest.raises(RuntimeError):
        room_picture(TASK, "1-1", 0x3F)
    with pytest.raises(ValueError, match="task Pong-v5 has no levels"):
        room_picture("Pong-v5", "1-1", 0)
