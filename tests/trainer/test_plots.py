"""Pictures of evaluations."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from trainer.config.tasks import all_levels
from trainer.evaluation import plots
from trainer.evaluation.play import wilson
from trainer.evaluation.results import LevelResult
from trainer.rollout.episodes import Place

TASK = "SuperMarioBros-1-1-v0"
ROOM = np.full((208, 2000, 3), 90, np.uint8)
ABOUT = {"checkpoint": "runs/x", "task": TASK, "trained_steps": 7, "episodes": 10}


def result(level, clears=5, argmax=False, **places):
    return LevelResult(
        level=level,
        argmax=argmax,
        repeat_action_probability=0.0,
        episodes=10,
        clears=clears,
        clear_rate=clears / 10,
        interval=wilson(clears, 10),
        return_mean=1.0,
        best_x_median=100.0,
        steps_to_clear_median=None,
        stalled=0,
        timed_out=0,
        deaths=places.get("deaths", []),
        stalls=places.get("stalls", []),
        cleared_starts=[0] if argmax else None,
        episode_steps=[50] * 10,
        episode_best_x=[100] * 10,
    )


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def has_colour(picture, colour):
    return bool((abs(picture - colour).sum(-1) < 12).any())


def test_a_heat_map_shows_the_rates(tmp_path):
    """Cells differ only where rates do, and unknown levels are blank."""

    def draw(clears):
        levels = [result("1-1", clears), result("8-4", 0)]
        plots.heat_map(levels, [], tmp_path / "x.png", worlds=8, title="title")
        return pixels(tmp_path / "x.png")

    full, empty = draw(10), draw(0)
    yellow, blue = ((plots._COLOURS(rate)[:3]) for rate in (1.0, 0.0))
    where = np.argwhere((full != empty).any(-1))
    cell = full[where[:, 0].min() : where[:, 0].max()]
    assert has_colour(cell, np.array(yellow) * 255)
    assert has_colour(empty[: len(empty) // 3], np.array(blue) * 255)
    # One cell of 8 x 4 beside the colour bar.
    height, width = np.ptp(where, axis=0)
    assert height < full.shape[0] / 8
    assert width < full.shape[1] / 4


def test_a_heat_map_has_the_worlds_of_the_game(tmp_path):
    about = ABOUT | {"task": "SuperMarioBros2-v0"}
    levels = [result(level, 10) for level in all_levels(about["task"])]
    list(plots.draw(about, levels, tmp_path))
    lost = pixels(tmp_path / "heatmap.png")
    list(plots.draw(ABOUT, levels, tmp_path))
    assert len(lost) < 0.6 * len(pixels(tmp_path / "heatmap.png"))


def test_a_death_map_has_marks_where_they_belong(tmp_path):
    deaths = [Place(37, 400, 79)] * 3 + [Place(37, 1500, 0)]
    level = result("1-1", deaths=deaths, stalls=[Place(37, 1800, 500)])
    with (tmp_path / "x.png").open("wb") as file:
        plots.death_map(level, {37: ROOM}, file, title="title")
    picture = pixels(tmp_path / "x.png")
    # Two strips of 1,008 pixels: a pixel of the room is one of the picture.
    rows, columns = 208, 1008
    assert picture.shape[1] == plots._LEFT + columns + plots._RIGHT
    assert picture.shape[0] == plots._TOP + 2 * (rows + plots._GAP)
    room = (picture == 90).all(-1)
    assert room.sum() > 0.9 * rows * 2000
    red = (abs(picture - (0xD7, 0x19, 0x1C)).sum(-1) < 12)[plots._TOP :]
    x, y = plots.position(deaths[:1], rows)
    assert red[int(rows - y) - 12 : int(rows - y) + 12, int(plots._LEFT + x)].any()
    assert red[: rows + 8].sum() > red[rows + 8 :].sum() > 0  # three and one
    yellow = abs(picture - (0xFF, 0xD9, 0x2F)).sum(-1) < 12
    assert yellow[plots._TOP :].any()


def test_maps_of_training_are_those_of_evaluations(tmp_path, monkeypatch):
    asked = []

    def room(task, level, area, rom_path):
        asked.append((level, area, rom_path))
        return ROOM

    monkeypatch.setattr(plots, "room_picture", room)
    line = {"step": 5, "end_level": "1-2", "end": "died", "area": 64, "x": 90, "y": 79}
    others = {"end_level": "9-9"}, {"end_level": "1-3", "end": "timed out"}
    ends = {}, {"area": 2, "end": "stalled"}, {"end": "cleared"}, {"x": 300}, *others
    # A damaged file may name any rooms.
    many = [line | {"end_level": "1-4", "area": 100 + n} for n in range(99)]
    drawn = dict(
        plots.draw_training(TASK, [*(line | end for end in ends), *many], "my.nes")
    )
    assert list(drawn) == ["deaths-1-2", "deaths-1-4"]
    assert asked[:2] == [("1-2", 64, "my.nes"), ("1-2", 2, "my.nes")]
    assert len(asked) == 2 + plots._MOST_ROOMS
    (tmp_path / "x.png").write_bytes(drawn["deaths-1-2"])
    level = result("1-2", 1, deaths=[Place(64, x, 79) for x in (90, 300)])
    level = replace(level, episodes=4, stalls=[Place(2, 90, 79)])
    with (tmp_path / "y.png").open("wb") as file:
        title = "training from step 5 on"
        plots.death_map(level, {64: ROOM, 2: ROOM}, file, title=title)
    assert (pixels(tmp_path / "x.png") == pixels(tmp_path / "y.png")).all()


@pytest.mark.parametrize("y", [0, 20, 79, 255, 510])
def test_marks_are_inside_the_picture(y):
    x, up = plots.position([Place(1, 100, y), Place(1, 104, y)], 208)
    assert x == 110
    assert 0 < up < 208


def test_marks_near_each_other_are_one():
    places = [Place(1, x, 79) for x in (0, 10, 20, 100)] + [Place(1, 0, 150)]
    assert sorted(map(len, plots._clusters(places))) == [1, 1, 3]


def test_all_pictures_of_an_evaluation(tmp_path, monkeypatch, caplog):
    def room(task, level, area, rom_path):
        assert task == TASK
        if area == 99:
            raise RuntimeError("there is no room 0x63")
        return ROOM

    monkeypatch.setattr(plots, "room_picture", room)
    (tmp_path / "deaths-7-1.png").write_bytes(b"old")
    (tmp_path / "mine.png").write_bytes(b"keep")
    levels = [result(level, 10) for level in all_levels(TASK)[:3]]
    levels[1] = result("1-2", deaths=[Place(64, 5, 79), Place(99, 5, 79)])
    starts = [result(r.level, 1, argmax=True) for r in levels]
    written = list(plots.draw(ABOUT, [*levels, *starts], tmp_path))
    assert [p.name for p in written] == ["heatmap.png", "deaths-1-2.png"]
    assert {p.name for p in tmp_path.iterdir()} == {
        "heatmap.png",
        "deaths-1-2.png",
        "mine.png",
    }
    assert "no picture of a room of 1-2: there is no room 0x63" in caplog.text
    # One level needs no map of all.
    assert list(plots.draw(ABOUT, levels[:1], tmp_path)) == []
    assert not (tmp_path / "heatmap.png").exists()
