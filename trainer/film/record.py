"""Films the first clear and the best episode of a run while it trains.

The recorder keeps every action that the collector sends, with the policy's logits and
value, and a snapshot of the environment at the start of each episode. With these, a
separate thread that is idle most of the time replays the episode exactly, frame by
frame (`replay`). So training pays for a few bytes per step, and for the pictures of
very few episodes. Probabilities and values are those at the time of acting.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.film.draw import Camera, VideoWriter
from trainer.film.filmed_env import (
    Decision,
    FilmedEnv,
    Shot,
    Step,
    film_episode,
    trained,
)
from trainer.machine.files import write_json
from trainer.rollout.episodes import Episode, StepColumns

# Shows a video; arguments: environment step of the run, name, MP4, and a small GIF.
ShowVideo = Callable[[int, str, Path, bytes], None]

FIRST_CLEAR, BEST = "first-clear", "best"
# Index of the videos, for resumed runs and reports.
INDEX = "videos.json"

# Longer episodes are not filmed: the arrays below would be mostly empty.
_MOST_STEPS = 4096
# From the start of one film to the next; the first film waits half as long. A film
# takes about four seconds of one core.
_SECONDS_BETWEEN = 120.0
# Seconds of rest per second of work, while a run trains.
_REST = 4.0
# Every second frame in the video, every sixth in TensorBoard.
_EVERY, _EVERY_IN_GIF = 2, 6


class Recording(NamedTuple):
    """Everything that a replay of an episode needs."""

    start: bytes  # snapshot of the environment at the episode's first row
    actions: npt.NDArray[np.int16]  # (n,)
    logits: npt.NDArray[np.float16]  # (n, A) that the actions were sampled from
    values: npt.NDArray[np.float16]  # (n,) of the critic
    episode: Episode
    env: int
    run_steps: int  # environment steps of the run at the end of the episode


class Recorder:
    """Records the open episodes of a pool; the collector calls it."""

    def __init__(
        self,
        pool: Any,
        take: Callable[[Recording], None],
        wanted: Callable[[Episode], bool],
    ) -> None:
        num_envs = len(pool.all_env_ids)
        self._pool, self._take, self._wanted = pool, take, wanted
        self._limit = min(pool.config["max_episode_steps"], _MOST_STEPS) + 1
        # The last column takes the steps that are not kept: those of episodes that are
        # too long or whose beginning was not seen.
        shape = (num_envs, self._limit + 1)
        self._actions = np.zeros(shape, np.int16)
        self._logits = np.zeros((*shape, int(pool.action_space.n)), np.float16)
        self._values = np.zeros(shape, np.float16)
        self._length = np.full(num_envs, self._limit)
        self._starts: dict[int, bytes] = {}

    def observe(self, columns: StepColumns, run_steps: int) -> None:
        """Takes the rows of one recv, before actions are sent."""
        env_id = columns.env_id
        for row, episode in columns.finished:
            env = int(env_id[row])
            length = int(self._length[env])
            if length < self._limit and self._wanted(episode):
                recording = Recording(
                    start=self._starts[env],
                    actions=self._actions[env, :length].copy(),
                    logits=self._logits[env, :length].copy(),
                    values=self._values[env, :length].copy(),
                    episode=episode,
                    env=env,
                    run_steps=run_steps,
                )
                self._take(recording)
        fresh = env_id[columns.is_first]
        if fresh.size:
            self._length[fresh] = 0
            blobs = self._pool.snapshot(fresh)
            for env, blob in zip(fresh.tolist(), blobs, strict=True):
                self._starts[env] = blob.tobytes()

    def record(
        self,
        env_id: npt.NDArray[np.int32],
        actions: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
        values: npt.NDArray[np.float32],
    ) -> None:
        """Takes the decisions: (n,) actions, (n, A) logits, (n,) values."""
        at = self._length[env_id]
        self._actions[env_id, at] = actions
        self._logits[env_id, at] = logits
        self._values[env_id, at] = values
        self._length[env_id] = np.minimum(at + 1, self._limit)


class Filmer:
    """Chooses episodes and films them in the background.

    A failure, such as a full disk, is logged once and ends the filming; it never
    ends the run.
    """

    def __init__(
        self,
        pool: Any,
        log: Callable[[str], None],
        seconds_between: float = _SECONDS_BETWEEN,
    ) -> None:
        self.recorder = Recorder(pool, self.take, self.wanted)
        self._config, self._log = dict(pool.config), log
        # A film does not call the user's reward function, so its return may differ.
        self._same_reward = getattr(pool, "reward_fn", None) is None
        self._between = seconds_between
        self._folder = Path()
        self._index: dict[str, dict[str, Any]] = {}
        self._best = -np.inf
        self._cleared = False
        self._changed = threading.Condition()
        self._waiting: dict[str, Recording] = {}
        self._finished: list[tuple[int, str, Path, bytes]] = []
        self._state = "filming"  # then "hurrying" and "closed"
        self._due = time.monotonic() + seconds_between / 2
        self._thread: threading.Thread | None = None

    def open(self, folder: Path) -> None:
        """Begins to film."""
        self._folder = folder
        # A missing or foreign index counts as an empty one.
        with suppress(OSError, ValueError, TypeError, KeyError):
            index = dict(json.loads((folder / INDEX).read_text()))
            if BEST in index:
                self._best = float(index[BEST]["return"])
            self._index, self._cleared = index, FIRST_CLEAR in index
        self._thread = threading.Thread(target=self._work, name="filming", daemon=True)
        self._thread.start()

    def wanted(self, episode: Episode) -> bool:
        """Whether an episode is the first clear, or the best so far."""
        if self._state == "closed":
            return False
        first_clear = episode.cleared and not self._cleared
        return first_clear or episode.total_reward > self._best

    def take(self, recording: Recording) -> None:
        """Queues a wanted episode for filming."""
        episode = recording.episode
        with self._changed:
            if episode.cleared and not self._cleared:
                self._cleared = True
                self._waiting[FIRST_CLEAR] = recording
            if episode.total_reward > self._best:
                self._best = episode.total_reward
                self._waiting[BEST] = recording
            self._changed.notify()

    def show(self, show_video: ShowVideo) -> None:
        """Shows the videos that were finished since the last call."""
        with self._changed:
            videos, self._finished = self._finished, []
        for video in videos:
            show_video(*video)

    def finish(self, show_video: ShowVideo) -> None:
        """Films the queued episodes without rests, and shows the videos."""
        if self._waiting:
            self._log("filming the remaining episodes (a few seconds)")
        self._end("hurrying")
        self.show(show_video)

    def close(self) -> None:
        """Ends at once; an unfinished video is dropped."""
        self._end("closed")

    def _end(self, state: str) -> None:
        with self._changed:
            if self._state != "closed":
                self._state = state
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._state = "closed"

    def _work(self) -> None:
        """The body of the thread: makes one film after the other."""
        try:
            while (job := self._next()) is not None:
                name, recording = job
                episode, path = recording.episode, self._folder / f"{name}.mp4"
                gif = self._film(path, recording)
                self._note(name, path, recording)
                with self._changed:
                    self._finished.append((recording.run_steps, name, path, gif))
                self._log(
                    f"filmed {path} (return {episode.total_reward:.2f}, "
                    f"{episode.steps} steps, at {recording.run_steps:,} steps of the "
                    "run)"
                )
        except _ClosedError:
            return
        # Films are optional: no failure to film may end the run.
        except Exception as error:
            self._state = "closed"
            self._log(f"filming stopped, the run continues without videos: {error}")

    def _next(self) -> tuple[str, Recording] | None:
        """Waits for an episode to film and for its time; returns None at the end."""
        with self._changed:
            while self._state != "closed":
                left = self._due - time.monotonic()
                hurrying = self._state == "hurrying"
                for name in (FIRST_CLEAR, BEST):
                    if name in self._waiting and (hurrying or left <= 0):
                        self._due = time.monotonic() + self._between
                        return name, self._waiting.pop(name)
                if hurrying:
                    return None
                self._changed.wait(timeout=max(left, 0.0) if self._waiting else None)
            return None

    def _film(self, path: Path, recording: Recording) -> bytes:
        """Writes one video; returns a small GIF without the panel."""
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as writers:
            gif = Path(scratch) / "small.gif"
            cameras = []
            for file, scale, every in ((path, 2, _EVERY), (gif, 1, _EVERY_IN_GIF)):
                camera = Camera(scale=scale, every=every, overlay=file is path)
                writer = VideoWriter(
                    file, size=camera.size, fps=camera.fps, background=True
                )
                cameras.append((camera, writers.enter_context(writer)))
            for shot in replay(recording, self._config, same_reward=self._same_reward):
                if self._state == "closed":
                    raise _ClosedError
                started = time.perf_counter()
                for camera, writer in cameras:
                    for picture in camera.develop(shot):
                        writer.write(picture)
                if self._state == "filming":
                    time.sleep(_REST * (time.perf_counter() - started))
            writers.close()
            return gif.read_bytes()

    def _note(self, name: str, path: Path, recording: Recording) -> None:
        """Adds a video to the index."""
        episode = recording.episode
        self._index[name] = {
            "file": path.name,
            "return": episode.total_reward,
            "steps": episode.steps,
            "cleared": episode.cleared,
            "run_steps": recording.run_steps,
        }
        write_json(self._folder / INDEX, self._index)


class _ClosedError(Exception):
    """The run ended before a film was complete."""


def replay(
    recording: Recording, config: dict[str, Any], *, same_reward: bool = True
) -> Iterator[Shot]:
    """Replays a recorded episode; yields its shots."""
    game = FilmedEnv(config, number=recording.env)
    start = game.restore(recording.start)
    decisions = _decisions(recording)

    def decide(step: Step) -> Decision:
        decision = next(decisions, None)
        if decision is None:
            raise RuntimeError(f"{differs}: it did not end after its last action")
        return decision

    expected = recording.episode
    differs = "the replay of an episode differs from the recording"
    for shot in film_episode(game, start, decide, trained(recording.run_steps)):
        yield shot
    got = (shot.reading.step, shot.reading.ending == "cleared")
    same_return = not same_reward or np.isclose(
        shot.reading.total, expected.total_reward
    )
    if got != (expected.steps, expected.cleared) or not same_return:
        raise RuntimeError(
            f"{differs}: return {shot.reading.total:.3f} after {got[0]} steps instead "
            f"of {expected.total_reward:.3f} after {expected.steps}"
        )


def _decisions(recording: Recording) -> Iterator[Decision]:
    logits = recording.logits.astype(np.float32)
    # The logits of a network that is very sure may be so large that exp overflows.
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    values = recording.values.astype(float)
    for action, chances, value in zip(recording.actions, odds, values, strict=True):
        yield Decision(int(action), chances, float(value))
