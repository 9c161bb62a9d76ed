"""Trains a population in processes of Ray, on this machine or on a cluster."""

from __future__ import annotations

import io
import logging
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.cpu import available_cores
from trainer.machine.process import raise_on_signal
from trainer.session.files import alone
from trainer.session.training import run_training
from trainer.tuning.options import check_base
from trainer.tuning.population import (
    Metrics,
    Population,
    PopulationConfig,
    Train,
    train_member,
)

# How often the process of a member may be killed in one generation before the
# population fails.
MOST_CRASHES = 3

# How long a cluster may take to report its status.
_ANSWER_S = 15.0
# How long members may take to write a checkpoint after a signal to the command.
_GRACE_S = 30.0


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
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
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
            # Shows GPUs to members for which Ray reserves none.
            runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}},
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
    except RayError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
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
    return {"num_cpus": cpus, "num_gpus": config.gpus_per_member}


def _train(
    run: RunConfig, values: Mapping[str, Any], train: Train, cores: int
) -> Metrics:
    """Trains a member to the end of a generation, in a process of Ray."""
    # Ctrl-C is for the command alone, which then cancels the runs: a second signal
    # would cut off the checkpoint of a run.
    with suppress(OSError):
        os.setsid()
    run = share_cores(run, max(1, available_cores() // cores))
    metrics = train_member(run, values, train)
    if metrics.get("signal"):
        raise InterruptedError("a signal ended its process")
    return metrics


def _train_generation(
    population: Population, train: Train, resources: Mapping[str, float]
) -> None:
    """Trains the members that have not yet reached the end of the generation."""
    generation, members = population.state["generation"], population.state["members"]
    task = ray.remote(max_retries=0, **resources)(_train)
    cores = int(resources["num_cpus"])

    def begin(number: int) -> Any:
        values = members[number]["values"]
        return task.remote(population.run_of(number), values, train, cores)

    numbers = [n for n, m in enumerate(members) if m["trained"] <= generation]
    running = {begin(number): number for number in numbers}
    crashes: Counter[int] = Counter()
    try:
        while running:
            (done,), _ = ray.wait(list(running))
            number = running.pop(done)
            try:
                metrics = ray.get(done)
            except RayError as error:
                reason = "its process was killed"
                if isinstance(error, RayTaskError):
                    reason = str(error).strip().splitlines()[-1]
                crashes[number] += 1
                if crashes[number] > MOST_CRASHES:
                    raise RuntimeError(
                        f"member {number}: {reason}, {crashes[number]} times"
                    ) from error
                population.note_crash(number, reason)
                running[begin(number)] = number
            else:
                population.note(number, metrics)
    except KeyboardInterrupt:
        for training in running:
            ray.cancel(training)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=_GRACE_S)
        raise


def evolve(
    config: PopulationConfig, base: RunConfig, train: Train = run_training
) -> Population:
    """Trains a population to its last generation."""
    config.validate()
    check_base(base)
    with alone(config.out / config.name, "--name"):
        population = Population(config, base)
        if not population.finished:
            with _ray(config) as resources:
                _train_generation(population, train, resources)
                while not population.finished:
                    population.begin_generation()
                    _train_generation(population, train, resources)
    print(population.result())
    return population
