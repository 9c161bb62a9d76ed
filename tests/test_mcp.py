"""``python -m mario_envpool.mcp``: a model plays through the protocol's own client."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "mario_envpool.mcp"]
ROOT = Path(__file__).resolve().parent.parent
# The client passes on almost none of its variables.
ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key.startswith(("PYTHON", "MARIO_")) or key == "PATH"
}
HIDE_MCP = "import sys; sys.modules['mcp'] = None; import runpy; "
HIDE_MCP += "runpy.run_module('mario_envpool.mcp', run_name='__main__')"


def need_mcp() -> None:
    reason = "needs mcp 2: pip install 'mario-envpool[mcp]'"
    pytest.importorskip("mcp.server.mcpserver", reason=reason)


def initialize() -> bytes:
    return line(
        method="initialize",
        id=0,
        params={
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    )


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def call(id: int, name: str, **arguments: Any) -> bytes:
    params = {"name": name, "arguments": arguments}
    return line(method="tools/call", id=id, params=params)


def server(**options: Any) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, **options)


def ask(process: subprocess.Popen[bytes], message: bytes) -> dict[str, Any]:
    """Sends a line, and returns the answer, which must be one line of JSON."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(message)
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@pytest.fixture
def session() -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """``session(play)`` awaits ``play(call)`` with a client of a new server."""
    need_mcp()
    import anyio
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=ENVIRONMENT
    )

    async def run(play: Callable[[Any], Awaitable[None]]) -> None:
        async with (
            stdio_client(parameters) as (read, write),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            await play(client)

    return lambda play: anyio.run(run, play)


def said(result: Any) -> str:
    assert not result.is_error, result.content
    text: str = result.content[0].text
    return text


@pytest.mark.slow
@pytest.mark.rom
def test_a_client_plays(session: Any) -> None:
    async def play(client: Any) -> None:
        tools = (await client.list_tools()).tools
        names = {tool.name for tool in tools}
        assert names == {"reset", "observe", "act", "snapshot", "restore"}
        assert all(tool.description for tool in tools)

        begin = await client.call_tool("reset", {"level": "1-2", "seed": 5})
        assert said(begin).startswith("World 1-2, time 400.\nMario: small, ")
        right = {"action": "right+B", "steps": 4}
        first = await client.call_tool("act", right)
        assert first.structured_content["reward"] > 0
        saved = (await client.call_tool("snapshot")).structured_content["result"]
        second = await client.call_tool("act", right)
        for _ in range(20):  # into the first goomba
            last = await client.call_tool("act", right)
            if last.structured_content["done"]:
                break
        assert last.structured_content["end"] == "death"
        assert "The episode has ended: death; call reset or restore." in said(last)
        refused = await client.call_tool("act", right)
        assert refused.is_error
        expected = "the episode has ended: death; call reset or restore"
        assert refused.content[0].text == expected

        back = await client.call_tool("restore", {"snapshot": saved})
        assert back.structured_content["text"] == first.structured_content["text"]
        assert said(await client.call_tool("observe")) == said(back)
        again = await client.call_tool("act", right)
        assert said(again) == said(second)
        other = await client.call_tool("reset", {"level": "8-4"})
        assert said(other).startswith("World 8-4, ")
        back = await client.call_tool("restore", {"snapshot": saved})
        assert back.structured_content["text"] == first.structured_content["text"]

    session(play)


@pytest.mark.slow
@pytest.mark.rom
def test_a_picture_is_the_screen(session: Any) -> None:
    need_mcp()
    from PIL import Image

    from mario_envpool import mcp

    async def play(client: Any) -> None:
        result = await client.call_tool("observe", {"picture": True})
        text, image = result.content
        assert text.text.startswith("World 1-1, time ")
        assert image.mime_type == "image/png"
        shown = Image.open(io.BytesIO(base64.b64decode(image.data)))
        assert np.array_equal(np.asarray(shown), mcp.Game()._env.render())

    session(play)


@pytest.mark.slow
@pytest.mark.rom
def test_wrong_calls_are_answered_by_one_line(session: Any) -> None:
    wrong = [
        ("act", {"action": "jump"}, "action: Input should be 'NOOP', .*; got 'jump'"),
        ("act", {}, "action: Field required"),
        ("act", {"action": "A", "frames": 2}, "act has no argument 'frames'; .*: act"),
        ("act", {"action": "A", "steps": 10**30}, "steps: .* equal to 60; got 1000"),
        ("act", {"action": "A", "steps": 0}, "steps: .* equal to 1; got 0"),
        ("act", {"action": ["A"] * 999, "steps": 1}, "action: Input should be"),
        ("reset", {"level": "9-1"}, "level: Input should be '1-1'"),
        ("reset", {"seed": -1}, "seed: .* equal to 0; got -1"),
        ("restore", {"snapshot": 3}, "there is no snapshot 3; there are: none"),
        ("restore", {"snapshot": "x"}, "snapshot: .* a valid integer"),
        ("snapshot", {"name": "x"}, "snapshot has no argument 'name'; .*: none"),
        ("jump", {}, "there is no tool 'jump'; tools: reset, observe, act"),
    ]

    async def play(client: Any) -> None:
        before = said(await client.call_tool("observe"))
        for name, arguments, message in wrong:
            result = await client.call_tool(name, arguments)
            assert result.is_error, (name, arguments)
            (text,) = result.content
            assert pytest.RaisesExc(Exception, match=message).matches(
                Exception(text.text)
            ), text.text
            assert "\n" not in text.text
            assert len(text.text) < 400
        assert said(await client.call_tool("observe")) == before

    session(play)


@pytest.mark.slow
@pytest.mark.rom
def test_the_newest_snapshots_are_kept(session: Any) -> None:
    need_mcp()
    from mario_envpool import mcp

    async def play(client: Any) -> None:
        count = mcp._MOST_SNAPSHOTS + 2
        for _ in range(count):
            await client.call_tool("snapshot")
        result = await client.call_tool("restore", {"snapshot": 2})
        expected = f"there is no snapshot 2; there are: 3 to {count}"
        assert result.content[0].text == expected
        said(await client.call_tool("restore", {"snapshot": 3}))

    session(play)


@pytest.mark.slow
@pytest.mark.rom
def test_lines_that_are_no_calls_harm_nothing() -> None:
    need_mcp()
    process, other = server(), server()
    ask(process, initialize())
    ask(other, initialize())
    assert process.stdin
    for strange in (
        *(b"\n", b"hello\n", b"{\n", b"[]\n", b"\xff\x00\n", b"[" * 100_000 + b"\n"),
        b"x" * 5_000_000 + b"\n",
        call(1, "restore", snapshot=0).replace(b" 0}", b"9" * 5000 + b"}"),
        line(method="notifications/initialized"),
    ):
        process.stdin.write(strange)
    missing = ask(process, line(method="nothing", id=2))
    assert missing["error"]["code"] == -32601
    bare = ask(process, line(method="tools/call", id=3, params={"name": 5}))
    assert bare["error"]["code"] == -32602
    moved = ask(process, call(4, "act", action="right", steps=30))
    assert moved["result"]["structuredContent"]["reward"] > 0
    still = ask(other, call(1, "observe"))  # a server of its own
    assert "not moving" in still["result"]["structuredContent"]["text"]
    for each in (process, other):  # stdin closes: the end, and nothing else was said
        assert each.communicate(timeout=60) == (b"", b"")
        assert each.returncode == 0


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it(number: signal.Signals) -> None:
    need_mcp()
    process = server()
    ask(process, initialize())
    process.send_signal(number)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == -number


@pytest.mark.slow
@pytest.mark.rom
def test_a_client_that_has_gone() -> None:
    need_mcp()
    process = server()
    ask(process, initialize())
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        while process.poll() is None:  # the reader of stdin waits for a line
            process.stdin.write(call(1, "observe"))
            process.stdin.flush()
            time.sleep(0.05)
    assert process.wait(60) == 2
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    expected = b"error: cannot write to stdout: the client has gone\n"
    assert process.stderr.read() == expected
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.nes", "MARIO_ROM='nowhere.nes' does not exist; name a Super Mario"),
        ("other.nes", "MARIO_ROM='other.nes' cannot be used: it is an unknown NROM"),
    ],
)
def test_without_the_game_it_ends_with_one_line(
    path: str, message: str, tmp_path: Path
) -> None:
    need_mcp()
    header = b"NES\x1a" + bytes([2, 1, 1, 0]) + bytes(8)
    (tmp_path / "other.nes").write_bytes(header + bytes(40 * 1024))
    environment = {**os.environ, "MARIO_ROM": path}
    process = server(cwd=tmp_path, env=environment)
    out, error = process.communicate(initialize(), timeout=60)
    assert (process.returncode, out, error.count(b"\n")) == (2, b"", 1)
    assert error.startswith(f"error: {message}".encode())


def test_without_the_extra_it_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_MCP], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    expected = "error: the server needs mcp 2: pip install "
    assert done.stderr == f"{expected}'mario-envpool[mcp]'\n"
