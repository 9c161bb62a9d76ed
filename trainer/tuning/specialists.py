"""Tasks of a campaign: train a level for some time, choose a policy, evaluate.

Every function here runs in a process of `workers.py`; its arguments and results are
plain types and paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from trainer.config.learning import LearnerConfig, Muon, linear
from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.evaluation.protocol import evaluate_checkpoint
from trainer.evaluation.results import LevelResult
from trainer.learn.optim import learning_rate_factor
from trainer.models import checkpoint
from trainer.models.policy import save_policy
from trainer.session.training import run_training
from trainer.show.display import Display, RecordDisplay
from trainer.show.run_files import read_run

# Share of the time of a new run before its schedules start to fall to 0. It measures
# the speed, and so the number of steps to come.
_BEFORE_THE_END = 0.4
# Clear rate of the last 100 training episodes.
RATE = "rollout/clear_rate"
# Points of the curves whose mean speed predicts the future speed.
_POINTS = 10
# When the schedules of a level have ended, they restart with a share of their rates
# (SGDR, Loshchilov & Hutter 2017), if there is time for as many steps again: the first
# time with the first share, then with the second. With 0.5 again, eight levels that
# were at 73 % lost in each cycle nearly all that they won.
_RESTARTS = (0.5, 0.15)
# Schedules have ended if less than this share of their steps is left.
_LEFT = 0.25
# Temperatures of policies; checkpoints are compared at the first one.
TEMPERATURES = (0.5, 1.0, 0.25)
# The policy is chosen from this many of the newest checkpoints and best.pt.
CANDIDATES = 4
# Number of an evaluation that no run or command plays (`evaluation.play.first_seed`).
_STREAM = 1_000_000


@dataclass(frozen=True)
class Slice:
    """Some seconds of a run, whose folder may hold earlier slices.

    Attributes:
        last: the run ends with this slice. At its end, the learning rate and the
            entropy bonus have fallen to 0.
        before_the_end: share of a last slice of a new run before they start to fall.
        finish: seconds for which a solved level trains further while they fall to 0;
            in a last slice at most what is left of it.
        restart: share of their first rates with which the schedules of the run, which
            have ended, restart in any case; 0: only if there is time (`_RESTARTS`).
    """

    config: RunConfig
    seconds: float
    last: bool
    before_the_end: float = _BEFORE_THE_END
    finish: float = 0.0
    restart: float = 0.0


def train(
    work: Slice, display: Callable[[], Display] = RecordDisplay
) -> dict[str, float]:
    """Trains until the level is solved and finished, or the time is over.

    The training ends as soon as the level is solved, with rates that have hardly
    fallen. Eight levels that were solved in this way then cleared 90 % of the episodes,
    and 95 % after 30 s in which their rates fell to 0.
    """
    assert work.config.run_dir is not None
    before = seconds_of(work.config.run_dir) if work.last else 0.0
    metrics = _train(work, display)
    if not metrics["solved"]:
        return metrics
    seconds = work.finish
    if work.last:
        seconds = min(seconds, before + work.seconds - metrics["seconds"])
    if seconds <= 0.0:
        return metrics
    config = replace(work.config, stop_when_solved=False)
    finished = _train(replace(work, config=config, seconds=seconds, last=True), display)
    return finished | {
        # An interrupted one is repeated when the campaign is resumed.
        "solved": not finished["signal"],
        RATE: max(run.get(RATE, 0.0) for run in (metrics, finished)),
    }


def _train(work: Slice, display: Callable[[], Display]) -> dict[str, float]:
    """Trains until the level is solved or the time is over."""
    folder = work.config.run_dir
    assert folder is not None
    path, before = None, 0.0
    if checkpoint.list_files(folder):
        path, state = _newest(folder)
        before = float(state["progress"]["seconds"])
    # The checkpoint may be of an interrupted search for demonstrations.
    if path is None or not state["steps"]:
        share = work.before_the_end if work.last else 1.0
        seconds = before + share * work.seconds
        config = replace(work.config, resume=path, max_seconds=seconds)
        metrics = dict(run_training(config, display()))
        if not work.last or metrics["solved"] or metrics["signal"]:
            return metrics
        work = replace(work, seconds=(1.0 - share) * work.seconds)
        path, state = _newest(folder)
    seconds = float(state["progress"]["seconds"]) + work.seconds
    config = replace(_scheduled(work, state), resume=path, max_seconds=seconds)
    return dict(run_training(config, display()))


def _scheduled(work: Slice, state: Mapping[str, Any]) -> RunConfig:
    """The config of a later slice of a run.

    The schedules of the run come first. Then each slice is a cycle: straight lines to
    0, which are as long as the first schedules or longer. A last slice ends the cycle.
    """
    first = work.config.learner
    now = from_dict(LearnerConfig, state["config"]["learner"])
    ended = now.lr_steps - int(state["steps"]) < _LEFT * first.lr_steps
    if not (ended or work.last):
        return replace(work.config, learner=now)
    more = round(_speed(work.config) * work.seconds)
    if not work.last:
        more = max(more, first.lr_steps)
    restart = work.restart
    if not restart and ended and more >= first.lr_steps:
        restart = _RESTARTS[now.lr_steps > first.lr_steps]
    return ending(work.config, state, more, restart)


def _newest(run_dir: Path) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint of a run that has one, and its content."""
    path = checkpoint.find(run_dir)
    needs = ("config", "learner", "progress", "steps")
    return path, checkpoint.load(path, torch.device("cpu"), needs)


def seconds_of(run_dir: Path) -> float:
    """Training seconds of a run in its newest checkpoint; 0 without one."""
    if not checkpoint.list_files(run_dir):
        return 0.0
    return float(_newest(run_dir)[1]["progress"]["seconds"])


def ending(
    config: RunConfig,
    state: Mapping[str, Any],
    more: int,
    least: float = 0.0,
) -> RunConfig:
    """A config whose schedules fall on straight lines to 0, in `more` steps.

    The lines begin at the current values, or at the share `least` of the first ones if
    that is higher. A constant entropy bonus prevents precise policies. With rates that
    fall to 0 and no bonus, the mean clear rate of twelve levels rose from 66 to 94 % in
    another project.
    """
    steps, learner, more = int(state["steps"]), config.learner, max(1, more)
    now = from_dict(LearnerConfig, state["config"]["learner"])
    rate = now.lr * learning_rate_factor(now, steps, state["learner"]["updates"])
    rate = max(rate, least * learner.lr)
    # A value on such a line at `steps` began at this multiple of the value.
    ahead = (steps + more) / more
    scale = rate / learner.lr * ahead
    if scale <= 0.0:
        return config  # the schedules had ended, and the run has more time now
    if isinstance(learner.optimizer, Muon):
        matrix_lr = learner.optimizer.matrix_lr * scale
        optimizer = replace(learner.optimizer, matrix_lr=matrix_lr)
        learner = replace(learner, optimizer=optimizer)
    entropy = linear(now.entropy, now.entropy_end, now.entropy_steps, steps)
    imitation = linear(now.imitation, 0.0, now.entropy_steps, steps)
    learner = replace(
        learner,
        lr=learner.lr * scale,
        lr_end=0.0,
        lr_steps=steps + more,
        lr_schedule="linear",
        warmup_updates=0,
        entropy=max(entropy, least * learner.entropy) * ahead,
        entropy_end=0.0,
        entropy_steps=steps + more,
        imitation=max(imitation, least * learner.imitation) * ahead,
    )
    return replace(config, learner=learner)


def _speed(config: RunConfig) -> float:
    """Recent environment steps per second of a run."""
    assert config.run_dir is not None
    points = read_run(config.run_dir).points
    speeds = [float(p["time/sps"]) for p in points if "time/sps" in p][-_POINTS:]
    return fmean(speeds) if speeds else 0.0


def choose(
    run_dir: Path,
    to: Path,
    levels: str,
    episodes: int,
    seed: int,
    bits: int,
    model: str = "",
) -> dict[str, Any]:
    """Plays the newest checkpoints of a run and best.pt, and writes the best policy.

    A policy that still explores plays better if its probable actions become more
    probable, so all checkpoints are played with their logits divided by 0.5, and the
    best checkpoint also with two other temperatures. The best checkpoint has the
    highest mean clear rate of sampled and greedy actions, from starts with idle frames.
    """

    def play(path: Path, temperature: float, argmax: bool) -> tuple[float, float]:
        save_policy(path, to, temperature=temperature, bits=bits)
        return rates_of(to, levels, episodes, seed, model, argmax=argmax)

    files = checkpoint.list_files(run_dir)
    if not files:
        raise FileNotFoundError(f"no checkpoint of {levels} in {run_dir}")
    # The newest first, which wins among equals.
    best = [path for path in files if path.name == checkpoint.BEST]
    paths = [path for path in files if path not in best][:CANDIDATES] + best
    first, *others = TEMPERATURES
    try:
        save_policy(paths[0], to, temperature=first, bits=bits)
    except ValueError:
        first, others = 1.0, []  # a network of another kind
    rates = {path: play(path, first, argmax=True) for path in paths}
    path = max(rates, key=lambda path: rates[path][0])
    sampled = {first: rates[path][1]}
    sampled |= {other: play(path, other, argmax=False)[1] for other in others}
    temperature = max(sampled, key=lambda other: sampled[other])
    save_policy(path, to, temperature=temperature, bits=bits)
    return {
        "clear_rate": sampled[temperature],
        "checkpoint": path.name,
        "temperature": temperature,
    }


def rates_of(
    path: Path, levels: str, episodes: int, seed: int, model: str = "", *, argmax: bool
) -> tuple[float, float]:
    """Clear rates of a policy to choose by, with episodes that no evaluation plays.

    Returns:
        The mean of sampled and, with `argmax`, greedy actions; and the sampled one.
    """
    played = evaluate_checkpoint(
        path,
        levels=levels,
        episodes=episodes,
        seed=seed,
        stream=_STREAM,
        argmax=argmax,
        model=model,
        device="cpu",
    ).levels
    sampled = fmean(_clear_rate(r) for r in played if not r.argmax)
    return fmean(map(_clear_rate, played)), sampled


def _clear_rate(result: LevelResult) -> float:
    """The clear rate; with greedy actions only of the starts with idle frames.

    Most publications report the start without idle frames, so no policy is chosen by
    it.
    """
    if result.cleared_starts is None:
        return result.clear_rate
    return sum(start > 0 for start in result.cleared_starts) / (result.episodes - 1)


def evaluate(
    path: Path, levels: str, episodes: int, seed: int, model: str = ""
) -> dict[str, Any]:
    """Plays a policy with sampled and greedy actions; returns plain types."""
    played = evaluate_checkpoint(
        path, levels=levels, episodes=episodes, seed=seed, model=model, device="cpu"
    )
    return played.to_dict()
