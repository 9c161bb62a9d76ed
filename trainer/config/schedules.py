"""Schedules: values that change with the steps of a run."""

from __future__ import annotations


def linear(start: float, end: float, horizon: int, step: int) -> float:
    """A value that moves from `start` to `end` over `horizon` steps and stays there.

    Args:
        start: value at step 0.
        end: value from `horizon` on.
        horizon: length in environment steps; 0 gives `end` at once.
        step: environment steps so far.
    """
    share = 1.0 if horizon <= 0 else min(1.0, step / horizon)
    return start + (end - start) * share
