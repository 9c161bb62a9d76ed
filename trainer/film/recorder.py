"""Records each watched episode of a policy or a person as a demonstration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.film.filmed_env import FilmedEnv
from trainer.machine.files import make_folder
from trainer.planning import demonstration
from trainer.planning.demonstration import GAME_OPTIONS, GAMES, Demonstration

# Idle frames at the start of an episode are at most these, plus one step.
_MOST_IDLE = 256


class Recorder:
    """Writes the buttons of episodes to files, one file per episode.

    The files have the planner's format (trainer/planning/demonstration.py), with the
    buttons of every frame; `trainer.plan --replay` replays them exactly.
    """

    def __init__(self, path: Path) -> None:
        """Creates the folder.

        Args:
            path: .json file of the first episode. Later files get a number after the
                name; an existing file is never replaced.

        Raises:
            ValueError: the path does not end in .json.
            OSError: the folder cannot be created.
        """
        if path.suffix != ".json":
            raise ValueError(
                f"--record writes a .json file, got {path}: give {path}.json"
            )
        make_folder(path.parent)
        self._path = path
        self._open: tuple[FilmedEnv, Demonstration] | None = None

    def begin(self, game: FilmedEnv) -> None:
        """Begins to record an episode that a game has just begun with `reset`.

        Raises:
            ValueError: a recording of this episode could not be replayed.
        """
        self._open = game, _opening(game)

    def end(self) -> str:
        """Writes the episode up to here; a second call does nothing.

        Returns:
            A line about the file; "" if nothing was played.

        Raises:
            OSError: the file cannot be written.
            RuntimeError: the replay differs from the episode.
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
                f"it has {len(game.played):,} frames, but its replay ends after "
                f"{made.frames:,}"
            )
        path, number = self._path, 1
        while path.exists():
            number += 1
            path = self._path.with_stem(f"{self._path.stem}-{number}")
        made.save(path)
        return f"recorded {path}: {made.frames:,} frames, {made.ending}"


def _opening(game: FilmedEnv) -> Demonstration:
    """The demonstration of an episode that has just begun: its idle frames."""
    config = game.config
    for name in ("repeat_action_probability", "rng_frames_max"):
        if config[name]:
            raise ValueError(
                f"episodes with {name}={config[name]:g} cannot be recorded: leave it "
                "out"
            )
    whole = not config["stages"] and not config["random_stages"]
    made = Demonstration(
        GAMES[bool(config["lost_levels"])],
        "" if whole else game.level,
        {name: kind(config[name]) for name, kind in GAME_OPTIONS.items()},
        game.rom_sha1,
    )
    env: Any = demonstration.environment(made)
    env.reset()
    for idle_frames in range(_MOST_IDLE):
        if (env.ram == game.ram).all():
            return replace(made, buttons=bytes(idle_frames))
        env.step(0)
    raise ValueError(
        f"the episode cannot be recorded: it must begin at the start of "
        f"{made.level or 'the game'}"
    )
