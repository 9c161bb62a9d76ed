"""The page about a run."""

import itertools
import json
import math
import re
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest

from mario_envpool.rom import RomError
from trainer.config.plain import flat, save, to_dict
from trainer.config.schema import RunConfig
from trainer.evaluation import plots
from trainer.machine import files
from trainer.report import main
from trainer.show import page
from trainer.show.page import curves, write
from trainer.show.run_files import RunFiles, read_run

EVIL = "<script>alert('1 & 2')"
PNG = b"\x89PNG not really"
VOID = {"meta", "img", "path", "use", "rect"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps what a test looks at."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.references = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def points(count=30):
    for i in range(1, count + 1):
        yield {
            "step": 1000 * i,
            "time/seconds": 5.0 * i,
            "time/sps": 200.0,
            "rollout/clear_rate": i / count,
            "rollout/return": float(i),
            "rollout/best_x_50": 100.0 * i,
            "rollout/episodes": 10.0 * i,
            "rollout/first_clear_episode": 12.0,
            "learn/loss/total": None,
            "learn/loss/entropy": 1 / i,
            "time/share_wait": 0.2,
            "time/share_learn": 0.5,
            "levels/1-1": 0.95,
            "levels/8-4": 0.05,
            "explore/frontier_x": 90.0 * i,
        }


EVALUATION = {
    "episodes": 100, "clears": 93, "clear_rate": 0.93, "clear_rate_95": [0.86, 0.97],
    "return_mean": 29.2, "best_x_median": 3161.0, "steps_to_clear_median": 188.0,
    "steps": 30000, "seconds": 150.0,
}  # fmt: skip
LEVEL = {
    "level": "4-2", "argmax": True, "repeat_action_probability": 0.0,
    "episodes": 31, "clears": 5,
    "clear_rate": 0.16, "interval": [0.07, 0.33], "return_mean": 1.0,
    "best_x_median": 900.0, "steps_to_clear_median": None, "stalled": 3,
    "timed_out": 0, "deaths": [[1, 2, 3]] * 23,
}  # fmt: skip


EPISODE = {
    "step": 9, "level": "4-2", "end": "stalled", "end_level": EVIL, "area": 37,
    "x": 33, "y": 79,
}  # fmt: skip


def make_run(folder, seed=1, solved=True, count=1):
    """A run of so many points; curves, of two and more, take most of a page's time."""
    (folder / "checkpoints").mkdir(parents=True)
    config = RunConfig(seed=seed)
    save(config, folder / "config.json", commit="abc123", command=EVIL)
    lines = [json.dumps(p) for p in points(count)]
    lines.insert(count // 4, lines[count // 4][:40])  # what a kill leaves
    lines.append(json.dumps({"step": 30000, "evaluation/clear_rate": 0.93}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 3')
    names = ["evaluation", *(["second evaluation"] if solved else [])]
    found = [json.dumps(EVALUATION | {"name": name}) for name in names]
    (folder / "evaluations.jsonl").write_text("\n".join(found))
    (folder / "episodes.jsonl").write_text(json.dumps(EPISODE) + '\n{"level')
    (folder / "checkpoints" / "step-000030000.pt").write_bytes(b"x" * 100)
    (folder / "messages.txt").write_text(f"    0:01  {EVIL}\n")
    for name in ("heatmap", "deaths-4-2", "whole-game"):
        path = folder / "evaluation" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PNG)
    games = {"argmax": False, "episodes": 9, "finished": 1, "passed_mean": 6.5}
    table = {"checkpoint": EVIL, "trained_steps": 30000, "results": [games, 5]}
    (folder / "evaluation" / "whole-game.json").write_text(json.dumps(table))
    (folder / "videos").mkdir()
    (folder / "videos" / "first clear.mp4").write_bytes(b"a film")
    (folder / "videos" / "videos.json").write_text("{}")
    table = {"checkpoint": EVIL, "trained_steps": 30000, "results": [LEVEL]}
    (folder / "evaluation" / "table.json").write_text(json.dumps(table))
    return folder


def test_levels_that_were_trained_and_others(tmp_path):
    folder = make_run(tmp_path / "run")
    sampled = LEVEL | {"argmax": False}
    levels = [sampled, sampled | {"level": "1-3", "unseen": True, "clear_rate": 0.02}]
    config = json.loads((folder / "config.json").read_text())
    config["env"] |= {"task": "SuperMarioBros-v0", "levels": ["4-2", "8-4"]}
    config["env"]["test_levels"] = ["1-3"]
    (folder / "config.json").write_text(json.dumps(config))
    line = EVALUATION | {"name": "evaluation at the end", "levels": levels}
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write("\n" + json.dumps(line | {"test_clear_rate": 0.02}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"step": 31000, "level_best_x/8-4": 777.4}))
    shown = " ".join(Page(write([folder]).read_text()).text)
    assert "1-3 (test)" in shown
    assert "4-2 (test)" not in shown
    assert (
        "after 30,000 steps; training levels 93% (86% to 97%), test levels 2%" in shown
    )
    assert "x 777" in shown
    assert "SuperMarioBros-v0 on 4-2, 8-4 tested on 1-3" in shown


@pytest.fixture(scope="module")
def page_of_a_run(tmp_path_factory):
    """The path of a page, and its text."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", count=30)
    (folder / "nan_batch.pt").write_bytes(b"x")  # no checkpoint
    path = write([folder])
    return path, path.read_text()


def test_a_page_has_everything(page_of_a_run):
    path, text = page_of_a_run
    assert path.name == "report.html"
    parsed = Page(text)
    shown = " ".join(" ".join(parsed.text).split())
    for section in (
        "Curves", "Levels in training", "Ends in training", "Evaluation",
        "Evaluation by level", "Heat map", "Deaths", "Whole game", "Videos",
        "Checkpoints", "Settings", "Messages",
    ):  # fmt: skip
        assert f"<h2>{section}</h2>" in text
    for part in (
        "SuperMarioBros-1-1-v0 solved", "93%", "(86% to 97%)", "30,000", "2:30", "300",
        "abc123", "second evaluation", "step-000030000.pt", "2 damaged lines", "95%",
        "Shares of time", "Clear rate over time", "Entropy",
        "Clear rate by level", "Furthest snapshot",
    ):  # fmt: skip
        assert part in shown, part
    row = "4-2 greedy 0 31 16% (7% to 33%) 1 900 - 23 3 0"
    cells = re.findall(r"<tr>(.*?)</tr>", text)
    rows = [" ".join(re.findall(r"<td>(.*?)</td>", cell)) for cell in cells]
    assert row in rows
    assert "sampled - 9 1 - 6.5 - - -" in rows
    assert parsed.tags.count("img") == 3
    assert parsed.tags.count("video") == 1
    assert f"4-2 1 0% 0% 100% 0% {escape(EVIL)} x 32: 1" in rows
    assert "No data for" not in shown
    assert "nan_batch" not in shown
    run = read_run(path.parent)
    assert len(run.points) == 31
    assert run.last["rollout/clear_rate"] == 1.0
    assert run.last["evaluation/clear_rate"] == 0.93


def test_maps_of_training_episodes(tmp_path, monkeypatch):
    def room(task, level, area, rom_path):
        if rom_path:
            raise RomError("no usable ROM")
        return np.zeros((208, 256, 3), np.uint8)

    monkeypatch.setattr(plots, "room_picture", room)
    folder = make_run(tmp_path / "run")
    line = EPISODE | {"end_level": "1-2", "end": "died"}
    (folder / "episodes.jsonl").write_text(json.dumps(line))
    map_of_level = '<img alt="deaths-1-2" src="data:image/png;base64,'
    assert write([folder]).read_text().count(map_of_level) == 1
    config = json.loads((folder / "config.json").read_text())
    config["env"]["rom_path"] = "/gone/my.nes"
    (folder / "config.json").write_text(json.dumps(config))
    text = write([folder]).read_text()
    assert map_of_level not in text
    assert "Ends in training" in text


def test_a_page_needs_no_network_and_runs_nothing(page_of_a_run):
    _, text = page_of_a_run
    parsed = Page(text)
    assert parsed.references
    for reference in parsed.references:
        assert not re.match(r"(?i)\s*(https?:|//|javascript:)", reference), reference
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert text.count("&lt;script&gt;alert(&#x27;1 &amp; 2&#x27;)") == 4
    assert text.count("&lt;script&gt;alert(1 &amp; 2)") == 1  # a word of the command


def test_ids_are_not_repeated(page_of_a_run):
    _, text = page_of_a_run
    found = re.findall(r' id="([^"]*)"', text)
    for name in set(found):
        # Equal paths have equal names, and only those.
        marked = re.findall(rf'id="{name}">\s*(<[^>]*>)', text)
        assert len(set(marked)) <= 1, name


def test_what_is_large_is_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_EMBEDDED", len(PNG))
    text = write([make_run(tmp_path / "run")]).read_text()
    assert text.count('src="data:image/png;base64,') == 1
    assert 'src="evaluation/deaths-4-2.png"' in text
    assert '<video controls loop muted playsinline src="videos/first%20clear.mp4">' in (
        text
    )
    assert "beside this page" in text


def test_a_damaged_or_empty_run_gives_a_page(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_text("{ damaged")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-000000001.pt").write_bytes(b"x")
    text = write([folder]).read_text()
    Page(text)
    assert "step-000000001.pt" in text
    assert "not solved" in text
    assert "No data for: curves, " in text


def test_an_old_page_stays_where_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    page = make_run(tmp_path / "run") / "report.html"
    page.write_text("an old page")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    assert main([str(tmp_path / "run")]) == 2
    assert page.read_text() == "an old page"
    assert not list(page.parent.glob("*.tmp"))


def test_settings_that_are_no_defaults_stand_out(tmp_path):
    folder = make_run(tmp_path / "run", seed=7)
    data = json.loads((folder / "config.json").read_text())
    data["learner"]["lr"] = 0.5
    data["learner"]["gone"] = 1
    (folder / "config.json").write_text(json.dumps(data))
    text = write([folder]).read_text()
    short, whole = text[text.index("Settings") :].split("<details>")
    for name in ("seed", "learner.lr"):
        assert f"<tr class=special><td>{name}</td>" in short
        assert f"<tr class=special><td>{name}</td>" in whole
    assert "learner.gamma" not in short
    assert "<tr><td>learner.gamma</td>" in whole
    count = len(flat(data)) - 3
    assert whole.count("<tr") == count + 1  # without commit, command and `gone`


def test_several_runs_are_compared(tmp_path, page_of_a_run):
    folders = [make_run(tmp_path / f"seed-{i}", i, i == 1, count=2) for i in (1, 2)]
    page = write(folders)
    assert page == tmp_path / "comparison.html"
    text = page.read_text()
    Page(text)
    assert "2 runs" in text
    for name in ("seed-1", "seed-2"):
        assert f"<td>{name}</td>" in text
        assert f">{name}</span>" in text  # the key of the colours
    assert "<td>seed</td><td>1</td><td>2</td><td>1</td>" in text
    _, one = page_of_a_run
    assert text.count("#afcc33") > one.count("#afcc33")  # a second line


def lightness_and_hue(colour):
    """CIELAB of #rrggbb, in which a distance of 2 is just seen."""
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb]
    rows = [
        (0.4339, 0.3762, 0.1899),
        (0.2126, 0.7152, 0.0722),
        (0.0177, 0.1095, 0.8729),
    ]
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in (sum(a * b for a, b in zip(row, rgb, strict=True)) for row in rows)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def nearest(colours):
    """The distance of the two that are most alike."""
    pairs = itertools.combinations(map(lightness_and_hue, colours), 2)
    return min(math.dist(one, other) for one, other in pairs)


def test_every_part_of_a_chart_has_its_own_colour(tmp_path):
    names = ["wait", "send", "copy", "act", "store", "explore", "learn"]
    shares = {f"time/share_{name}": 0.14 for name in names}
    rows = [{"step": step} | shares for step in (1000, 2000, 3000)]
    text = curves([RunFiles(tmp_path, points=rows)])
    chart = text[text.index("Shares of time") :].partition("</figure>")[0]
    # What is filled are the areas, and a square beside each name.
    found = re.findall(r"fill: (#[0-9a-f]{6})", chart)
    assert len(set(found)) == len(names)
    assert sorted(found) == sorted(2 * list(set(found)))
    assert nearest(set(found)) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("count", "apart"), [(12, 20), (30, 2)])
def test_every_run_of_a_comparison_has_its_own_colour(tmp_path, count, apart):
    rows = [{"step": 1000, "rollout/return": 1.0}, {"step": 2000, "rollout/return": 2}]
    text = curves([RunFiles(tmp_path / str(i), points=rows) for i in range(count)])
    keys = re.findall(r"--key:(#[0-9a-f]{6})", text)
    assert len(keys) == count
    assert nearest(keys) > apart
    assert set(re.findall(r"stroke: (#[0-9a-f]{6})", text)) == set(keys)


def test_a_single_point_is_no_curve(tmp_path):
    titles = []
    for count in (1, 2):
        drawn = curves([RunFiles(tmp_path, points=list(points(count)))])
        titles.append(re.findall("<figcaption>(.*?)</figcaption>", drawn))
    assert titles[0] == ["Clear rate by level, last 100 episodes"]
    assert {"Entropy", "Shares of time"} < set(titles[1])


def test_the_defaults_need_no_table(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    config = to_dict(RunConfig().resolved())
    (folder / "config.json").write_text(json.dumps(config))
    assert "All settings have their defaults." in write([folder]).read_text()


def test_the_command(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    assert main([str(folder), "--output", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'x.html'}\n"
    for arguments, says in (
        ([str(tmp_path)], "is not the folder of a run"),
        ([str(tmp_path / "none")], "is not the folder of a run"),
        ([str(folder), "--output", str(tmp_path / "no" / "x.html")], "No such file"),
        ([], "name at least one run folder"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert says in error
