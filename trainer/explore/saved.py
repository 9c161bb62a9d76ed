"""Starts at save states: of other emulators, or those of a campaign's levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from mario_envpool import _core, states
from trainer.explore.cells import FloatArray, add_clear
from trainer.planning.search import Snapshot
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import StepColumns

# Weight of the last episode in the clear rate of a state, from which few begin; and the
# lowest weight of a state, relative to 1 for one that is never cleared.
_OWN_GAIN, _LEAST = 0.2, 0.1


class SavedStates:
    """The states of files; offers snapshots as an `Archive` does.

    Attributes:
        clear_rates: of the episodes from a level's states, for each of the pool's
            stages.
        present: for each stage, 1 if it has states, else 0.
    """

    def __init__(self, snapshots: Snapshot, stages: IntArray, num_stages: int) -> None:
        """Takes n snapshots, and the index of each one's stage."""
        self._snapshots, self._stages = snapshots, stages
        self.clear_rates: FloatArray = np.zeros(num_stages)
        self.present: FloatArray = np.zeros(num_stages)
        self.present[stages] = 1.0
        self._own_rates: FloatArray = np.zeros(len(stages))  # of each state

    @classmethod
    def read(cls, pool: Any, files: Sequence[str], levels: Sequence[str]) -> Self:
        """The states of files, for a pool that plays these levels.

        Raises ValueError if a file is not such a state, or is of a level that the run
        does not play.
        """
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
        numbers = np.array(stages, np.int64)
        return cls(np.concatenate(snapshots), numbers, max(1, len(levels)))

    def __len__(self) -> int:
        """Number of states."""
        return len(self._stages)

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """All states; those of a level share its weight, by 1 - their clear rates."""
        needs = np.maximum(1.0 - self._own_rates, _LEAST)
        needs /= np.bincount(self._stages, needs)[self._stages]
        return self._stages, shares[self._stages] * needs, self._snapshots

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        c = columns
        for row in (c.done & c.from_snapshot).nonzero()[0].tolist():
            cleared = bool(c.cleared[row])
            add_clear(self.clear_rates, int(c.first_place[row]), cleared)
            number = int(c.start[row]) - len(self.clear_rates)
            # An episode from before a resumption may have begun at another file.
            if number < len(self):
                add_clear(self._own_rates, number, cleared, _OWN_GAIN)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types."""
        return {
            "clear_rates": self.clear_rates.tolist(),
            "own_rates": self._own_rates.tolist(),
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`."""
        self.clear_rates = np.array(state["clear_rates"])
        if len(state.get("own_rates", ())) == len(self._own_rates):
            self._own_rates = np.array(state["own_rates"])


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
