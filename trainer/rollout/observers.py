"""The interfaces of the explorer and the recorder that observe the collector."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainer.rollout.episodes import StepColumns


class ExplorerProtocol(Protocol):
    """Chooses where episodes begin, and pays bonuses for new places."""

    def set_starts(self) -> None:
        """Sets where episodes begin from now on; called between two batches."""

    def observe(
        self, columns: StepColumns, run_steps: int
    ) -> npt.NDArray[np.float32] | None:
        """Takes the rows of one recv, before actions are sent.

        Returns bonuses (n,) to add to the rewards; None if there are none.
        """


class RecorderProtocol(Protocol):
    """Records what a replay of episodes needs."""

    def observe(self, columns: StepColumns, run_steps: int) -> None:
        """Takes the rows of one recv, before actions are sent."""

    def record(
        self,
        env_id: npt.NDArray[np.int32],
        actions: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
        values: npt.NDArray[np.float32],
    ) -> None:
        """Takes the decisions: (n,) actions, (n, A) logits, (n,) values."""
