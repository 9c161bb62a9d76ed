"""What a person sees of a run."""

import io
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from trainer.config import flags
from trainer.config.schema import RunConfig
from trainer.machine.timings import format_seconds
from trainer.models import ModelSize
from trainer.show import dashboard
from trainer.show.dashboard import LiveDisplay, make_display
from trainer.show.display import PlainDisplay, RunInfo, progress_legend, progress_line
from trainer.show.screen import Status, chart, seconds_to_rate, view

VALUES = {
    "rollout/episodes": 2000.0,
    "rollout/first_clear_episode": 594.0,
    "rollout/return": 29.4,
    "rollout/best_x_50": 3028.2,
    "rollout/best_x_run": 3161.0,
    "rollout/clear_rate": 0.91,
    "learn/loss/total": -0.0021,
    "learn/loss/entropy": 0.197,
    "learn/explained_variance": 0.87,
    "learn/learning_rate": 6.77e-4,
    "learn/gradient_norm": 0.64,
    "time/share_wait": 0.18,
    "time/share_learn": 0.44,
    "time/share_emulate": 0.15,
    "time/sps": 6886.6,
    "system/host_memory_gb": 0.54,
    "system/cpu_percent": 171.2,
}
GPU = {"system/gpu_utilisation": 1.0, "system/gpu_memory_gb": 139.2}
REPLAY = {"replay/unrolls": 16384.0, "learn/replay/share": 0.5}
REPLAY |= {"learn/replay/age": 12.3, "learn/replay/kept": 0.934}
LEVELS = {
    f"levels/{w}-{s}": random.Random(w).random()
    for w in range(1, 9)
    for s in range(1, 5)
}
ESCAPE = "\x1b"


# -- plain lines -------------------------------------------------------------


def test_progress_line():
    values = {
        "time/sps": 3210.4,
        "rollout/return": 1.5,
        "rollout/best_x_50": 812.3,
        "rollout/best_x_run": 3161.0,
        "rollout/clear_rate": 0.25,
    }
    line = progress_line(123456, values, eta_s=200)
    columns = ("123,456 steps", "clear rate    25%", "best x    812", "return   1.50")
    for text in (*columns, "furthest x  3,161", "SPS  3,210", "ETA 3:20"):
        assert text in line
    legend = progress_legend(4).replace("\n", " ")
    for column in line.split(" | ")[1:]:
        assert f"{column.rpartition(' ')[0].rstrip()}: " in legend
    passed = values | {"rollout/levels_passed": 3.25}
    assert "levels done    3.2 |" in progress_line(123456, passed, eta_s=200)
    assert "no episode" in progress_line(1, {}, 0)
    assert format_seconds(3725) == "1:02:05"


def test_a_pipe_gets_plain_lines(capsys):
    display = make_display("auto")  # of pytest's captured stdout
    assert isinstance(display, PlainDisplay)
    display.log("hello")
    for wait, learn in ((0.1, 0.6), (0.1, 0.61), (0.7, 0.1)):
        values = VALUES | {"time/share_wait": wait, "time/share_learn": learn}
        display.report(1000, values, 60.0)
    display.checkpoint(Path("x.pt"), 1000)
    display.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hello"
    # The bottleneck is printed when it is another one, not when its figures are.
    starts = [line.split()[0].rstrip(":") for line in lines[1:]]
    assert starts == ["1,000", "learning-bound", "1,000", "1,000", "emulation-bound"]
    assert ESCAPE not in "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed pipe", "full disk"])
def test_lines_that_cannot_be_printed_end_no_run(kind):
    """Ctrl-C also ends what a run is piped to."""
    script = (
        "import sys; from trainer.show.display import PlainDisplay\n"
        "display = PlainDisplay()\n"
        "for i in range(3): display.log(str(i))\n"
        "print('went on', file=sys.stderr)"
    )
    if kind == "full disk":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stdout = os.pipe()
        os.close(reader)
    process = subprocess.run(
        [sys.executable, "-c", script], stdout=stdout, stderr=subprocess.PIPE, text=True
    )
    os.close(stdout)
    assert process.stderr.startswith("went on\n")
    if kind == "closed pipe":
        assert (process.returncode, process.stderr) == (0, "went on\n")


class Terminal(io.StringIO):
    encoding = "UTF-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("mode", "terminal", "kind", "encoding", "expected"),
    [
        ("auto", True, "xterm-256color", "UTF-8", LiveDisplay),
        ("auto", True, "xterm-256color", "iso8859-1", PlainDisplay),
        ("auto", True, "dumb", "UTF-8", PlainDisplay),
        ("auto", False, "xterm-256color", "UTF-8", PlainDisplay),
        ("off", True, "xterm-256color", "UTF-8", PlainDisplay),
        ("on", True, "dumb", "UTF-8", LiveDisplay),
    ],
)
def test_which_display(monkeypatch, mode, terminal, kind, encoding, expected):
    monkeypatch.setattr(Terminal, "encoding", encoding)
    monkeypatch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())
    monkeypatch.setenv("TERM", kind)
    assert type(make_display(mode)) is expected


def test_a_dashboard_needs_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(ValueError, match=r"dashboard=on needs a terminal.*auto or off"):
        make_display("on")


# -- the picture -------------------------------------------------------------


def make_info(run_dir=Path("runs/x"), steps=lambda: 7, replay_capacity=0, **options):
    """What a display is told of a run."""
    return RunInfo(
        config=flags.change(RunConfig(), **options), run_dir=run_dir,
        device=torch.device("cpu"), dtype=torch.bfloat16,
        size=ModelSize(parameters=9, forward_flops=9), replay_capacity=replay_capacity,
        steps=steps,
    )  # fmt: skip


def make_status(points=10, replay_capacity=16384, lag=0, **values):
    info = make_info(
        task="SuperMarioBrosRandomStages-v0", max_steps=1_000_000_000, lag=lag,
        steps=lambda: 98_765_432 * max(0, points - 1), replay_capacity=replay_capacity,
    )  # fmt: skip
    status = Status(info)
    for i in range(points):
        status.started = time.perf_counter() - 3600 * (i + 1)
        status.report(VALUES | values, 86_400.0)
    return status


def draw(status, width, height):
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True
    )
    console.print(view(status, width, height))
    text = console.file.getvalue()
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]


def full_status(lag=0):
    status = make_status(lag=lag, **GPU, **REPLAY, **LEVELS)
    path = Path("runs/x/checkpoints/step-098765432.pt")
    status.saved = status.seconds() - 12, 98_765_432, path
    status.messages.append((10.0, "first clear: videos/first-clear.mp4"))
    status.messages.append((3000.0, "evaluation: 93 of 100 episodes cleared " * 4))
    return status


def alarming_status():
    status = full_status()
    status.alarms = {"disk": "0.5 GB are left; make room " * 9, "NaN": "wide " * 40}
    return status


STATUSES = {
    "alarms": alarming_status,
    "new": lambda: make_status(points=0),
    "few values": lambda: make_status(**{"rollout/clear_rate": float("nan")}),
    "everything": full_status,
}
SIZES = [(80, 24), (200, 50), (100, 30), (120, 40), (76, 24), (60, 20), (40, 12)]


@pytest.mark.parametrize("size", [*SIZES, (20, 5), (8, 2), (300, 100)], ids=str)
@pytest.mark.parametrize("kind", STATUSES)
def test_every_size_is_filled_exactly(kind, size):
    width, height = size
    lines = draw(STATUSES[kind](), width, height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize("size", SIZES[:4], ids=str)
@pytest.mark.parametrize("lag", [0, 1])
def test_nothing_is_cut(size, lag):
    lines = draw(full_status(lag), *size)
    text = "\n".join(lines)
    assert "…" not in text
    for part in (
        "91%", "3,028", "29.40", "3,161", "594", "reached", "6,887", "18%", "44%",
        "CPU 171%, 0.5 GB GPU 100%, 139.2 GB", "-0.0021", "0.197", "0.87", "6.8e-04",
        "0.64", "Replay of 16,384", "16,384, age 12.3", "50% of batch, 93% kept",
        "0:12 ago, at 98,765,432", "step-098765432.pt", "GPU-bound",
        "93 of 100", "ETA 24:00:00",
    ):  # fmt: skip
        assert part in text, part
    grid = [re.search(r"│ -\d ([ \d]+)│", line) for line in lines]
    assert [len(row[1].split()) for row in grid if row] == [8] * 4


@pytest.mark.parametrize("size", [*SIZES[:4], (60, 20)], ids=str)
def test_alarms_are_above_all_else_until_they_are_over(size):
    lines = draw(alarming_status(), *size)
    assert lines[0].startswith(" ALARM  disk: 0.5 GB are left; make room ")
    assert lines[1].startswith(" ALARM  NaN: wide")
    # All the rest is as in a terminal of two lines less.
    rest = draw(full_status(), size[0], size[1] - 2)
    assert [line[:20] for line in lines[4:7]] == [line[:20] for line in rest[2:5]]


def test_the_live_display_takes_alarms_away_again(tmp_path):
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True))
    display.alarm("disk", "before the start")  # of no run yet
    display._status = status = make_status()
    display.alarm("disk", "full")
    display.alarm("NaN", "x")
    assert status.alarms == {"disk": "full", "NaN": "x"}
    display.alarm("disk", "")
    assert status.alarms == {"NaN": "x"}


def test_more_room_shows_more():
    small, large = ("\n".join(draw(full_status(), *size)) for size in SIZES[:2])
    for title in ("Explained variance", "Entropy", "Best x, mean"):
        assert title in large
        assert title not in small
    assert "kernels run 100% of the time" in " ".join(large.split())


@pytest.mark.parametrize("size", SIZES[:4], ids=str)
@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (
            {"explore/snapshots": 1134.0, "explore/frontier_x": 2112.0},
            "1,134 places, 2,112 px in",
        ),
        ({"explore/demonstration_left": 0.71}, "71% still ahead"),
    ],
)
def test_starts_are_shown(size, values, shown):
    values |= {"explore/snapshot_share": 0.48, "explore/snapshot_clear_rate": 0.12}
    text = "\n".join(draw(make_status(replay_capacity=0, **values), *size))
    assert shown in text
    assert "48% of starts, 12% clear" in text
    assert "of starts" not in "\n".join(draw(make_status(), *size))


def test_columns_do_not_move():
    """The same place for every figure, whatever its size."""
    labels = ("clear rate", "SPS", "loss", "entropy", "■ learn", "ETA", "checkpoint")
    small = {"time/sps": 1.0, "learn/loss/total": 0.0, "time/share_learn": 0.01}
    statuses = make_status(points=0), make_status(**small), full_status()
    for lines in zip(*(draw(status, 80, 24) for status in statuses), strict=True):
        for label in labels:
            places = {line.find(label) for line in lines}
            assert len(places) == 1, (label, lines)


def test_the_newest_messages_are_shown_whole():
    status = make_status()
    for i in range(9):
        status.messages.append((60.0 * i, f"message {i} " + "word " * 20))
    text = "\n".join(draw(status, 80, 24))
    assert "message 8" in text
    assert "8:00  message 8" in text
    assert "message 5" not in text
    assert text.count("message") == text.count(":00  message")


def test_a_chart():
    points = ((0.0, 0.0), (10.0, 1.0))
    assert chart(points, 2, 1) == ["⡠⠊"]
    assert chart(points, 4, 2) == ["  ⡠⠊", "⡠⠊  "]
    assert chart((), 2, 1) == ["  "]
    assert chart(points, 2, 1, 0.0, 2.0) == ["⡠⠤"]
    # Columns share the time, not the points.
    late = ((0.0, 0.0), (8.0, 0.0), (9.0, 0.0), (10.0, 1.0))
    assert chart(late, 3, 1, 0.0, 1.0) == ["⣀⣀⡸"]
    steep = chart(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)), 1, 3)
    assert all(line.strip() for line in steep)  # one line without a gap


def test_curves_keep_the_newest_points():
    status = make_status(points=0)
    for i in range(3000):
        status.started = time.perf_counter() - i
        status.report({"time/sps": float(i)}, 0.0)
    points = status.curves["time/sps"]
    assert len(points) <= 1024
    assert points[0][1] == 0
    assert [value for _, value in points[-100:]] == list(range(2900, 3000))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 40.0),
        ([0.0] * 20 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 10.0),
        ([0.5, 0.92], 0.0),
        ([0.5, 0.5, 0.5, 0.505], None),
        ([0.8, 0.7, 0.6], None),
        ([0.5, 0.6], None),
        ([], None),
    ],
)
def test_when_it_is_solved_by_the_slope(rates, expected):
    points = [(10.0 * i, rate) for i, rate in enumerate(rates)]
    seconds = seconds_to_rate(points, 0.9)
    assert seconds == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
@pytest.mark.parametrize("exists", [True, False])
def test_messages_are_kept(tmp_path, monkeypatch, kind, exists):
    monkeypatch.setattr(RunInfo, "banner", lambda info: "what is run\nand where")
    display = kind()
    display.log("before there is a folder")
    display.start(make_info(tmp_path if exists else tmp_path / "missing"))
    display.log("evaluation: 93 of 100")
    display.report(10, VALUES, 1.0)
    display.close()
    display.log("too late")
    if not exists:  # no error
        return
    assert (tmp_path / "messages.txt").read_text().splitlines()[:4] == [
        "    0:00  before there is a folder",
        "    0:00  what is run",
        "          and where",
        "    0:00  evaluation: 93 of 100",
    ]
    assert "too late" not in (tmp_path / "messages.txt").read_text()


# -- the live display --------------------------------------------------------


@pytest.fixture
def live(monkeypatch):
    """A started live display on a terminal of 80x24, and the steps of its run."""
    monkeypatch.setattr(RunInfo, "banner", lambda info: "what is run")
    file = Terminal()
    display = LiveDisplay(
        Console(file=file, width=80, height=24, force_terminal=True, highlight=False)
    )
    steps = [7]
    display.start(make_info(steps=lambda: steps[0]))
    yield display, steps, file
    display.close()


def test_what_is_printed_and_logged_is_a_message(monkeypatch):
    monkeypatch.setattr(RunInfo, "banner", lambda info: "")
    root, handler = logging.getLogger(), logging.StreamHandler()
    before = sys.stdout, sys.stderr
    root.addHandler(handler)
    file = Terminal()
    display = LiveDisplay(Console(file=file, force_terminal=True))
    try:
        display.start(make_info())
        logging.getLogger("trainer.test").warning("no GPU figures")
        print("printed", end=" ")
        thread = threading.Thread(target=print, args=("by a thread",))
        thread.start()
        thread.join()
        print("in two parts")
        print("an error", file=sys.stderr)
        hint, *said = [text for _, text in display._status.messages]
        assert hint.startswith("writing to runs/x/; Ctrl-C ends")
        assert said == [
            "no GPU figures", "by a thread", "printed in two parts", "an error"
        ]  # fmt: skip
        assert all(text in file.getvalue() for text in said)
    finally:
        display.close()
        root.removeHandler(handler)
    assert (sys.stdout, sys.stderr) == before
    assert handler.stream is sys.stderr


def test_it_draws_what_is_reported(live):
    display, steps, file = live
    steps[0] = 123_456
    display.report(123_000, VALUES, 60.0)
    display.checkpoint(Path("runs/x/checkpoints/step-000123000.pt"), 123_000)
    display.log("evaluation: 93 of 100")
    display._refresh()
    text = file.getvalue()
    path = "step-000123000.pt"
    for part in ("what is run", "123,456 of", "3,028", path, "93 of 100"):
        assert part in text, part


def test_the_terminal_is_left_as_it_was(live):
    display, _, file = live
    display.close()
    display.close()
    display.log("the end")
    text = file.getvalue()
    # From the start on, because Ctrl-Z leaves it as it is.
    first, last = f"{ESCAPE}[?25l", f"{ESCAPE}[?25h"
    assert text.count(first) == 1
    assert text.index(first) < text.index(last) < text.index("SPS")
    assert text.endswith("the end\n")
    names = [thread.name for thread in threading.enumerate()]
    assert "dashboard" not in names


def test_a_terminal_that_is_gone_ends_no_run(live, monkeypatch):
    display, _, file = live

    def gone(text):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(file, "write", gone)
        display.log("nobody sees this")
    assert "nobody sees this" in [text for _, text in display._status.messages]


def test_a_new_size_clears_what_the_old_one_left(live):
    display, _, file = live
    display._console.width = 100
    file.truncate(0)
    display._refresh()
    assert f"{ESCAPE}[2J" in file.getvalue()
    widths = {
        len(line)
        for line in re.sub(r"\x1b\[[0-9;?]*\w", "", file.getvalue()).splitlines()
        if "│" in line
    }
    assert widths == {100}


def test_a_broken_picture_ends_no_run(live, monkeypatch):
    display, _, file = live
    monkeypatch.setattr(dashboard, "view", lambda *_: 1 / 0)
    display.log("still here")
    display._refresh()
    assert "still here" in file.getvalue()
    assert "cannot be drawn: ZeroDivisionError" in file.getvalue()
