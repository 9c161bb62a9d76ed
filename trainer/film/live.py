"""Episodes on a screen at the game's own speed: of a policy, or of a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels, check_level
from trainer.film.filmed_env import FilmedEnv, Step, game_config
from trainer.film.play import Decision, Player, Shot, film_episode, trained
from trainer.film.screens import KEYS_HELP, QuitError, Screen
from trainer.models.policy import load_policy, playing_device

Episodes = Iterator[Iterator[Shot]]

# Further behind than this the game is slowed down, not shown in jumps.
_MAX_DELAY_SECONDS = 0.25
# Pictures that may be left out in a row.
_MAX_LEFT_OUT = 3

# What a person plays: one frame per step, as people are faster than policies.
_HUMAN = EnvConfig(frame_skip=1, noop_max=0, stall_steps=0, max_episode_steps=10**9)


def show_episodes(
    episodes: Iterable[Iterator[Shot]],
    screen: Screen,
    *,
    speed: float,
    on_end: Callable[[str], None],
) -> None:
    """Shows episodes until there are no more, or the person who watches quits.

    Args:
        episodes: to show.
        screen: where.
        speed: 1 is the game's own.
        on_end: called with a line about each episode that has ended.
    """
    pace = Pace(speed)
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
        self, checkpoint: Path, *, level: str, argmax: bool, seed: int, device: str
    ) -> None:
        """Loads the policy.

        Args:
            checkpoint: a file, or the folder of a run: its newest one in each episode.
            level: such as "1-1"; "" for the run's own.
            argmax: take the likeliest action instead of a sample.
            seed: of environments and actions, one more in each episode.
            device: auto, cpu, cuda or cuda:N.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: there is no such level.
        """
        self._path, self._argmax, self._seed = checkpoint, argmax, seed
        self._device = playing_device(device)
        self._policy = load_policy(self._path, self._device)
        options = game_config(
            self._policy.env, level=level, repeat_action_probability=0.0
        )
        self._game = FilmedEnv(options, seed=seed)

    def __iter__(self) -> Episodes:
        """One after the other, without end."""
        for seed in count(self._seed):
            player = Player(self._policy, 1, seed=seed, argmax=self._argmax)
            caption = trained(self._policy.steps)
            yield film_episode(self._game, self._game.reset(), player.alone, caption)
            if self._path.is_dir():
                self._policy = load_policy(self._path, self._device)


class HumanEpisodes:
    """Episodes of a person; after a clear the next level begins."""

    def __init__(self, level: str, *, seed: int) -> None:
        """Chooses the first level.

        Args:
            level: such as "1-1"; "" for the first one.
            seed: of the environments.

        Raises:
            ValueError: there is no such level.
        """
        if level:
            check_level(level, _HUMAN.task)
        self._levels = all_levels(_HUMAN.task)
        self._first = self._levels.index(level) if level else 0
        self._seed = seed

    def play(self, buttons: Callable[[], int]) -> Episodes:
        """One after the other, without end.

        Args:
            buttons: the pad byte of the buttons that are held now.
        """
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
            options = game_config(_HUMAN, level=self._levels[level])
            game = FilmedEnv(options | {"action_set": "raw"}, seed=self._seed)
            shots = film_episode(game, game.reset(), decide, KEYS_HELP)
            yield noting_the_ending(shots)
            if endings[-1] == "cleared":
                level = (level + 1) % len(self._levels)


class Pace:
    """Keeps the game's time, and leaves pictures out where that is too fast."""

    def __init__(self, speed: float) -> None:
        self._period = 1 / (FRAMES_PER_SECOND * speed)
        self._due = time.monotonic()
        self._left_out = 0

    def wait(self) -> bool:
        """Waits until the next frame is due; False if it is to be left out."""
        self._due += self._period
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
