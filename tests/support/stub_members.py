"""Populations whose runs take no time, as a command of its own.

    python -m stub_members JSON_OF_A_STUB FLAGS_OF_TRAINER_POPULATION

In a module of its own, so that the processes of Ray find it.
"""

import functools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass

import torch

from trainer.models import checkpoint


@dataclass(frozen=True)
class Stub:
    """Instead of `run_training`: writes checkpoints that say whose weights they are.

    Every call is a line of calls.jsonl in the folder of the population. A member is
    named MEMBER-GENERATION.
    """

    steps: int = 1000
    rates: tuple = (0.1, 0.7, 0.3, 0.5)
    fails: tuple = ()  # names that raise an error
    hangs: tuple = ()  # names that hang, the first time, and leave their pid in a file

    def __call__(self, config, display):
        member = int(config.run_dir.name.removeprefix("member-"))
        generation = config.max_steps // self.steps - 1
        name, population = f"{member}-{generation}", config.run_dir.parent
        origin = member
        if config.resume is not None:
            state = checkpoint.load(config.resume, torch.device("cpu"))
            assert state["steps"] == config.max_steps - self.steps
            origin = int(state["model"]["origin"])
        call = {
            "name": name,
            "origin": origin,
            "seed": config.seed,
            "lr": config.learner.lr,
            "lam": config.learner.lam,
            "epochs": config.learner.epochs,
        }
        with (population / "calls.jsonl").open("a") as file:
            file.write(json.dumps(call) + "\n")
        if name in self.fails:
            raise RuntimeError("the loss is nan\nand more")
        mark = population / f"hangs-{name}"
        if name in self.hangs and not mark.exists():
            mark.with_suffix(".tmp").write_text(str(os.getpid()))
            mark.with_suffix(".tmp").rename(mark)
            time.sleep(300)
            raise AssertionError("nobody has killed it")
        return self.finish(config, member, origin)

    def finish(self, config, member, origin):
        """Leaves what a run leaves, and returns its metrics."""
        folder = config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{config.max_steps:09}.pt"
        model = {"origin": torch.tensor(origin)}
        checkpoint.save(path, {"model": model, "steps": config.max_steps})
        point = {
            "step": config.max_steps,
            "rollout/clear_rate": self.rates[member],
            "rollout/best_x_50": 700.0,
        }
        with (config.run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(point) + "\n")
        return point | {"signal": 0.0}


def main(stub, *flags):
    from trainer import population
    from trainer.tuning import pbt

    # A shell lets commands that it starts in the background ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    train = Stub(**json.loads(stub))
    pbt.evolve = functools.partial(pbt.evolve, train=train)
    return population.main(flags)


if __name__ == "__main__":
    from stub_members import main

    sys.exit(main(*sys.argv[1:]))
