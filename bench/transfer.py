"""Plays a policy in gym-super-mario-bros, and in mario_envpool with both timings.

    bench/peers.sh                            once: installs gym-super-mario-bros
    python bench/transfer.py --checkpoint runs/<run>
    python bench/transfer.py --checkpoint runs/<run> --argmax

The bench prints three clear rates with 95 % intervals (Wilson): of gym-super-mario-bros
7.4.0 on nes-py, of mario_envpool with `timing=nes_py`, and of mario_envpool with
`timing=console`. Each plays the same number of episodes, after 0 to 30 idle frames,
with sampled or greedy actions (`--argmax`). The policy sees pixels: pictures of nes-py
go through the preprocessing of mario_envpool (`Eyes`). An episode fails after 250 steps
without a new best position.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from native_testing import module as _testing
from rich.console import Console
from rich.table import Table
from runners import RunnerError, peer_python

from mario_envpool import _core
from trainer.config.schema import EnvConfig
from trainer.config.tasks import own_levels
from trainer.evaluation.play import first_seed, wilson
from trainer.evaluation.protocol import evaluate_levels
from trainer.evaluation.results import STALL_STEPS
from trainer.film.filmed_env import Player, Step
from trainer.models.policy import Policy, load_policy, playing_device

_HEIGHT, _WIDTH = 240, 256
_PLAYER = Path(__file__).resolve().parent / "peers" / "play_gsm.py"
# A larger change of x means another room with different positions.
_JUMP = 64


class Eyes:
    """What a policy sees of RGB pictures: frames as our environments make them."""

    def __init__(self, env: EnvConfig) -> None:
        """Prepares for the observations of a run.

        Args:
            env: environments of the run.
        """
        self._env = env
        self._stack = np.zeros((env.stack_num, env.img_height, env.img_width), np.uint8)
        self._index = np.full(1 << 24, 255, np.uint8)
        self._index[_packed(_core.preprocess_palette())] = np.arange(64)

    def begin(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The first observation of an episode, a stack of the same picture."""
        self._stack[:] = self._frame(picture)
        return self._stack

    def see(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The next observation, (stack, H, W) uint8, of a picture (240, 256, 3)."""
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._frame(picture)
        return self._stack

    def _frame(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        indices = self._index[_packed(picture)]
        if indices.max() > 63:
            raise ValueError("the picture has a colour that is not in the NES palette")
        size = {"height": self._env.img_height, "width": self._env.img_width}
        frame, _ = _testing.preprocess_frame(indices, hud=self._env.hud, **size)
        return frame[0]


def _packed(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Packs colours (..., 3) into integers (...)."""
    red, green, blue = (rgb[..., channel].astype(np.uint32) for channel in range(3))
    return red << 16 | green << 8 | blue


class Upstream:
    """gym-super-mario-bros, in a process with its own packages."""

    def __init__(self, env: EnvConfig) -> None:
        """Starts the process.

        Args:
            env: environments of the run; only task and actions count.

        Raises:
            RunnerError: its virtual environment from bench/peers.sh is missing.
        """
        python = peer_python("gsm")
        self._process = subprocess.Popen(
            [str(python), str(_PLAYER), env.task, json.dumps(list(env.actions))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Upstream:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def ask(self, **request: int) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
        """Sends a request; returns the answer and the picture (240, 256, 3) uint8."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended: see below
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        picture = stdout.read(_HEIGHT * _WIDTH * 3)
        if len(picture) < _HEIGHT * _WIDTH * 3:
            raise RunnerError("gym-super-mario-bros has ended; see its output above")
        pixels = np.frombuffer(picture, np.uint8)
        return json.loads(line), pixels.reshape(_HEIGHT, _WIDTH, 3)


def play_upstream(policy: Policy, *, episodes: int, seed: int, argmax: bool) -> int:
    """Plays gym-super-mario-bros; returns the clears.

    Args:
        policy: a policy that sees pixels.
        episodes: number of episodes; with argmax, episode i has i idle frames.
        seed: seed of idle frames and actions.
        argmax: act greedily.
    """
    env, eyes, clears = policy.env, Eyes(policy.env), 0
    rng = np.random.default_rng(first_seed(seed))
    player = Player(policy, seed=first_seed(seed), argmax=argmax)
    with Upstream(env) as game:
        for episode in range(episodes):
            noops = episode if argmax else int(rng.integers(31))
            answer, picture = game.ask(noops=noops)
            step = _step(picture, eyes.begin(picture), opening=True)
            best, since = 0, 0
            while not answer["done"] and since < STALL_STEPS:
                action = player(step).action
                x = answer["x_pos"]
                answer, picture = game.ask(action=action, frames=env.frame_skip)
                step = _step(picture, eyes.see(picture))
                if abs(answer["x_pos"] - x) > _JUMP:
                    best = 0
                since = 0 if answer["x_pos"] > best else since + 1
                best = max(best, answer["x_pos"])
            clears += answer["flag_get"]
    return clears


def _step(
    picture: npt.NDArray[np.uint8], obs: npt.NDArray[np.uint8], *, opening: bool = False
) -> Step:
    """A step with the fields that a `Player` reads."""
    return Step(picture[None], obs, 0.0, False, False, {}, opening)


def play_ours(
    policy: Policy, timing: str, *, episodes: int, seed: int, argmax: bool
) -> int:
    """Plays mario_envpool with a timing; returns the clears."""
    env: Any = replace(policy.env, timing=timing)
    (result,) = evaluate_levels(
        policy.model,
        env,
        levels=own_levels(env.task),
        episodes=episodes,
        seed=seed,
        device=policy.device,
        dtype=policy.dtype,
        argmax=argmax,
        noop_max=30,
    )
    return result.clears


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=100, help="per row (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--argmax",
        action="store_true",
        help="greedy actions, once after each of 0 to 30 idle frames",
    )
    given = parser.parse_args()
    policy = load_policy(given.checkpoint, playing_device("cpu"))
    if policy.env.obs != "pixels" or len(own_levels(policy.env.task)) != 1:
        sys.exit("error: the run must have --obs pixels and a task of one level")
    if policy.env.rom_path or policy.env.task.startswith("SuperMarioBros2"):
        sys.exit(
            "error: gym-super-mario-bros only plays single levels of its own Super "
            f"Mario Bros. ROM; this run has {policy.env.rom_path or policy.env.task}"
        )
    count = 31 if given.argmax else given.episodes
    options = {"episodes": count, "seed": given.seed, "argmax": given.argmax}
    try:
        played = {"gym-super-mario-bros 7.4.0": play_upstream(policy, **options)}
    except RunnerError as error:
        sys.exit(f"error: {error}")
    for timing in ("nes_py", "console"):
        played[f"ours, timing={timing}"] = play_ours(policy, timing, **options)
    how = "greedy actions" if given.argmax else "sampled actions"
    table = Table(title=f"{given.checkpoint}: trained with {policy.env.timing}, {how}")
    for name in ("environment", "cleared", "95 % interval"):
        table.add_column(name, justify="left" if name == "environment" else "right")
    for name, clears in played.items():
        low, high = wilson(clears, count)
        table.add_row(name, f"{clears} of {count}", f"{low:.1%} to {high:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
