"""Shows the episodes of a policy or a person on a screen, at the game's own speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels, check_level
from trainer.film.filmed_env import FilmedEnv, Step, game_config
from trainer.film.play import Decision, Player, Shot, film_episode, trained
from trainer.film.recorder import Recorder
from trainer.film.screens import KEYS_HELP, QuitError, Screen
from trainer.models.policy import load_policy, playing_device

Episodes = Iterator[Iterator[Shot]]

# If the screen is further behind, the game slows down instead of jumping.
_MAX_DELAY_SECONDS = 0.25
# The most consecutive pictures that may be left out.
_MAX_LEFT_OUT = 3

#: The game of a person: one frame per step, so that buttons act on every frame.
HUMAN = EnvConfig(frame_skip=1, noop_max=0, stall_steps=0, max_episode_steps=10**9)


def show_episodes(
    episodes: Iterable[Iterator[Shot]],
    screen: Screen,
    *,
    pace: Pace,
    on_end: Callable[[str], None],
) -> None:
    """Shows episodes until the last one has ended or the viewer quits."""
    try:
        for shots in episodes:
            for shot in shots:
                for frame in shot.frames:
                    if pace.wait():
                        screen.show(frame, shot.reading)
                reading = shot.reading
            on_end(str(reading))
    except QuitError:
        return


class PolicyEpisodes:
    """Episodes of a policy, each with the newest weights."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        level: str,
        argmax: bool,
        seed: int,
        device: str,
        model: str = "",
        recorder: Recorder | None = None,
    ) -> None:
        """Loads the policy."""
        self._path, self._argmax, self._seed = checkpoint, argmax, seed
        self._device, self._recorder = playing_device(device), recorder
        self._model = model
        self._policy = load_policy(self._path, self._device, model=model)
        options = game_config(
            self._policy.env, level=level, repeat_action_probability=0.0
        )
        self._game = FilmedEnv(options, seed=seed)

    def __iter__(self) -> Episodes:
        """Yields episodes without end."""
        for seed in count(self._seed):
            player = Player(self._policy, 1, seed=seed, argmax=self._argmax)
            caption = trained(self._policy.steps)
            start = _begin(self._game, self._recorder)
            yield film_episode(self._game, start, player.alone, caption)
            if self._path.is_dir():
                self._policy = load_policy(self._path, self._device, model=self._model)


class HumanEpisodes:
    """Episodes of a person; after a clear, the next level begins."""

    def __init__(
        self,
        level: str,
        *,
        seed: int,
        frame_skip: int = 1,
        recorder: Recorder | None = None,
    ) -> None:
        """Chooses the first level."""
        self._env = replace(HUMAN, frame_skip=frame_skip)
        if level:
            check_level(level, HUMAN.task)
        self._levels = all_levels(HUMAN.task)
        self._first = self._levels.index(level) if level else 0
        self._seed, self._recorder = seed, recorder

    def play(self, buttons: Callable[[], int]) -> Episodes:
        """Yields episodes without end."""
        level, endings = self._first, [""]

        def decide(step: Step) -> Decision:
            del step
            return Decision(buttons(), None, None)

        def noting_the_ending(shots: Iterator[Shot]) -> Iterator[Shot]:
            for shot in shots:
                yield shot
            endings.append(shot.reading.ending)

        while True:
            # The action set "raw" has every combination of buttons.
            options = game_config(self._env, level=self._levels[level])
            game = FilmedEnv(options | {"action_set": "raw"}, seed=self._seed)
            start = _begin(game, self._recorder)
            shots = film_episode(game, start, decide, KEYS_HELP)
            yield noting_the_ending(shots)
            if endings[-1] == "cleared":
                level = (level + 1) % len(self._levels)


def _begin(game: FilmedEnv, recorder: Recorder | None) -> Step:
    """Begins an episode, and its recording if there is a recorder."""
    start = game.reset()
    if recorder is not None:
        recorder.begin(game)
    return start


class Pace:
    """Keeps the game's speed, and leaves out pictures if the screen is too slow."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        """Sets the speed, a factor (1 is the console's); it may change at any time."""
        self.restart()

    def restart(self) -> None:
        """Counts from now, because the game has waited for something else."""
        self._due = time.monotonic()
        self._left_out = 0

    def wait(self) -> bool:
        """Waits until the next frame is due; False if the frame must be left out."""
        self._due += 1 / (FRAMES_PER_SECOND * self.speed)
        left = self._due - time.monotonic()
        if left < -_MAX_DELAY_SECONDS:
            self._due -= left
        if left > 0:
            time.sleep(left)
        elif self._left_out < _MAX_LEFT_OUT:
            self._left_out += 1
            return False
        self._left_out = 0
        return True
