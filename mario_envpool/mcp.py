"""A server for the Model Context Protocol over stdio: a language model plays the game.

    pip install 'mario-envpool[mcp]'
    python -m mario_envpool.mcp

A client starts the command. The server has five tools (reset, observe, act, snapshot,
restore) and ends when its standard input closes. docs/language-models.md describes it.
"""

from __future__ import annotations

import argparse
import io
import signal
import sys
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from . import __version__
from .actions import COMPLEX_MOVEMENT
from .codes import END_REASONS
from .env import MarioEnv
from .starts import STAGES

try:
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import CallToolResult, TextContent
    from pydantic import Field, ValidationError
except ImportError:
    MISSING = "the server needs mcp 2: pip install 'mario-envpool[mcp]'"
    if __name__ == "__main__":
        raise SystemExit(f"error: {MISSING}") from None
    raise ImportError(MISSING) from None

INSTRUCTIONS = """\
You play Super Mario Bros. on a NES; the game waits between calls. Reach the flag or the
axe at the right end of the level. A pit is a death, and so is an enemy that small Mario
touches without landing on it.
Distances are in tiles of 16 pixels. "3 ahead" counts columns to the right of Mario; the
next one is 1. "2 up" is how far the top of a thing, or the feet of an enemy, is above
Mario's feet. The text describes 10 tiles ahead.
A step is 4 frames, 1/15 s. B runs, 0.6 tiles a step. A jump begins when A is pressed on
the ground, and is higher the longer A is held, up to 8 steps. Where the text says "A is
held", one step without A must come before the next jump.
Take a snapshot in safe places, and restore it after a death."""

_MOST_STEPS = 60
_MOST_SNAPSHOTS = 100
_LARGEST_SEED = 2**31 - 1
_GO_ON = "call reset or restore"
_LONGEST_INPUT = 40  # characters of a wrong value that an error repeats

Action = Literal[COMPLEX_MOVEMENT]  # type: ignore[valid-type]


class Moment(TypedDict):
    """What happened, and what is to be seen now."""

    text: str
    reward: float
    done: bool
    end: str


class Game:
    """The environment of a server, and its snapshots.

    Raises:
        RomError: there is no ROM.
    """

    def __init__(self) -> None:
        self._env = MarioEnv(
            "SuperMarioBrosRandomStages-v0",
            "rgb_array",
            obs_type="text",
            action_set="complex",
            noop_max=30,
        )
        self._snapshots: dict[int, bytes] = {}
        self._taken = 0
        self._text, self._end = "", ""
        self._begin("1-1", 0)

    # The tools are coroutines, so that the server calls one after the other.
    async def reset(
        self,
        level: Literal[tuple(STAGES)] = "1-1",  # type: ignore[valid-type]
        seed: Annotated[int, Field(ge=0, le=_LARGEST_SEED)] = 0,
    ) -> Annotated[CallToolResult, Moment]:
        """Begins a level, "1-1" to "8-4". Equal seeds give equal games."""
        self._begin(level, seed)
        return self._moment()

    async def observe(self, picture: bool = False) -> Annotated[CallToolResult, Moment]:
        """Describes the present moment; with picture, also shows the screen."""
        moment = self._moment()
        if picture:
            from PIL import Image as Pillow

            file = io.BytesIO()
            screen = np.asarray(self._env.render())
            Pillow.fromarray(screen).save(file, "PNG")
            image = Image(data=file.getvalue(), format="png")
            moment.content.append(image.to_image_content())
        return moment

    async def act(
        self,
        action: Action,
        steps: Annotated[int, Field(ge=1, le=_MOST_STEPS)] = 1,
    ) -> Annotated[CallToolResult, Moment]:
        """Holds buttons for some steps of 4 frames; ends early with the episode."""
        if self._end != "none":
            raise ToolError(f"the episode has ended: {self._end}; {_GO_ON}")
        total = 0.0
        for _ in range(steps):
            self._text, reward, *_, info = self._env.step(
                COMPLEX_MOVEMENT.index(action)
            )
            total += reward
            self._end = END_REASONS[info["end_reason"]]
            if self._end != "none":
                break
        return self._moment(total)

    async def snapshot(self) -> int:
        """Saves the exact state, and returns its number for restore."""
        self._taken += 1
        self._snapshots[self._taken] = self._env.snapshot()
        self._snapshots.pop(self._taken - _MOST_SNAPSHOTS, None)
        return self._taken

    async def restore(self, snapshot: int) -> Annotated[CallToolResult, Moment]:
        """Goes back to a snapshot, also of another level or after the end."""
        if snapshot not in self._snapshots:
            kept = f"{min(self._snapshots)} to {self._taken}" if self._taken else "none"
            raise ToolError(f"there is no snapshot {snapshot!s:.20}; there are: {kept}")
        self._text, info = self._env.restore(self._snapshots[snapshot])
        self._end = END_REASONS[info["end_reason"]]
        return self._moment()

    def _begin(self, level: str, seed: int) -> None:
        weights = np.zeros(self._env.num_stages)
        weights[STAGES.index(level)] = 1
        self._env.set_starts(weights)
        self._text, _ = self._env.reset(seed=seed)
        self._end = "none"

    def _moment(self, reward: float = 0.0) -> CallToolResult:
        done = self._end != "none"
        said = f"{self._text}\nReward: {reward:g}."
        if done:
            said += f"\nThe episode has ended: {self._end}; {_GO_ON}."
        return CallToolResult(
            content=[TextContent(text=said)],
            structured_content=Moment(
                text=self._text, reward=reward, done=done, end=self._end
            ),
        )


class Server(MCPServer[Any]):
    """The tools of a game; a wrong call is answered by one line."""

    def __init__(self, game: Game) -> None:
        super().__init__(
            "mario-envpool",
            instructions=INSTRUCTIONS,
            version=__version__,
            log_level="ERROR",
        )
        for tool in (game.reset, game.observe, game.act, game.snapshot, game.restore):
            self.add_tool(tool)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Any = None
    ) -> Any:
        """Calls a tool; see ``MCPServer.call_tool``."""
        schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
        if name not in schemas:
            tools = ", ".join(schemas)
            raise ToolError(f"there is no tool {name!r:.40}; tools: {tools}")
        known = list(schemas[name].get("properties", {}))
        for argument in arguments:
            if argument not in known:
                raise ToolError(
                    f"{name} has no argument {argument!r:.40}; its arguments: "
                    f"{', '.join(known) or 'none'}"
                )
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__  # the message of `error` also names the tool
            if isinstance(cause, ToolError):
                raise cause from None
            if isinstance(cause, ValidationError):
                wrong = cause.errors(include_url=False)[0]
                given = repr(wrong["input"])[:_LONGEST_INPUT]
                place = ".".join(map(str, wrong["loc"]))
                raise ToolError(f"{place}: {wrong['msg']}; got {given}") from None
            raise


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mario_envpool.mcp",
        description="A server for the Model Context Protocol: a client starts it, and "
        "speaks to it over stdin and stdout. MARIO_ROM names a ROM file or folder.",
    )
    parser.parse_args(arguments)
    if sys.stdin is None or sys.stdout is None:
        return _failed("stdin or stdout is closed; a client must start the server")
    try:
        server = Server(Game())
    except ValueError as error:  # no ROM, or another game's
        return _failed(str(error))
    # The thread that reads stdin does not notice Python's own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server.run()
    except ExceptionGroup as errors:
        if errors.split(OSError)[1] is not None:
            raise
        return _failed("cannot write to stdout: the client has gone")
    return 0


def _failed(problem: str) -> int:
    if sys.stderr is not None:
        print(f"error: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
