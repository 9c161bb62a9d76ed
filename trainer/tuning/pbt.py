"""Population-based training by Ray Tune: train, exploit, explore."""

from __future__ import annotations

import io
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError, RayTaskError
from ray.tune.error import TuneError
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.cpu import available_cores
from trainer.machine.process import raise_on_signal
from trainer.models import checkpoint
from trainer.session.training import run_training
from trainer.tuning import mutations
from trainer.tuning.options import check_base
from trainer.tuning.population import (
    Plan,
    Population,
    PopulationConfig,
    Train,
    essential,
    folder_of,
    scalar,
)
from trainer.tuning.workers import alone

# How often the process of a member may be killed in one generation before the
# population fails.
MOST_CRASHES = 3

# How long a cluster may take to report its status.
_ANSWER_S = 15.0

# Hides Ray's output and log files, and lets Ctrl-C end the command at once.
_DRIVER = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
# Keeps the working folder, because flags may hold relative paths, and shows GPUs to
# members for which Ray reserves none.
_WORKER = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_CHDIR_TO_TRIAL_DIR": "0"}


class Member(tune.Trainable):  # type: ignore[misc]
    """A member in a Ray process; `step` trains one generation.

    The state of a member is its run folder. A Ray checkpoint holds the newest
    checkpoint of that run, in a folder with the name of the member.
    """

    plan: Plan

    def setup(self, config: Mapping[str, Any], plan: Plan, cpus: int) -> None:
        """Receives the plan; one process trains several members in turn."""
        del config
        # Ctrl-C is for the command alone: a second signal, Ray's SIGTERM, would cut off
        # the checkpoint of the run.
        with suppress(OSError):
            os.setsid()
        jobs = max(1, available_cores() // cpus)
        self.plan = replace(plan, base=share_cores(plan.base, jobs))

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        """Switches to another member, or to new settings."""
        del new_config
        return True

    @property
    def _folder(self) -> Path:
        return folder_of(self.plan.folder, self.config["member"]["number"])

    def step(self) -> dict[str, Any]:
        """Trains a generation."""
        member = self.config["member"]
        metrics = member["done"]
        if self.iteration or not metrics:
            generation = self.plan.first + self.iteration
            metrics = self.plan.train_member(
                member["number"], generation, member["values"]
            )
        if metrics.get("signal"):
            raise InterruptedError("a signal ended its process")
        return {"score": scalar(metrics), **essential(metrics)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copies the newest checkpoint of the run; a failed member may have none."""
        if checkpoint.list_files(self._folder):
            newest = checkpoint.find(self._folder)
            checkpoint.hand_over(newest, Path(checkpoint_dir) / self._folder.name)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Takes the weights of another member; the run folder holds the own weights."""
        for source in Path(checkpoint_dir).glob("member-*"):
            if source.name != self._folder.name:
                checkpoint.hand_over(checkpoint.find(source), self._folder)


def _number(trial: Any) -> int:
    """The number of the member that a trial of Ray trains."""
    return int(trial.config["member"]["number"])


class Pbt(PopulationBasedTraining):  # type: ignore[misc]
    """Ray's synchronous scheduler with the mutations and the lines of a population.

    Attributes:
        failure: why the population cannot continue; empty if it can.
    """

    def __init__(self, population: Population) -> None:
        super().__init__(
            time_attr="training_iteration",
            metric="score",
            mode="max",
            perturbation_interval=1,
            custom_explore_fn=self._explore_config,
            log_config=False,
            synch=True,
        )
        self.failure = ""
        self._population, self._first = population, population.state["generation"]
        self._crashes: dict[tuple[int, int], int] = {}
        self._on_sigusr1 = signal.getsignal(signal.SIGUSR1)

    def __getstate__(self) -> dict[str, Any]:
        """Empty: Ray pickles the scheduler only for `Tuner.restore`."""
        return {}

    def _explore_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config of a winner, with values near those of the winner."""
        rng = random.Random(random.random())
        values = config["member"]["values"]
        values = mutations.explore(self._population.mutations, values, rng)
        return {"member": config["member"] | {"values": values}}

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[Any, Any]:
        """The config of a member that takes the weights of another."""
        config, operations = super()._get_new_config(trial, trial_to_clone)
        loser, winner = _number(trial), _number(trial_to_clone)
        config["member"]["number"] = loser
        saved = Path(self._trial_state[trial_to_clone].last_checkpoint.path)
        weights, values = folder_of(saved, winner), config["member"]["values"]
        self._population.exploit(loser, winner, values, weights)
        return config, operations

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        """Restores the handler of SIGUSR1, which `fit` has replaced by its own."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._on_sigusr1)
        super().on_trial_add(controller, trial)

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> Any:
        """Notes a result; after the last result of a generation, members exploit."""
        generation = self._first + result["training_iteration"] - 1
        try:
            self._population.note(_number(trial), generation, result)
        except RuntimeError as error:
            self.failure = str(error)
            raise
        if generation + 1 >= self._population.config.generations:
            return TrialScheduler.STOP
        # Ray draws winners from Python's own generator.
        seed = self._population.base.seed
        random.seed(f"{seed} generation {self._population.state['generation']}")
        before = self._next_perturbation_sync
        decision = super().on_trial_result(controller, trial, result)
        if self._next_perturbation_sync != before:
            self._population.begin_generation()
        return decision

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Notes that a process was killed; Ray starts another one, up to a limit."""
        super().on_trial_error(controller, trial)
        number, error = _number(trial), trial.get_pickled_error()
        reason = "its process was killed"
        if isinstance(error, RayTaskError):
            reason = str(error).strip().splitlines()[-1]
        key = number, self._population.state["generation"]
        self._crashes[key] = self._crashes.get(key, 0) + 1
        if self._crashes[key] > MOST_CRASHES:
            self.failure = f"member {number}: {reason}, {MOST_CRASHES + 1} times"
            raise RuntimeError(self.failure)
        self._population.note_crash(number, reason)


def _check_cluster(address: str) -> None:
    """Asks a cluster for its status: `ray.init` tries to connect for minutes."""
    host, _, port = address.rpartition(":")
    is_named = host and "/" not in host and port.isdecimal() and int(port) < 65536
    if address != "auto" and not is_named:
        raise ValueError(
            f"--ray-address is auto or HOST:PORT, got {address!r}; the command runs on "
            "a machine of the cluster"
        )
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address"]
    try:
        if is_named:
            socket.create_connection((host, int(port)), _ANSWER_S / 3).close()
        subprocess.run(
            [*status, address],
            check=True, capture_output=True, text=True, timeout=_ANSWER_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_ANSWER_S:g} s"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or "no reason given").splitlines()[-1]
        if "AuthenticationError" in reason:
            reason = "it wants a token: set RAY_AUTH_MODE=token"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return
    raise ConnectionError(f"--ray-address: no Ray cluster at {address} ({reason})")


@contextmanager
def _ray(config: PopulationConfig) -> Iterator[dict[str, float]]:
    """Connects to Ray, on this machine or on a cluster, during the block."""
    os.environ.update(_DRIVER)
    cluster: dict[str, Any] = {"address": config.ray_address}
    if config.ray_address:
        _check_cluster(config.ray_address)
    else:
        cpus = max(1, available_cores() // config.jobs)
        cluster = {"address": "local", "num_cpus": cpus * config.jobs}
        # Small, because checkpoints are files; Ray needs 75 MB at least.
        cluster |= {"include_dashboard": False, "object_store_memory": 100_000_000}
    try:
        ray.init(
            **cluster,
            runtime_env={"env_vars": _WORKER},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConnectionError(f"Ray does not start: {reason}") from error
    try:
        # Ray prints messages of its daemons, for example about a killed process, and
        # has set its own handler of SIGTERM.
        with redirect_stdout(io.StringIO()), raise_on_signal():
            yield _resources(config)
    finally:
        ray.shutdown()


def _resources(config: PopulationConfig) -> dict[str, float]:
    """The resources of a member: a share of the smallest machine, and GPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    if not cores:
        raise ValueError("no machine of the cluster offers a CPU")
    if config.gpus_per_member > gpus:
        raise ValueError(
            f"--gpus-per-member {config.gpus_per_member:g}: no machine has more than "
            f"{gpus:g}"
        )
    cpus = max(1, min(cores) // config.jobs)
    return {"CPU": cpus, "GPU": config.gpus_per_member}


def _fit(population: Population, train: Train, resources: Mapping[str, float]) -> None:
    """Trains the remaining generations."""
    plan = population.plan(train)
    # Left by an earlier call; `plan` has copied the checkpoints that are still needed.
    storage = population.folder / "ray"
    shutil.rmtree(storage, ignore_errors=True)
    scheduler = Pbt(population)
    members = [
        {
            "number": number,
            "values": member["values"],
            "done": member["metrics"] if member["trained"] > plan.first else {},
        }
        for number, member in enumerate(population.state["members"])
    ]
    trainable = tune.with_parameters(Member, plan=plan, cpus=int(resources["CPU"]))
    tuner = tune.Tuner(
        tune.with_resources(trainable, dict(resources)),
        param_space={"member": tune.grid_search(members)},
        tune_config=tune.TuneConfig(
            scheduler=scheduler,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"member-{_number(trial)}",
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(storage),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=3, checkpoint_at_end=False
            ),
            failure_config=tune.FailureConfig(max_failures=-1),
        ),
    )
    try:
        tuner.fit()
    except (TuneError, RayError) as error:
        last = str(error).strip().splitlines()[-1]
        raise RuntimeError(scheduler.failure or last) from error
    if not population.finished:
        raise RuntimeError("Ray ended before the last generation; try again")
    shutil.rmtree(storage, ignore_errors=True)


def evolve(
    config: PopulationConfig, base: RunConfig, train: Train = run_training
) -> Population:
    """Trains a population to its last generation."""
    config.validate()
    check_base(base)
    taken = (
        f"another process trains {config.name!r}; wait for its end, or choose another "
        "--name"
    )
    with alone(config.out / config.name, taken):
        population = Population(config, base)
        if not population.finished:
            with _ray(config) as resources:
                _fit(population, train, resources)
    print(population.result())
    return population
