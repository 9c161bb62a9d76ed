"""Records what is watched: each episode of a policy or a person as a demonstration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.film.filmed_env import FilmedEnv
from trainer.planning import demonstration
from trainer.planning.demonstration import GAME_OPTIONS, Demonstration

# The most idle frames that an environment begins with, and a step.
_MOST_IDLE = 256


class Recorder:
    """Writes the buttons of episodes to files, one for each episode.

    The files are those of the planner (trainer/planning/demonstration.py), with the
    buttons of every frame, and play out the same in `trainer.plan --replay`.
    """

    def __init__(self, path: Path) -> None:
        """Prepares.

        Args:
            path: of the first episode, .json. Those that follow have numbers behind
                the name, as what is there already is never replaced.

        Raises:
            ValueError: it is no .json file.
            OSError: its folder cannot be made.
        """
        if path.suffix != ".json":
            raise ValueError(f"--record writes demonstrations: give {path}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._open: tuple[FilmedEnv, Demonstration] | None = None

    def begin(self, game: FilmedEnv) -> None:
        """Notes that an episode has begun in a game, by `reset` and nothing else.

        Raises:
            ValueError: it could not be played again.
        """
        self._open = game, _opening(game)

    def end(self) -> str:
        """Writes the episode up to here; a second call does nothing.

        Returns:
            A line that says what was written; "" if nothing was played.

        Raises:
            OSError: the file cannot be written.
            RuntimeError: the episode does not play again.
        """
        if self._open is None:
            return ""
        (game, opening), self._open = self._open, None
        if not game.played:
            return ""
        made = demonstration.record(
            opening.task,
            opening.level,
            opening.options,
            opening.buttons + game.played,
            to_flag=False,
        )
        if made.frames != opening.frames + len(game.played):
            raise RuntimeError(
                f"the episode of {opening.level or 'the whole game'} was not recorded: "
                f"its {len(game.played):,} frames end after {made.frames:,} in a replay"
            )
        path = self._free()
        made.save(path)
        return f"recorded {path}: {made.frames:,} frames, {made.ending}"

    def _free(self) -> Path:
        """The first name that is not taken."""
        path, number = self._path, 1
        while path.exists():
            number += 1
            path = self._path.with_stem(f"{self._path.stem}-{number}")
        return path


def _opening(game: FilmedEnv) -> Demonstration:
    """The demonstration of an episode that has just begun: its idle frames.

    Raises:
        ValueError: it does not begin at a level's start, or its buttons are not all.
    """
    config = game.config
    if config["repeat_action_probability"]:
        raise ValueError(
            "sticky actions cannot be recorded: leave out repeat_action_probability"
        )
    whole = not config["stages"] and not config["random_stages"]
    lost = bool(config["lost_levels"])
    made = Demonstration(
        "SuperMarioBros2-v0" if lost else "SuperMarioBros-v0",
        "" if whole else game.level,
        {name: kind(config[name]) for name, kind in GAME_OPTIONS.items()},
        game.rom_sha1,
        b"",
        0.0,
        "",
    )
    env: Any = demonstration.environment(made)
    env.reset()
    for idle in range(_MOST_IDLE):
        if (env.ram == game.ram).all():
            return replace(made, buttons=bytes(idle))
        env.step(0)
    raise ValueError(
        f"the episode cannot be recorded: it does not begin at the start of "
        f"{made.level or 'the game'}"
    )
