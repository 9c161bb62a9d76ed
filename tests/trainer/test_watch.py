"""Watching live: half-block pictures that fit, keys, a terminal left as it was."""

import io
import os
import pty
import re
import signal
import termios
import time
from contextlib import closing

import numpy as np
import pytest
from small_runs import save_policy
from watching import FakeScreen

from mario_envpool import nes
from trainer import watch
from trainer.film import live
from trainer.film.filmed_env import Reading, button_names
from trainer.film.live import (
    QuitError,
    QuitKey,
    Terminal,
    Window,
    palette_colour,
    picture_lines,
    rgb_colour,
    status_line,
)
from trainer.machine.process import ENDING

NAMES = [button_names(b) for b in (0, 128, 129, 130, 131)]
READING = Reading(
    level="1-1", caption="trained 1,234 steps", buttons=131, names=NAMES, action=4,
    probabilities=np.array([0.1, 0.1, 0.1, 0.1, 0.6], np.float32), value=1.25,
    total=12.5, step=77, x=1234, obs=None,
)  # fmt: skip
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def visible(line):
    return ESCAPE.sub("", line)


# Pictures.


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 50), (300, 20), (20, 8)])
def test_a_picture_fits_every_terminal(size):
    columns, rows = size
    frame = np.random.default_rng(0).integers(0, 255, (240, 256, 3)).astype(np.uint8)
    lines = [visible(line) for line in picture_lines(frame, columns, rows)]
    assert len(lines) == rows - 1
    widths = {len(line.strip()) for line in lines} - {0}
    assert len(widths) == 1
    width, height = widths.pop(), 2 * sum(bool(line.strip()) for line in lines)
    assert all(len(line) <= columns for line in lines)
    # One side is used up, and the game keeps its shape.
    assert width >= columns - 3 or height >= 2 * (rows - 1)
    assert width / height == pytest.approx(256 / 208 * 8 / 7, rel=0.1)
    left = len(lines[rows // 2]) - width
    assert left == (columns - width) // 2


def test_a_terminal_too_small_says_so():
    frame = np.zeros((240, 256, 3), np.uint8)
    lines = picture_lines(frame, 12, 5)
    assert len(lines) == 4
    assert lines[0] == "at least 20x8, please"[:12]


def test_upper_and_lower_pixels_have_their_colours():
    frame = np.zeros((240, 256, 3), np.uint8)
    frame[:136] = (255, 0, 0)  # the upper half, the status bar not counted
    frame[136:] = (0, 0, 255)
    lines = [x for x in picture_lines(frame, 80, 25) if x]
    assert "\x1b[38;2;255;0;0;48;2;255;0;0m" in lines[0]
    assert "\x1b[38;2;0;0;255;48;2;0;0;255m" in lines[-1]
    # Colours are written where they change, not in every cell.
    assert len(ESCAPE.findall(lines[0])) == 2


def test_256_colours_are_the_nearest():
    colours = [
        (0, 0, 0), (255, 255, 255), (255, 0, 0), (95, 135, 175), (128, 128, 128),
        (30, 30, 30),
    ]  # fmt: skip
    assert palette_colour(np.array(colours, np.uint8)) == [
        "5;16", "5;231", "5;196", "5;67", "5;244", "5;234",
    ]  # fmt: skip
    assert rgb_colour(np.array([(1, 2, 3)], np.uint8)) == ["2;1;2;3"]


def test_the_status_line():
    wide = visible(status_line(READING, 120))
    assert len(wide) == 120
    for text in ("1-1", "right A B  60%", "x 1234", "step 77", "return  12.50",
                 "value   1.25", "1,234 steps"):  # fmt: skip
        assert text in wide
    assert "1,234 steps" not in visible(status_line(READING, 80))
    assert "value   1.25" in visible(status_line(READING, 80))
    assert len(visible(status_line(READING, 30))) == 30
    over = READING.__class__(**{**vars(READING), "ending": "cleared"})
    assert "cleared" in status_line(over, 80)


# Keys, and a terminal left as it was.


@pytest.fixture
def keys(monkeypatch):
    """A terminal: what is written to it is typed."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield lambda text: os.write(master, text.encode()) and time.sleep(0.01)
    os.close(master)


def attributes():
    import sys

    return termios.tcgetattr(sys.stdin.fileno())


def test_only_q_quits_in_a_terminal(keys):
    quit_key = QuitKey()
    assert not quit_key.pressed()
    keys("\x1b[Cxz\r")
    assert not quit_key.pressed()
    keys("xQ")
    assert quit_key.pressed()
    assert not quit_key.pressed()
    quit_key.close()


def test_the_terminal_is_left_as_it_was(keys, monkeypatch):
    before, output = attributes(), io.StringIO()
    monkeypatch.setattr(live.shutil, "get_terminal_size", lambda *_, **__: (80, 24))
    terminal = Terminal(output)
    assert attributes() != before
    frame = np.zeros((240, 256, 3), np.uint8)
    terminal.show(frame, READING)
    first = len(output.getvalue())
    terminal.show(frame, READING)
    assert len(output.getvalue()) - first < 50, "what is the same is not sent again"
    keys("q")
    with pytest.raises(QuitError):
        terminal.show(frame, READING)
    terminal.close()
    assert attributes() == before
    text = output.getvalue()
    assert text.startswith("\x1b[?1049h\x1b[?25l")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert text.count("\x1b[?1049l") == 1


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_end_leaves_the_terminal_as_it_was(keys, number, monkeypatch):
    before, output = signal.getsignal(number), io.StringIO()

    def work(config):
        with closing(Terminal(output)):
            signal.raise_signal(number)

    monkeypatch.setattr(watch, "watch", work)
    assert watch.main([]) == 128 + number
    assert output.getvalue().endswith("\x1b[?1049l")
    assert signal.getsignal(number) == before


def test_a_new_size_is_drawn_anew(keys, monkeypatch):
    size = (80, 24)
    monkeypatch.setattr(live.shutil, "get_terminal_size", lambda *_, **__: size)
    output = io.StringIO()
    terminal = Terminal(output)
    terminal.show(np.zeros((240, 256, 3), np.uint8), READING)
    size = (100, 30)
    terminal.show(np.zeros((240, 256, 3), np.uint8), READING)
    assert "\x1b[2J" in output.getvalue().split("\x1b[24;1H")[1]
    assert "\x1b[30;1H" in output.getvalue()
    terminal.close()


@pytest.mark.parametrize(
    ("truecolor", "expected"), [("truecolor", "38;2;"), ("", "38;5;")]
)
def test_colours_are_what_the_terminal_has(keys, monkeypatch, truecolor, expected):
    monkeypatch.setenv("COLORTERM", truecolor)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = io.StringIO()
    terminal = Terminal(output)
    terminal.show(np.full((240, 256, 3), 90, np.uint8), READING)
    terminal.close()
    assert expected in output.getvalue()


def test_a_window(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = Window()
    import pygame

    frame = np.full((240, 256, 3), 60, np.uint8)
    frame[:, :128] = (250, 10, 20)
    window.show(frame, READING)
    surface = pygame.display.get_surface()
    assert surface.get_size() == (768, 480)
    assert surface.get_at((100, 100))[:3] == (250, 10, 20)
    assert surface.get_at((300, 100))[:3] == (60, 60, 60)
    assert window.buttons() == 0
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    with pytest.raises(QuitError):
        window.show(frame, READING)
    window.close()


def test_a_display_that_is_not_there(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "none-such")
    with pytest.raises(
        ValueError, match=r"none-such .*without one, use --display terminal"
    ):
        Window()


# The command.


@pytest.fixture
def screen(monkeypatch):
    fake = FakeScreen()
    monkeypatch.setattr(watch, "open_screen", lambda kind: fake)
    monkeypatch.setattr(watch, "Window", lambda: fake)
    return fake


@pytest.mark.rom
def test_the_newest_weights_are_watched(tmp_path, screen, capsys):
    save_policy(tmp_path, 1000)
    show = screen.show

    def training_goes_on(frame, reading):
        show(frame, reading)
        if len(screen.readings) == 5:
            save_policy(tmp_path, 2000)

    screen.show = training_goes_on
    words = ["--checkpoint", str(tmp_path), "--episodes", "2", "--speed", "1000"]
    assert watch.main(words) == 0
    captions = [reading.caption for reading in screen.readings]
    assert list(dict.fromkeys(captions)) == [
        "trained 1,000 steps",
        "trained 2,000 steps",
    ]
    assert {r.action for r in screen.readings} == {4}
    assert screen.readings[-1].ending == "died"
    assert screen.closed == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:16] for line in lines] == ["1-1: died after "] * 2
    assert lines[1] == str(screen.readings[-1])


@pytest.mark.rom
def test_a_person_plays(screen):
    screen.pressed, screen.last = nes.RIGHT | nes.B, 120
    assert watch.main(["--human", "--level", "4-1", "--speed", "1000"]) == 0
    last = screen.readings[-1]
    assert (last.level, last.buttons) == ("4-1", nes.RIGHT | nes.B)
    assert last.x > 100
    assert last.step >= 120  # each frame is a step
    assert last.probabilities is None
    assert screen.closed == 1


@pytest.mark.rom
def test_the_screen_is_closed_whatever_happens(screen):
    def fail():
        raise KeyboardInterrupt

    screen.buttons = fail
    assert watch.main(["--human"]) == 130
    assert screen.closed == 1


def test_the_pace(monkeypatch):
    now, slept = 0.0, []
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    monkeypatch.setattr(live.time, "sleep", slept.append)
    pace = live.Pace(speed=0.5)
    assert pace.wait()
    assert slept == [pytest.approx(2 / 60.0988)]
    now = 0.19  # late: pictures are left out, but never many in a row
    assert [pace.wait() for _ in range(5)] == [False, False, False, True, True]
    assert len(slept) == 2, "on time again"
    now = 9.0  # far behind: continues from here
    assert [pace.wait() for _ in range(2)] == [False, True]
    assert slept[-1] == pytest.approx(2 / 60.0988)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --checkpoint RUN_OR_FILE, to watch its policy, or --human"),
        (["--human", "--checkpoint", "x"], "give either --checkpoint"),
        (["--human", "--speed", "0"], "speed must be above 0, got 0"),
        (["--human", "--episodes", "-1"], "episodes must be at least 0, got -1"),
        (["--human", "--level", "0-1"], "there is no level '0-1' in Super"),
        (["--checkpoint", "none.pt"], "no checkpoint at none.pt"),
        (["--human", "--display", "terminal"], "--human plays in a window"),
        (["--web", "--human", "--policy", "x"], "give --checkpoint or --human, not"),
        (["--human", "--record", "play.txt"], "give play.txt.json"),
        (["--human", "--display", "none"], "--display none only records: also give"),
        (
            "--human --display none --record a.json --episodes 1".split(),
            "--human plays in a window: leave out --display none",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, words, message):
    assert watch.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
