"""A population of runs: train, exploit, explore (Jaderberg et al. 2017)."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config.checks import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.files import write_json
from trainer.models import checkpoint
from trainer.session.training import run_training
from trainer.show.display import QuietDisplay
from trainer.show.run_files import read_run
from trainer.tuning import command, mutations, options

Metrics = dict[str, Any]


@dataclass(frozen=True)
class PopulationConfig:
    """Trains a population and its settings."""

    members: int = 4
    """Members, 2 at least."""

    generations: int = 10
    """Generations in all, those of earlier calls included."""

    steps_per_generation: int = 50_000
    """Environment steps of each member in a generation."""

    mutations: str = "trainer.tuning.mutations:DEFAULT"
    """Options that change and how, MODULE:NAME or FILE.py:NAME of a dictionary
    (docs/search.md has an example). Only options of the learner and of replay:
    weights move between members."""

    jobs: int = 1
    """Members that train at the same time; they divide the cores."""

    name: str = "population"
    """Name of the population; a population of that name is resumed."""

    out: Path = Path("runs/population")
    """Folder of all populations; one writes to OUT/NAME, a member to member-0 there."""

    def validate(self) -> None:
        """Raises ValueError for a number that is too small."""
        least = {"members": 2, "generations": 1, "steps_per_generation": 1, "jobs": 1}
        for name, number in least.items():
            if (value := getattr(self, name)) < number:
                raise ValueError(f"{name} must be at least {number}, got {value}")


def train_member(config: RunConfig, values: Mapping[str, Any]) -> Metrics:
    """Trains a member for a generation.

    Args:
        config: of its run, without its settings.
        values: of its settings, by option.

    Returns:
        The metrics of the run; only `error` and `signal` if it failed.
    """
    path = config.resume
    if path is not None and (checkpoint.step_of(path) or 0) >= config.max_steps:
        # Its process was killed after the end of the run, before the state was saved.
        return read_run(path.parent.parent).points[-1] | {"signal": 0}
    try:
        return dict(run_training(options.apply(config, values), QuietDisplay()))
    except (ValueError, RuntimeError) as error:
        return {"error": str(error).split("\n")[0], "signal": 0}


def score(metrics: Metrics) -> tuple[float, ...]:
    """The rank of a member: its clear rate, and before any clears how far it gets."""
    if "error" in metrics:
        return (-1.0,)
    names = ("clear_rate", "best_x_50", "return")
    return tuple(metrics.get(f"rollout/{name}", 0.0) for name in names)


def describe(metrics: Metrics) -> str:
    """A member's score for people."""
    if "error" in metrics:
        return f"failed: {metrics['error']}"
    rate, best_x, _ = score(metrics)
    return f"clear {100 * rate:.0f} %, x {best_x:.0f}"


class Population:
    """Members, their settings and scores; on disk after every change."""

    def __init__(self, config: PopulationConfig, base: RunConfig) -> None:
        """Begins a population, or resumes the one in its folder."""
        self.config, self.base = config, base
        table = command.load(config.mutations, "--mutations")
        try:
            mutations.check(table, base)
        except ValueError as error:
            raise ValueError(f"--mutations: {error}") from error
        self.mutations: mutations.Mutations = table
        self.folder = config.out / config.name
        self.folder.mkdir(parents=True, exist_ok=True)
        members = [self._new(number) for number in range(config.members)]
        setup = command.setup(
            base,
            members=config.members,
            steps=config.steps_per_generation,
            mutations={name: repr(some) for name, some in table.items()},
        )
        self.state: dict[str, Any] = {"setup": setup, "generation": 0}
        self.state["members"] = members
        if (self.folder / "state.json").exists():
            self.state = json.loads((self.folder / "state.json").read_text())
            command.check_setup(config.name, self.state["setup"], setup)

    def _new(self, number: int) -> dict[str, Any]:
        """A member that has not trained; member 0 has the settings of the base."""
        rng = random.Random(f"{self.base.seed} {number}")
        values = mutations.draw(self.mutations, rng)
        if number == 0:
            own = options.values_of(self.base, values)
            values |= {k: v for k, v in own.items() if v in self.mutations[k]}
        return {"values": values, "trained": 0, "metrics": {}}

    def _save(self, text: str, **event: Any) -> None:
        """Replaces the state on disk, and logs the event that changed it."""
        event = {"generation": self.state["generation"], **event}
        print(f"generation {event['generation']}: {text}", flush=True)
        with (self.folder / "population.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
        write_json(self.folder / "state.json", self.state)

    def folder_of(self, number: int) -> Path:
        """Folder of a member's run."""
        return self.folder / f"member-{number}"

    def _run_of(self, number: int) -> RunConfig:
        """A member's run in this generation, without its settings."""
        folder = self.folder_of(number)
        return replace(
            share_cores(self.base, self.config.jobs),
            seed=(self.base.seed + number) % (MAX_SEED + 1),
            run_dir=folder,
            resume=checkpoint.find(folder) if checkpoint.list_files(folder) else None,
            max_steps=(self.state["generation"] + 1) * self.config.steps_per_generation,
            max_seconds=0.0,
            stop_when_solved=False,
            videos=False,
        )

    def train(self, map_runs: Callable[..., Iterable[Metrics]]) -> None:
        """Trains all members that have not yet trained in this generation.

        Args:
            map_runs: `map`, or one that runs as many as there are jobs at once. It
                gets no more than these, so that none is left after Ctrl-C.
        """
        generation, members = self.state["generation"], self.state["members"]
        left = [i for i, m in enumerate(members) if m["trained"] <= generation]
        for begin in range(0, len(left), self.config.jobs):
            some = left[begin : begin + self.config.jobs]
            values = [members[i]["values"] for i in some]
            runs = [self._run_of(i) for i in some]
            results = list(map_runs(train_member, runs, values))
            for number, metrics, own in zip(some, results, values, strict=True):
                if metrics["signal"]:
                    raise KeyboardInterrupt
                members[number] |= {"trained": generation + 1, "metrics": metrics}
                text = f"member {number}: {describe(metrics)}; {options.flags(own)}"
                self._save(text, member=number, score=score(metrics), values=own)

    def evolve(self) -> None:
        """Exploit and explore; the next generation begins."""
        members, order = self.state["members"], self.ranking()
        quarter = max(1, len(order) // 4)
        rng = random.Random(f"{self.base.seed} generation {self.state['generation']}")
        for loser in order[-quarter:]:
            winner = rng.choice(order[:quarter])
            low, high = members[loser], members[winner]
            if score(low["metrics"]) < score(high["metrics"]):
                source = checkpoint.find(self.folder_of(winner))
                checkpoint.hand_over(source, self.folder_of(loser))
                low["values"] = mutations.explore(self.mutations, high["values"], rng)
                changes = options.changes(high["values"], low["values"])
                self._save(
                    f"member {loser} ({describe(low['metrics'])}) takes member "
                    f"{winner}'s weights ({describe(high['metrics'])}); {changes}",
                    member=loser, source=winner, values=low["values"],
                )  # fmt: skip
        self.state["generation"] += 1
        best = describe(members[order[0]]["metrics"])
        self._save(f"begins; the best was member {order[0]} ({best})", best=order[0])

    def ranking(self) -> list[int]:
        """The members, best first.

        Raises:
            RuntimeError: all have failed.
        """
        metrics = [member["metrics"] for member in self.state["members"]]
        if all("error" in of_one for of_one in metrics):
            raise RuntimeError(f"all members failed; member 0: {metrics[0]['error']}")
        numbers = range(len(metrics))
        return sorted(numbers, key=lambda i: score(metrics[i]), reverse=True)


def evolve(config: PopulationConfig, base: RunConfig) -> Population:
    """Trains a population to its last generation."""
    config.validate()
    command.check_base(base)
    population = Population(config, base)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.jobs, context) as pool:
        population.train(pool.map if config.jobs > 1 else map)
        while population.state["generation"] + 1 < config.generations:
            population.evolve()
            population.train(pool.map if config.jobs > 1 else map)
    best = population.ranking()[0]
    score_of_best = describe(population.state["members"][best]["metrics"])
    print(f"best: {population.folder_of(best)} ({score_of_best})")
    return population
