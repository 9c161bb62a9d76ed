"""The state of a population on disk, and the runs of its members.

This module works without Ray; `trainer.tuning.pbt` trains the members with Ray.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config.options import MAX_SEED, check_ranges, option
from trainer.config.schema import RunConfig
from trainer.machine.files import write_json
from trainer.machine.imports import load
from trainer.models import checkpoint
from trainer.session.files import is_taken
from trainer.show.display import Display
from trainer.show.run_files import read_run
from trainer.tuning import mutations, options

Metrics = Mapping[str, Any]
Train = Callable[[RunConfig, Display], Metrics]

# How long a process of an interrupted call may still write to a run folder.
_TAKEN_S = 60.0

_CLEARS, _BEST_X = "rollout/clear_rate", "rollout/best_x_50"


@dataclass(frozen=True)
class PopulationConfig:
    """Trains a population and its settings."""

    members: int = option(4, least=2)
    """Members, at least 2."""

    generations: int = option(10, least=1)
    """Generations in total, including those of earlier calls."""

    steps_per_generation: int = option(50_000, least=1)
    """Environment steps of each member in a generation."""

    mutations: str = "trainer.tuning.mutations:DEFAULT"
    """Options that change and how, MODULE:NAME or FILE.py:NAME of a dictionary
    (docs/search.md has an example). Only options of the learner and of replay:
    weights move between members."""

    jobs: int = option(1, least=1)
    """Members that train at the same time on each machine; they divide the cores."""

    gpus_per_member: float = option(0.0, least=0)
    """GPUs that Ray reserves for a member, such as 1 or 0.5; 0: Ray reserves none,
    and a member uses the first GPU of its machine, if there is one."""

    ray_address: str = ""
    """Ray cluster that trains the members: auto (the cluster that this machine belongs
    to) or HOST:PORT of its head. Empty: Ray runs on this machine, for this command."""

    name: str = "population"
    """Name of the population; a population of that name is resumed."""

    out: Path = Path("runs/population")
    """Folder of all populations, on a cluster one that all machines share. A population
    writes to OUT/NAME, and a member to OUT/NAME/member-0 and so on."""

    def validate(self) -> None:
        """Raises ValueError for a number that is too small, or a wrong address."""
        check_ranges(self)
        if ":/" in str(self.out):
            raise ValueError(
                f"--out is a folder that all machines share, not a URL, got {self.out}"
            )


def train_member(run: RunConfig, values: Mapping[str, Any], train: Train) -> Metrics:
    """Trains a member to the end of a generation; `run` has its folder and steps."""
    folder = run.run_dir
    assert folder is not None
    until = time.monotonic() + _TAKEN_S
    while is_taken(folder):
        if time.monotonic() > until:
            raise OSError(f"another process writes to {folder}")
        time.sleep(0.2)
    path = checkpoint.find(folder) if checkpoint.list_files(folder) else None
    if path is not None and (checkpoint.step_of(path) or 0) >= run.max_steps:
        # A process was killed after the end of the run and before its report.
        return read_run(folder).points[-1] | {"signal": 0}
    try:
        return train(options.apply(replace(run, resume=path), values), Display())
    except (ValueError, RuntimeError) as error:
        return {"error": str(error).split("\n")[0], "signal": 0}


def folder_of(population: Path, number: int) -> Path:
    """The run folder of a member in the folder of its population."""
    return population / f"member-{number}"


def score(metrics: Metrics) -> tuple[float, float]:
    """The clear rate and the best x in pixels of a member; (-1, 0) if it failed."""
    if "error" in metrics:
        return -1.0, 0.0
    return float(metrics.get(_CLEARS, 0.0)), float(metrics.get(_BEST_X, 0.0))


def describe(metrics: Metrics) -> str:
    """The score of a member as text."""
    if "error" in metrics:
        return f"failed: {metrics['error']}"
    rate, best_x = score(metrics)
    return f"clear {100 * rate:.0f} %, x {best_x:.0f}"


class Population:
    """Members with their settings and scores, on disk after every change.

    Attributes:
        state: number of the `generation`, and for each of the `members`: `values` (its
            settings), `trained` (the number of generations) and `metrics` (of the last
            generation).
    """

    def __init__(self, config: PopulationConfig, base: RunConfig) -> None:
        self.config, self.base = config, base
        table = load(config.mutations, "--mutations", "MODULE:NAME or FILE.py:NAME")
        try:
            mutations.check(table, base)
        except ValueError as error:
            raise ValueError(f"--mutations: {error}") from error
        self.mutations: mutations.Mutations = table
        self.folder = (config.out / config.name).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        setup = options.setup(
            base,
            members=config.members,
            steps=config.steps_per_generation,
            mutations={name: repr(some) for name, some in table.items()},
        )
        self.state: dict[str, Any] = {"setup": setup, "generation": 0}
        self.state["members"] = [self._new(number) for number in range(config.members)]
        path = self.folder / "state.json"
        if path.exists():
            self.state = json.loads(path.read_text())
            options.check_setup(config.name, self.state["setup"], setup)
            for number, member in enumerate(self.state["members"]):
                if foreign := sorted(set(member["values"]) - set(table)):
                    raise ValueError(
                        f"{path} is damaged: member {number} has {', '.join(foreign)}, "
                        "which --mutations does not have; choose another --name"
                    )
        self._events: list[tuple[str, dict[str, Any]]] = []
        # The stream of now, because the messages of Ray are redirected later.
        self._show = partial(print, file=sys.stdout, flush=True)

    def _new(self, number: int) -> dict[str, Any]:
        """A new member; member 0 has the settings of the base."""
        rng = random.Random(f"{self.base.seed} {number}")
        values = mutations.draw(self.mutations, rng)
        if number == 0:
            base = options.values_of(self.base, values)
            values |= {k: v for k, v in base.items() if v in self.mutations[k]}
        return {"values": values, "trained": 0, "metrics": {}}

    @property
    def finished(self) -> bool:
        """Whether all members have trained all generations."""
        most = self.config.generations
        return all(member["trained"] >= most for member in self.state["members"])

    def run_of(self, number: int) -> RunConfig:
        """The run of a member to the end of the generation, without its settings."""
        return replace(
            self.base,
            seed=(self.base.seed + number) % (MAX_SEED + 1),
            run_dir=folder_of(self.folder, number),
            max_steps=(self.state["generation"] + 1) * self.config.steps_per_generation,
            max_seconds=0.0,
            stop_when_solved=False,
            videos=False,
        )

    def _tell(self, text: str, **event: Any) -> None:
        """Keeps a line and an event for the next `_save`."""
        self._events.append((text, {"generation": self.state["generation"], **event}))

    def _save(self) -> None:
        """Prints and logs the kept lines and events, and writes the state to disk."""
        with (self.folder / "population.jsonl").open("a") as file:
            for text, event in self._events:
                self._show(f"generation {event['generation']}: {text}")
                file.write(json.dumps(event) + "\n")
        self._events.clear()
        write_json(self.folder / "state.json", self.state)

    def note(self, number: int, metrics: Metrics) -> None:
        """Notes the result of a member at the end of the generation."""
        member = self.state["members"][number]
        values = member["values"]
        member["trained"] = self.state["generation"] + 1
        kept = ("error", _CLEARS, _BEST_X)
        member["metrics"] = {name: metrics[name] for name in kept if name in metrics}
        text = f"member {number}: {describe(metrics)}; {options.flags(values)}"
        self._tell(text, member=number, score=score(metrics), values=values)
        self._save()

    def note_crash(self, number: int, reason: str) -> None:
        """Notes that the process of a member was killed and starts again."""
        self._tell(f"member {number}: {reason}; it starts again", member=number)
        self._save()

    def begin_generation(self) -> None:
        """Begins the next generation; first, members exploit and explore.

        Each of the lowest quarter takes the weights of one of the highest quarter, and
        values near those of that member. After an interruption, the same members take
        the same weights and values again.
        """
        best, score_of_best = self._best()
        members, generation = self.state["members"], self.state["generation"]
        rng = random.Random(f"{self.base.seed} generation {generation}")
        ranked = sorted(range(len(members)), key=lambda n: score(members[n]["metrics"]))
        count = math.ceil(len(ranked) / 4)
        winners = [n for n in ranked[-count:] if "error" not in members[n]["metrics"]]
        for loser in ranked[:count]:
            self._exploit(loser, rng.choice(winners), rng)
        self.state["generation"] += 1
        self._tell(f"begins; the best was member {best} ({score_of_best})", best=best)
        self._save()

    def _exploit(self, loser: int, winner: int, rng: random.Random) -> None:
        """Gives a member the weights of another and new settings."""
        low, high = self.state["members"][loser], self.state["members"][winner]
        weights = checkpoint.find(folder_of(self.folder, winner))
        checkpoint.hand_over(weights, folder_of(self.folder, loser))
        low["values"] = mutations.explore(self.mutations, high["values"], rng)
        self._tell(
            f"member {loser} ({describe(low['metrics'])}) takes the weights of member "
            f"{winner} ({describe(high['metrics'])}); "
            f"{options.changes(high['values'], low['values'])}",
            member=loser, source=winner, values=low["values"],
        )  # fmt: skip

    def _best(self) -> tuple[int, str]:
        """The member with the highest score, and this score as text."""
        metrics = [member["metrics"] for member in self.state["members"]]
        if all("error" in some for some in metrics):
            error = metrics[0]["error"]
            raise RuntimeError(f"all members failed; member 0: {error}")
        best = max(range(len(metrics)), key=lambda number: score(metrics[number]))
        return best, describe(metrics[best])

    def result(self) -> str:
        """The best member as text."""
        best, score_of_best = self._best()
        folder = folder_of(self.config.out / self.config.name, best)
        return f"best: {folder} ({score_of_best})"
