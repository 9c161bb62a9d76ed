"""The content of a run folder, for reports."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import shown
from trainer.config.tasks import describe_levels
from trainer.machine.files import EPISODES

# Of `ends_by_level`; between them, the ends of an episode (rollout/episodes.py).
ENDS_HEADS = (
    "level", "episodes", "cleared", "died", "stalled", "timed out", "most failures at",
)  # fmt: skip

# Of the numbers in a line about an episode.
_LIMITS = {"step": 2**63, "area": 2**8, "x": 2**16, "y": 2**16}


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder as others may see it; missing files are empty."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)
    whole_game: dict[str, Any] = field(default_factory=dict)
    messages: str = ""
    episodes: list[dict[str, Any]] = field(default_factory=list)
    """The last training episodes, in levels (`StepColumns.line`)."""
    rom_path: str = ""
    """As given; not for others."""
    damaged: int = 0
    """Lines of metrics.jsonl and evaluations.jsonl that cannot be read."""

    @property
    def task(self) -> str:
        """The environment id."""
        return str(self.config.get("env", {}).get("task", self.folder.name))

    @property
    def what(self) -> str:
        """The task, and its levels if there are several."""
        env = self.config.get("env", {})
        return describe_levels(
            self.task, env.get("levels") or (), env.get("test_levels") or ()
        )

    @property
    def last(self) -> dict[str, Any]:
        """The last value of every curve."""
        return {k: v for point in self.points for k, v in point.items()}

    @property
    def rated(self) -> list[dict[str, Any]]:
        """The evaluations that have a clear rate."""
        return [e for e in self.evaluations if e.get("clear_rate") is not None]

    @property
    def solved(self) -> bool:
        """Whether two evaluations in a row passed."""
        needed = self.config.get("solve_rate", 0.9)
        # The second evaluation is played only if the first one passed.
        return any(
            e.get("worst_clear_rate", e.get("clear_rate", 0.0)) >= needed
            for e in self.evaluations
            if e.get("name") == "second evaluation"
        )


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder."""
    if not (folder / "config.json").is_file() and not (
        (folder / "metrics.jsonl").is_file()
    ):
        raise ValueError(
            f"{folder} is not the folder of a run: it has neither config.json nor "
            "metrics.jsonl"
        )
    points, lost = _objects(_read_text(folder / "metrics.jsonl"))
    evaluations, also_lost = _objects(_read_text(folder / "evaluations.jsonl"))
    config = _read_object(folder / "config.json")
    return RunFiles(
        folder,
        shown.settings(config),
        sorted((p for p in points if "step" in p), key=lambda p: float(p["step"])),
        evaluations,
        shown.settings(_read_object(folder / "evaluation" / "table.json")),
        shown.settings(_read_object(folder / "evaluation" / "whole-game.json")),
        shown.message(_read_text(folder / "messages.txt"), config),
        _last_episodes(folder),
        str(config.get("env", {}).get("rom_path", "")),
        lost + also_lost,
    )


def _last_episodes(folder: Path, most: int = 2_000) -> list[dict[str, Any]]:
    """The last whole lines of `EPISODES` about episodes of levels."""
    text = "\n".join(_tail(folder / name, 250 * most) for name in reversed(EPISODES))
    return [line for line in _objects(text)[0] if _is_of_level(line)][-most:]


def _is_of_level(line: Mapping[str, Any]) -> bool:
    """Whether a line has what reports need; later versions may add keys."""
    names = (line.get(name) for name in ("level", "end", "end_level"))
    numbers = ((line.get(name), limit) for name, limit in _LIMITS.items())
    return all(isinstance(name, str) for name in names) and all(
        type(number) is int and 0 <= number < limit for number, limit in numbers
    )


def ends_by_level(lines: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """How and where episodes ended, by the level in which they began.

    A row: level, episodes, the share of each end, and where most of the failed
    episodes ended, to 32 pixels, with their number. Episodes from snapshots count.
    """
    by_level: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        by_level[line["level"]].append(line)
    rows = []
    for level, episodes in sorted(by_level.items()):
        counts = Counter(line["end"] for line in episodes)
        shares = [f"{counts[end] / len(episodes):.0%}" for end in ENDS_HEADS[2:-1]]
        places = Counter(
            (line["end_level"], line["x"] // 32 * 32)
            for line in episodes
            if line["end"] != "cleared"
        )
        where = [f"{name} x {x}: {count}" for (name, x), count in places.most_common(1)]
        rows.append((level, len(episodes), *shares, "".join(where)))
    return rows


def training_maps(run: RunFiles) -> list[tuple[str, str]]:
    """Maps of where the last training episodes ended: names, and URLs of their data.

    Empty without episodes of levels, and without the ROM that they were played on.
    """
    if not run.episodes:
        return []
    # Imported here, because Matplotlib takes a second.
    from trainer.evaluation.plots import draw_training

    with suppress(OSError, ValueError):
        drawn = draw_training(run.task, run.episodes, run.rom_path)
        start = "data:image/png;base64,"
        return [(name, start + b64encode(png).decode()) for name, png in drawn]
    return []


def _tail(path: Path, size: int) -> str:
    """The last bytes of a file as text; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; {} if there is none or it is damaged."""
    with suppress(ValueError, RecursionError):
        if isinstance(data := json.loads(_read_text(path)), dict):
            return data
    return {}


def _objects(text: str) -> tuple[list[dict[str, Any]], int]:
    """JSON objects, one per line, and the number of damaged lines.

    A killed run leaves an incomplete last line.
    """
    objects = []
    lines = text.splitlines()
    for line in lines:
        with suppress(ValueError, RecursionError):
            if isinstance(data := json.loads(line), dict):
                objects.append(data)
    return objects, len(lines) - len(objects)


def clear_rate_now(run_dir: Path) -> float | None:
    """The last clear rate in the curves of a run in progress.

    0 before the first episode has ended; None before the first point, for example
    during a search for demonstrations.
    """
    points, lost = _objects(_tail(run_dir / "metrics.jsonl", 8192))
    rates = [rate for p in points if (rate := p.get("rollout/clear_rate")) is not None]
    return float(rates[-1]) if rates else 0.0 if points or lost else None
