"""Starts at save states: of other emulators, or those of a campaign's levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mario_envpool import _core, states
from trainer.explore.cells import FloatArray, add_clear
from trainer.planning.search import Snapshot
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import StepColumns


class SavedStates:
    """The states of files; offers snapshots as an `Archive` does.

    Raises ValueError if a file is not such a state, or is of a level that the run does
    not play.
    """

    def __init__(self, pool: Any, files: Sequence[str], levels: Sequence[str]) -> None:
        game = pool.config["rom"], pool.config["rom_path"]
        snapshots: list[Snapshot] = []
        stages: list[int] = []
        for file in files:
            found = (
                read_saves(Path(file))
                if file.endswith(".npy")
                else [states.load(file, *game)]
            )
            none = [b""] * len(found)
            try:
                snapshots.append(_core.start_snapshots(pool.spec, found, none))
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from None
            stages += [_stage_of(file, levels)] * len(found)
        self._snapshots: Snapshot = np.concatenate(snapshots)
        self._stages: IntArray = np.array(stages, np.int64)
        self.clear_rates: FloatArray = np.zeros(max(1, len(levels)))

    def __len__(self) -> int:
        """Number of states."""
        return len(self._stages)

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """All states; those of a level share its weight equally."""
        counts = np.bincount(self._stages)[self._stages]
        return self._stages, shares[self._stages] / counts, self._snapshots

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        c = columns
        for row in (c.done & c.from_snapshot).nonzero()[0].tolist():
            add_clear(self.clear_rates, int(c.first_place[row]), bool(c.cleared[row]))

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types."""
        return {"clear_rates": self.clear_rates.tolist()}

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`."""
        self.clear_rates = np.array(state["clear_rates"])


def read_saves(path: Path) -> list[bytes]:
    """States of the console from a file .npy, which is (n, bytes) uint8.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else.
    """
    try:
        with path.open("rb") as file:
            rows = np.lib.format.read_array(file)  # no pickles
    except ValueError as error:
        raise ValueError(f"{path} is damaged, or no array: {error}") from None
    if rows.dtype != np.uint8 or rows.ndim != 2 or not len(rows):
        raise ValueError(
            f"{path} holds {rows.dtype} with shape {rows.shape}, must hold states of "
            "the console, (n, bytes) uint8, as in the folder starts of a campaign"
        )
    return [row.tobytes() for row in rows]


def _stage_of(file: str, levels: Sequence[str]) -> int:
    """Index of the level of a state among those of the run; 0 in the whole game."""
    level = Path(file).stem if file.endswith(".npy") else states.level(file)
    if levels and level not in levels:
        raise ValueError(
            f"{file} is a state in {level}, but the run plays {', '.join(levels)}: "
            "leave it out, or add its level to --levels"
        )
    return levels.index(level) if levels else 0
