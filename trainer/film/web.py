"""A web page to watch and play a game on: a third screen beside window and terminal.

    GET /       the page (page/index.html), which loads no other files
    /live       a WebSocket: pictures (PNG) and the status beside them (JSON) to the
                viewer, commands (JSON, `COMMANDS`) from the viewer

A text message to the viewer has the fields that have changed since the last message. A
viewer with a slow connection receives fewer pictures, always the newest.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import re
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trainer.config.schema import TILES_SHAPE
from trainer.envs.pool import tiles_picture
from trainer.film.filmed_env import Picture, Reading
from trainer.film.shared_game import Command, SharedGame
from trainer.machine.imports import extra
from trainer.machine.process import Interrupted, on_signal

with extra("web", "a browser needs starlette, uvicorn and websockets"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

LOCAL = ("127.0.0.1", "localhost", "::1")
MOST_VIEWERS = 32
# Limits: bytes of a message, and messages that wait for the game.
MOST_BYTES, MOST_WAITING = 256, 500
# At most 75 pictures a second are sent: at a high speed some are left out.
_SECONDS_BETWEEN = 1 / 75
# Why a connection is closed (RFC 6455, section 7.4.1).
_REFUSED, _TOO_LARGE, _LATER = 1008, 1009, 1013

_PAGE = Path(__file__).with_name("page") / "index.html"
# The page loads nothing from elsewhere, and no other page may show it in a frame.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


# Messages from viewers.


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


#: Commands of a viewer: {"do": NAME}, or {"do": NAME, "value": VALUE}. Maps each name
#: to a description of the allowed value and its check. A level must also be one of the
#: game's levels.
COMMANDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("take", "give", "step", "restart"), ("left out", lambda value: value is None)
    ),
    "pause": ("true or false", lambda value: isinstance(value, bool)),
    "buttons": (
        "an integer from 0 to 255",
        lambda value: type(value) is int and 0 <= value <= 255,
    ),
    "rewind": ("seconds from 0.1 to 600", _number(0.1, 600)),
    "speed": ("a number from 0.1 to 8", _number(0.1, 8)),
    "level": ("a level of the game", lambda value: isinstance(value, str)),
}


def read_command(text: str, viewer: int, levels: tuple[str, ...]) -> Command:
    """Parses a viewer's message into a command."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("a message must be JSON") from None
    if not isinstance(message, dict) or not {"do"} <= set(message) <= {"do", "value"}:
        raise ValueError('a message must be a JSON object with "do" and "value"')
    name, value = message["do"], message.get("value")
    if not isinstance(name, str) or name not in COMMANDS:
        raise ValueError(f"unknown command; use {', '.join(COMMANDS)}")
    allowed, fits = COMMANDS[name]
    if not fits(value):
        raise ValueError(f'the value of "{name}" must be {allowed}')
    if name == "level" and value not in levels:
        raise ValueError(f"unknown level; the last level is {levels[-1]}")
    return Command(viewer, name, value)


# Pictures.


def png(picture: Picture) -> bytes:
    """A picture as a PNG, compressed little, because that is fast."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def view_png(obs: Picture) -> bytes:
    """The observation as a PNG: its frames side by side, the oldest on the left."""
    if obs.shape == TILES_SHAPE:
        # One pixel for each tile; the page enlarges the picture.
        return png(tiles_picture(obs)[8::16, 8::16])
    return png(np.concatenate(list(obs), axis=1))


# To the viewers.


class _Viewer:
    """The data to send to one viewer: the changed fields and the newest picture."""

    def __init__(self, fields: Mapping[str, Any], picture: bytes | None) -> None:
        self._fields, self._picture = dict(fields), picture
        self._news = asyncio.Event()
        self._news.set()

    def put(self, fields: Mapping[str, Any], picture: bytes | None) -> None:
        self._fields.update(fields)
        self._picture = picture or self._picture
        self._news.set()

    async def send_to(self, socket: WebSocket) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            fields, picture = self._fields, self._picture
            self._fields, self._picture = {}, None
            if fields:
                await socket.send_text(json.dumps(fields, separators=(",", ":")))
            if picture is not None:
                await socket.send_bytes(picture)


class WebScreen:
    """A screen (`trainer.film.live.Screen`) on every open page."""

    def __init__(self, game: SharedGame) -> None:
        self._game = game
        game.on_change = lambda: self._publish(None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._viewers: dict[int, _Viewer] = {}
        self._fields: dict[str, Any] = {
            "levels": game.levels,
            "frame_skip": game.frame_skip,
        }
        self._picture: bytes | None = None
        self._reading: Reading | None = None
        self._shown_at = -math.inf

    def show(self, frame: Picture, reading: Reading) -> None:
        """See `Screen.show`."""
        now = time.monotonic()
        self._reading = reading
        if now - self._shown_at < _SECONDS_BETWEEN and not self._game.status["paused"]:
            return
        self._shown_at = now
        self._publish(png(frame))

    def close(self) -> None:
        """See `Screen.close`."""
        self._loop = None

    def _publish(self, picture: bytes | None) -> None:
        """Passes a picture and the changed fields to the server's thread."""
        loop = self._loop  # `close` may be called meanwhile
        if loop is not None and self._reading is not None:
            fields = self._game.status | self._as_fields(self._reading)
            with suppress(RuntimeError):  # the server may have ended, too
                loop.call_soon_threadsafe(self._distribute, fields, picture)

    @staticmethod
    def _as_fields(reading: Reading) -> dict[str, Any]:
        view, obs = "", reading.obs
        if obs is not None:
            encoded = base64.b64encode(view_png(obs)).decode()
            view = f"data:image/png;base64,{encoded}"
        odds = reading.probabilities
        fields = vars(reading) | {
            "probabilities": None if odds is None else odds.round(3).tolist(),
            "value": None if reading.value is None else round(reading.value, 2),
            "total": round(reading.total, 2),
            "view": view,
            "view_frames": 0 if obs is None else len(obs),
        }
        del fields["obs"]  # its picture is the view
        return fields

    # The methods below run in the server's thread.

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to send, from the server's thread."""
        self._loop = loop

    def _distribute(self, fields: Mapping[str, Any], picture: bytes | None) -> None:
        news = {k: v for k, v in fields.items() if self._fields.get(k, self) != v}
        self._fields.update(news)
        self._picture = picture or self._picture
        for viewer in self._viewers.values():
            viewer.put(news, picture)

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of viewers is connected."""
        return len(self._viewers) >= MOST_VIEWERS

    async def serve(self, number: int, socket: WebSocket) -> None:
        """Shows the game to one viewer and passes on the viewer's commands."""
        fields = self._fields | {"you": number}
        viewer = self._viewers[number] = _Viewer(fields, self._picture)
        self._game.commands.put(Command(number, "join"))
        sending = asyncio.create_task(viewer.send_to(socket))
        try:
            with suppress(WebSocketDisconnect):
                await self._listen(number, socket)
        finally:
            del self._viewers[number]
            self._game.commands.put(Command(number, "leave"))
            sending.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await sending

    async def _listen(self, number: int, socket: WebSocket) -> None:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            text = message.get("text")
            if text is None:
                return await socket.close(_REFUSED, "a message must be text")
            if len(text.encode()) > MOST_BYTES:
                reason = f"a message has at most {MOST_BYTES} bytes"
                return await socket.close(_TOO_LARGE, reason)
            try:
                command = read_command(text, number, self._game.levels)
            except ValueError as error:
                return await socket.close(_REFUSED, str(error))
            if self._game.commands.qsize() > MOST_WAITING:
                return await socket.close(_REFUSED, "too many messages at once")
            self._game.commands.put(command)


# The server.


def refusal(connection: HTTPConnection, served_host: str, token: str) -> str:
    """The reason to refuse a connection; "" if it is allowed."""
    # A foreign page whose host name resolves to this machine (DNS rebinding).
    host = connection.headers.get("host", "")
    name = re.sub(r":\d*$", "", host).strip("[]")
    if served_host in LOCAL and name not in LOCAL:
        return "wrong host name: open the address that the server printed"
    # A foreign page that connects to this machine; other programs send no origin.
    origin = connection.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return "pages from other origins may not connect"
    sent = connection.query_params.get("token", "")
    if token and not secrets.compare_digest(sent.encode(), token.encode()):
        return "wrong token: open the address that the server printed"
    return ""


def make_app(
    game: SharedGame,
    screen: WebScreen,
    play: Callable[[], None],
    *,
    host: str,
    token: str,
) -> Starlette:
    """Makes the web application."""
    page = _PAGE.read_text("utf-8")
    numbers = count(1)

    async def show_page(request: Request) -> Response:
        if why := refusal(request, host, token):
            return PlainTextResponse(f"{why}\n", 403)
        return HTMLResponse(page, headers=_HEADERS)

    async def live(socket: WebSocket) -> None:
        # Accept first: otherwise the page in the browser receives no reason.
        await socket.accept()
        if why := refusal(socket, host, token):
            await socket.close(_REFUSED, why)
        elif screen.is_full:
            await socket.close(_LATER, f"the limit is {MOST_VIEWERS} viewers")
        else:
            await screen.serve(next(numbers), socket)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        screen.open(asyncio.get_running_loop())
        thread = threading.Thread(target=play, name="game")
        thread.start()
        yield
        screen.close()
        game.commands.put(Command(0, "quit"))
        await asyncio.to_thread(thread.join)

    routes = [Route("/", show_page), WebSocketRoute("/live", live)]
    return Starlette(routes=routes, lifespan=lifespan)


def serve(
    game: SharedGame,
    play: Callable[[WebScreen], None],
    *,
    host: str,
    port: int,
    token: str,
) -> None:
    """Serves a game until it ends, or until a signal to end."""
    if not token and host not in LOCAL:
        token = secrets.token_urlsafe(16)
    listener = _listen(host, port)
    screen, failed = WebScreen(game), []

    def play_to_the_end() -> None:
        try:
            play(screen)
        except Exception as error:
            failed.append(error)
        server.should_exit = True

    app = make_app(game, screen, play_to_the_end, host=host, token=token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=16 * MOST_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    where = address(listener, host, token)
    print(f"watch and play at {where} (Ctrl-C ends)", flush=True)
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        server.should_exit = True

    # An exception in the event loop would leave the thread of the game behind.
    with listener, on_signal(end):
        server.run(sockets=[listener])
    if signals:
        raise Interrupted(signals[0])
    if failed:
        raise failed[0]


def _listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}); give "
            "another --web-host or --web-port"
        ) from error


def address(listener: socket.socket, host: str, token: str) -> str:
    """The page's address, for a browser."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    query = f"?token={token}" if token else ""
    return f"http://{name}:{listener.getsockname()[1]}/{query}"
