"""The page for browsers: who may come in, what is said to viewers and by them."""

import io
import json
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from small_runs import save_policy

from mario_envpool import _core, nes
from trainer import watch
from trainer.film.filmed_env import Reading
from trainer.film.live import Pace, PlayOptions, show_episodes
from trainer.film.shared_game import SharedGame

WEB = "starlette, uvicorn, websockets: pip install 'mario-envpool[web]'"
pytest.importorskip("starlette", reason=WEB)
pytest.importorskip("uvicorn", reason=WEB)
pytest.importorskip("websockets", reason=WEB)

from starlette.testclient import TestClient  # noqa: E402
from starlette.websockets import WebSocketDisconnect  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync import client as websockets_client  # noqa: E402

from trainer.film import web  # noqa: E402

LIVE = "ws://localhost:8000/live"
LEVELS = ("", "1-1", "1-2")
ROOT = Path(__file__).resolve().parents[2]


# Messages.


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        ('{"do": "take"}', "take", None),
        ('{"do": "pause", "value": true}', "pause", True),
        ('{"do": "buttons", "value": 131}', "buttons", 131),
        ('{"do": "rewind", "value": 2.5}', "rewind", 2.5),
        ('{"do": "speed", "value": 2}', "speed", 2),
        ('{"do": "level", "value": ""}', "level", ""),
    ],
)
def test_commands(message, name, value):
    assert web.read_command(message, 7, LEVELS) == (7, name, value)


BAD_MESSAGES = {
    "": "must be JSON",
    "{": "must be JSON",
    "[" * 200: "must be JSON",
    "[]": 'object with "do"',
    '"take"': 'object with "do"',
    '{"do": 3}': "unknown command; use take, give",
    '{"do": "join"}': "unknown command; use take, give",
    '{"do": "quit"}': "unknown command",
    '{"do": "take", "value": 1}': 'the value of "take" must be left out',
    '{"do": "pause"}': "must be true or false",
    '{"do": "pause", "value": true, "more": 1}': 'object with "do" and "value"',
    '{"do": "pause", "value": 1}': "must be true or false",
    '{"do": "buttons", "value": 256}': "must be an integer from 0 to 255",
    '{"do": "buttons", "value": true}': "must be an integer from 0 to 255",
    '{"do": "buttons", "value": 1.0}': "must be an integer from 0 to 255",
    '{"do": "rewind", "value": NaN}': "must be seconds from 0.1 to 600",
    '{"do": "rewind", "value": 1e999}': "must be seconds from 0.1 to 600",
    '{"do": "speed", "value": 0}': "must be a number from 0.1 to 8",
    '{"do": "speed", "value": "1"}': "must be a number from 0.1 to 8",
    '{"do": "level", "value": ["1-1"]}': "must be a level of the game",
    '{"do": "level", "value": "9-1"}': "unknown level; the last level is 1-2",
}


@pytest.mark.parametrize("message", BAD_MESSAGES)
def test_bad_messages(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        web.read_command(message, 7, LEVELS)
    assert BAD_MESSAGES[message] in str(error.value)
    # A close reason has at most 123 bytes (RFC 6455, section 5.5).
    assert len(str(error.value).encode()) <= 123


# Pictures.


def test_a_picture_keeps_every_colour():
    colours = np.asarray(_core.preprocess_palette())
    frame = np.resize(colours, (240, 256, 3))
    picture = Image.open(io.BytesIO(web.png(frame)))
    assert (np.asarray(picture) == frame).all()


def test_what_the_network_sees():
    obs = np.arange(4 * 36 * 36, dtype=np.uint8).reshape(4, 36, 36)
    picture = np.asarray(Image.open(io.BytesIO(web.view_png(obs))))
    assert (picture == np.hstack(obs)).all()
    tiles = np.zeros((1, 16, 16), np.uint8)
    tiles[0, 3, 5] = 1
    picture = np.asarray(Image.open(io.BytesIO(web.view_png(tiles))))
    assert picture.shape == (13, 16, 3)
    assert (picture[3, 5] != picture[0, 0]).any()


# The server, without a network.


def test_a_screen_that_is_closed_while_it_publishes():
    class Closing:
        levels, frame_skip = LEVELS, 6

        @property
        def status(self):
            screen.close()
            return {"paused": True}

    screen, calls = web.WebScreen(Closing()), []
    screen.open(SimpleNamespace(call_soon_threadsafe=lambda *call: calls.append(call)))
    reading = Reading("1-1", "", 0, ["none"], 0, None, None, 0.0, 1, 40, None)
    frame = np.zeros((240, 256, 3), np.uint8)
    screen.show(frame, reading)
    screen.show(frame, reading)  # closed: nothing more is sent
    assert len(calls) == 1
    assert calls[0][1]["x"] == 40


class Page:
    """A viewer: what it has been sent so far."""

    def __init__(self, socket):
        self.socket, self.state, self.pictures = socket, {}, []

    def ask(self, name, *value):
        self.socket.send_json({"do": name, **({"value": value[0]} if value else {})})

    def until(self, condition, most=2000):
        """Receives until the state is as wanted."""
        for _ in range(most):
            if self.state and condition(self.state):
                return self
            message = self.socket.receive()
            if message["type"] == "websocket.close":
                raise WebSocketDisconnect(message["code"], message["reason"])
            if message.get("text") is not None:
                self.state |= json.loads(message["text"])
            else:
                self.pictures.append(message["bytes"])
        raise AssertionError(f"not within {most} messages: {self.state}")


@contextmanager
def serving(policy=None, *, level="", host="127.0.0.1", token="", speed=4.0):
    """A client of an application that plays."""
    pace = Pace(speed)
    game = SharedGame(PlayOptions(policy, level, seed=5), pace)
    screen = web.WebScreen(game)

    def play():
        show_episodes(game.episodes(), screen, pace=pace, on_end=lambda line: None)

    app = web.make_app(game, screen, play, host=host, token=token)
    with TestClient(app, base_url="http://localhost:8000") as client:
        yield client


@pytest.fixture
def policy(tmp_path):
    save_policy(tmp_path, 1000, action=1)  # right
    return tmp_path


@pytest.mark.rom
def test_a_viewer_sees_the_policy_play(policy):
    with (
        serving(policy, speed=1.0) as client,
        client.websocket_connect(LIVE) as socket,
    ):
        page = Page(socket).until(lambda state: state.get("x", 0) > 100)
        state = page.state
        assert state["levels"][:2] == ["", "1-1"]
        assert (state["level"], state["caption"]) == ("1-1", "trained 1,000 steps")
        assert (state["frame_skip"], state["player"], state["viewers"]) == (6, None, 1)
        assert state["buttons"] == nes.RIGHT
        assert state["names"][state["action"]] == "right"
        assert sum(state["probabilities"]) == pytest.approx(1, abs=0.01)
        assert isinstance(state["value"], float)
        assert state["view"].startswith("data:image/png;base64,")
        assert len(page.pictures) > 5
        first, last = (
            np.asarray(Image.open(io.BytesIO(p)).convert("RGB"))
            for p in (page.pictures[0], page.pictures[-1])
        )
        assert first.shape == (240, 256, 3)
        assert (first != last).any()


@pytest.mark.rom
def test_controls(policy):
    with serving(policy) as client, client.websocket_connect(LIVE) as socket:
        page = Page(socket).until(lambda state: state.get("history", 0) > 1.5)
        page.ask("pause", True)
        page.until(lambda state: state["paused"])
        x, step = page.state["x"], page.state["step"]
        page.ask("step")
        page.until(lambda state: state["step"] == step + 1)
        page.ask("rewind", 1)
        page.until(lambda state: state["x"] < x)
        page.ask("level", "4-1")
        page.until(lambda state: (state["level"], state["chosen"]) == ("4-1", "4-1"))
        page.ask("speed", 0.5)
        page.until(lambda state: state["speed"] == 0.5)
        page.ask("pause", False)
        page.until(lambda state: not state["paused"] and state["step"] > 2)
        page.ask("restart")
        page.until(lambda state: state["step"] == 0)


@pytest.mark.rom
def test_two_viewers_take_turns(policy):
    with (
        serving(policy) as client,
        client.websocket_connect(LIVE) as one,
        client.websocket_connect(LIVE) as two,
    ):
        ann, bob = Page(one), Page(two)
        ann.until(lambda state: state.get("viewers") == 2)
        bob.until(lambda state: state.get("viewers") == 2)
        assert ann.state["you"] != bob.state["you"]
        ann.ask("take")
        for page in (ann, bob):
            page.until(lambda state: state["player"] == ann.state["you"])
        bob.ask("take")
        bob.ask("buttons", nes.UP)
        ann.ask("buttons", nes.LEFT)
        for page in (ann, bob):
            page.until(lambda state: state["buttons"] == nes.LEFT)
        assert bob.state["player"] == ann.state["you"]
        ann.ask("give")
        for page in (ann, bob):
            page.until(lambda state: state["player"] is None)
            page.until(lambda state: state["buttons"] == nes.RIGHT)
        bob.ask("take")
        ann.until(lambda state: state["player"] == bob.state["you"])
        two.close()
        ann.until(lambda state: state["player"] is None and state["viewers"] == 1)


@pytest.mark.rom
def test_without_a_policy_the_game_waits_for_a_player():
    with (
        serving(level="1-2") as client,
        client.websocket_connect(LIVE) as socket,
    ):
        page = Page(socket).until(lambda state: state.get("level") == "1-2")
        assert page.state["levels"][0] == "1-1"
        assert page.state["probabilities"] is None
        assert page.state["view"] == ""
        page.ask("take")
        page.ask("buttons", nes.RIGHT)
        page.until(lambda state: state["x"] > 50)


def refused(client, query="", **headers):
    """The code and reason with which a connection is closed at once."""
    with client.websocket_connect(LIVE + query, headers=headers) as socket:
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
        return closed.value.code, closed.value.reason


@pytest.mark.rom
def test_who_may_not_come_in():
    with serving(token="ham") as client:
        assert client.get("/").status_code == 403
        assert client.get("/?token=spam").text == (
            "wrong token: open the address that the server printed\n"
        )
        page = client.get("/?token=ham")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for path in ("/page", "/live", "/index.html", "/../web.py"):
            assert client.get(f"{path}?token=ham").status_code == 404
        assert client.post("/?token=ham").status_code == 405
        for query in ("", "?token=", "?token=Ham", "?token=h%C3%A4"):
            code, reason = refused(client, query)
            assert (code, reason[:12]) == (1008, "wrong token:")
        code, reason = refused(client, "?token=ham", origin="http://evil.example")
        assert (code, reason) == (1008, "pages from other origins may not connect")
        for origin in ("null", "http://[", ""):
            assert refused(client, "?token=ham", origin=origin)[1] == reason
        assert refused(client, "?token=ham", host="[")[0] == 1008
        # Another port is another origin.
        assert refused(client, "?token=ham", origin="http://localhost:1")[0] == 1008
        code, reason = refused(client, "?token=ham", host="evil.example:8000")
        assert (code, reason[:16]) == (1008, "wrong host name:")
        with pytest.raises(WebSocketDisconnect):
            client.websocket_connect("ws://localhost:8000/other?token=ham").__enter__()
        own = {"origin": "http://localhost:8000", "host": "localhost:8000"}
        with client.websocket_connect(f"{LIVE}?token=ham", headers=own) as socket:
            Page(socket).until(lambda state: "level" in state)


@pytest.mark.rom
@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("take", 1008, "a message must be JSON"),
        ('{"do": "speed", "value": 99}', 1008, 'the value of "speed" must be'),
        (" " * 257, 1009, "a message has at most 256 bytes"),
        (b"{}", 1008, "a message must be text"),
    ],
)
def test_bad_messages_close_the_connection_and_no_other(message, code, reason):
    with (
        serving() as client,
        client.websocket_connect(LIVE) as bad,
        client.websocket_connect(LIVE) as good,
    ):
        page = Page(good).until(lambda state: state.get("viewers") == 2)
        (bad.send_bytes if isinstance(message, bytes) else bad.send_text)(message)
        with pytest.raises(WebSocketDisconnect) as closed:
            Page(bad).until(lambda state: False)
        assert closed.value.code == code
        assert closed.value.reason.startswith(reason)
        page.until(lambda state: state["viewers"] == 1)


@pytest.mark.rom
def test_there_may_be_so_many_viewers(monkeypatch):
    monkeypatch.setattr(web, "MOST_VIEWERS", 1)
    with serving() as client, client.websocket_connect(LIVE) as one:
        Page(one).until(lambda state: "level" in state)
        assert refused(client) == (1013, "the limit is 1 viewers")


def test_addresses():
    with web._listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert web.address(listener, "127.0.0.1", "") == f"http://127.0.0.1:{port}/"
        assert web.address(listener, "::1", "x") == f"http://[::1]:{port}/?token=x"
        assert "0.0.0.0" not in web.address(listener, "0.0.0.0", "x")
        with pytest.raises(
            OSError, match=f"cannot listen on 127.0.0.1, port {port} .*--web"
        ):
            web._listen("127.0.0.1", port)


# The command.


@contextmanager
def server(*words, port=0):
    """The command in a process; gives its address."""
    command = [sys.executable, "-m", "trainer.watch", "--web", "--web-port", str(port)]
    with subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("watch and play at http://"), process.stderr.read()
            yield line.split()[4]
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.rom
def test_other_addresses_need_a_token():
    with server("--human", "--web-host", "0.0.0.0") as address:
        page, _, token = address.partition("?token=")
        assert len(token) > 15
        port = page.rpartition(":")[2].strip("/")
        url = f"ws://127.0.0.1:{port}/live"
        with (
            websockets_client.connect(url) as socket,
            pytest.raises(ConnectionClosed) as closed,
        ):
            socket.recv()
        assert closed.value.rcvd.reason.startswith("wrong token")
        with websockets_client.connect(f"{url}?token={token}") as socket:
            assert "levels" in json.loads(socket.recv())
            # What is much too large is refused before it is read.
            socket.send(" " * 100_000)
            with pytest.raises(ConnectionClosed) as closed:
                deque(iter(socket.recv, None), maxlen=0)
            assert closed.value.rcvd.code == 1009


def test_the_extra_that_is_missing(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "trainer.film.web")
    monkeypatch.delattr("trainer.film.web")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert watch.main(["--web", "--human"]) == 2
    assert capsys.readouterr().err == (
        "error: a browser needs starlette, uvicorn and websockets: pip install "
        "'mario-envpool[web]'\n"
    )
