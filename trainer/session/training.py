"""One run from its first update to its end: `open_run`, then `train`.

All ranks of a run execute both together. Rank 0 reports, evaluates and decides; the
other ranks follow its decisions. `run_training` is both for one process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from trainer.config import plain, shown
from trainer.config.learning import BETA_STEPS, linear
from trainer.config.schema import RunConfig
from trainer.envs.pool import busy_envs, replacements
from trainer.machine.cpu import startup_objects_frozen
from trainer.machine.cuda import own_stream
from trainer.machine.device import describe
from trainer.machine.files import EPISODES, Lines, drop_after, same_folder
from trainer.machine.monitor import mark, profiler
from trainer.machine.process import Interrupted, on_signal
from trainer.machine.ranks import ALONE, FirstRankError, LostRankError, Ranks
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.rollout.store import Batch
from trainer.session import files
from trainer.session.alarms import Alarms
from trainer.session.build import Run
from trainer.session.demonstrate import demonstrate
from trainer.session.reports import Reporter, check_loss
from trainer.session.resume import Saver, resume
from trainer.show.display import Display
from trainer.show.tracking import MetricsWriter

_INTERRUPTED = "interrupted"  # the only reason to end that leaves work to resume


def run_training(config: RunConfig, display: Display | None = None) -> dict[str, float]:
    """Builds a run and trains it; returns the last metrics, as `train` does."""
    run = Run(config, display)
    try:
        _open(run)
    except Interrupted as error:
        steps, seconds = float(run.progress.steps), run.progress.seconds
        ended = {"solved": 0.0, "signal": float(error.signal)}
        return {"steps": steps, "seconds": seconds} | ended
    return train(run)


def open_run(
    config: RunConfig, display: Display | None = None, ranks: Ranks = ALONE
) -> Run:
    """Builds a run, resumes the checkpoint of --resume, and opens the run folder."""
    run = Run(config, display, ranks)
    _open(run)
    return run


def _open(run: Run) -> None:
    config, ranks = run.config, run.ranks
    try:
        run.build()
        source = resume(run)
        run.run_dir = ranks.first(lambda: _start_run_dir(run, source))
        if config.learns_from_demonstrations:
            demonstrate(run)
        if ranks.is_first:
            _open_files(run)
        # Each process has its own pool, and watches it.
        run.alarms = run.owns(
            Alarms(
                run.run_dir,
                run.display,
                busy_s=run.collector.busy_s,
                busy=lambda: busy_envs(run.pool),
                replaced=lambda: replacements(run.pool),
                notifier=run.notifier,
            )
        )
    except BaseException:
        run.close()
        raise


def _start_run_dir(run: Run, source: Path | None) -> Path:
    """Locks the run folder, drops rows of an abandoned part, and writes config.json."""
    config, log = run.config, run.display.log
    run_dir = files.choose_run_dir(config, source)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        run.checkpoints = run.owns(
            files.Checkpoints(run_dir, config.keep_checkpoints, log)
        )
        # A run that was killed before its first checkpoint also leaves lines.
        lost = drop_after(run_dir, run.progress.steps)
        if lost and not same_folder(source, run_dir):
            log(f"dropped {lost} lines of a run without a checkpoint from {run_dir}")
        plain.save(
            config,
            run_dir / "config.json",
            commit=files.commit(),
            device_used=describe(run.device, run.dtype),
            command=files.command_line(),
        )
    except OSError as error:
        raise OSError(
            f"cannot write to the run folder {run_dir} ({error.strerror}); "
            "choose another folder with --run-dir"
        ) from error
    run.progress.best_score = files.best_in(run_dir)
    return run_dir


def _open_files(run: Run) -> None:
    """Opens the files of the run folder that stay open."""
    log = run.display.log
    run.writer = run.owns(
        MetricsWriter(
            run.run_dir,
            shown.settings(plain.to_dict(run.config)),
            command=files.command_line(),
            wandb=run.config.wandb,
            resumed_at=run.progress.steps,
            log=log,
        )
    )
    run.evaluations = run.owns(Lines(run.run_dir / "evaluations.jsonl", log))
    run.episode_lines = run.owns(Lines(run.run_dir / EPISODES[0], log))
    if run.filmer is not None:
        run.filmer.open(run.run_dir / "videos")
        run.owns(run.filmer)


def train(run: Run) -> dict[str, float]:
    """Trains until solved, out of steps or time, or interrupted; closes the run."""
    log = run.display.log
    try:
        run.display.start(run.info)
        with (
            stop_on_signal(log) as stopping,
            own_stream(run.device),
            startup_objects_frozen(),
        ):
            run.start()
            saver = Saver(run)
            try:
                metrics = _loop(run, saver, stopping)
            except LostRankError:
                # The last checkpoint covers all ranks and resumes exactly.
                raise
            except BaseException:
                _save_after_failure(run, saver)
                raise
            saved = saver.save()
            # torchrun ends the other ranks as soon as one has ended by a signal.
            run.ranks.first(lambda: _check_saved(run, saved))
            contents = "checkpoints, curves"
            if run.filmer is not None:
                run.filmer.finish(run.writer.write_video)
                contents += ", videos"
            log(f"wrote {run.run_dir}/ ({contents})")
            # A signal may have come since the loop ended.
            return metrics | {"signal": float(stopping.signal)}
    except Exception as error:
        if not isinstance(error, FirstRankError):  # rank 0 reports the reason
            run.alarms.notify("failed", str(error))
        raise
    finally:
        run.close()


class Stop:
    """The numbers of the signals that asked the run to end; 0: none."""

    own = 0  # the first that came to this process
    signal = 0  # the first that came to any rank


@contextmanager
def stop_on_signal(log: Callable[[str], None]) -> Iterator[Stop]:
    """Records and logs a signal to end; the process's second interrupts at once."""
    stopping = Stop()

    def handle(number: int) -> None:
        if stopping.own:
            raise Interrupted(number)
        stopping.own = number
        # What the rank heard from another one is the same request: batch systems and
        # torchrun send it to all of them.
        if stopping.signal:
            return
        stopping.signal = number
        # Python's files are not reentrant, and Ctrl-C may have ended the reader of
        # stdout. The message may be lost, but not the signal.
        with suppress(RuntimeError, OSError):
            log(f"{signal.Signals(number).name}: ending after this update")

    with on_signal(handle):
        yield stopping


def _save_after_failure(run: Run, saver: Saver) -> None:
    """Writes a checkpoint if possible; the caller still raises the first failure."""
    try:
        saver.save(complete=False)
    except Exception as error:
        run.display.log(f"could not write a checkpoint: {error}")


def _check_saved(run: Run, saved: bool) -> None:
    """Raises RuntimeError unless the last checkpoint of a run is written."""
    if saved:
        return
    kept = [path.name for path in checkpoint.list_files(run.run_dir)]
    raise RuntimeError(
        f"the last checkpoint, at {run.progress.steps:,} steps, could not be "
        f"written; {run.run_dir}/{checkpoint.FOLDER}/ has "
        + (", ".join(kept) if kept else "no earlier one")
    )


class Decision(NamedTuple):
    """What rank 0 decides after an update, for all ranks."""

    reason: str  # why the run ends now; "": it continues
    saves: bool  # whether to write a checkpoint now
    best: bool  # whether to write best.pt now
    signal: int  # number of the signal that asked a rank to end; 0: none


def _loop(run: Run, saver: Saver, stopping: Stop) -> dict[str, float]:
    """Updates, decides and saves until there is a reason to end; the last metrics."""
    progress, on_first_rank = run.progress, run.ranks.first
    reporter, reason = Reporter(run), ""
    with profiler(run.rank_config.profile, run.run_dir, run.device) as count_update:
        while not reason:
            batch = update(run)
            count_update()
            signalled = _gather(run, stopping.signal)
            decision = on_first_rank(
                partial(_decide, run, reporter, saver, batch, signalled)
            )
            reason = decision.reason
            stopping.signal = stopping.signal or decision.signal
            run.ranks.ending = bool(reason)
            if decision.saves:
                saver.save()
            if decision.best and run.ranks.is_first:
                saver.save_best()

    def end() -> None:
        if not stopping.signal and not reason.startswith("solved"):
            reporter.evaluate_at_end()
        # Not by the signal, which may have come during the last evaluation.
        progress.ended = "" if reason == _INTERRUPTED else reason

    on_first_rank(end)
    seconds = run.seconds()
    text = f"{reason} after {progress.steps:,} steps, {format_seconds(seconds)}"
    more = f"; continue with --resume {run.run_dir}" if reason == _INTERRUPTED else ""
    run.display.log(f"{text}{more}")
    if reason != _INTERRUPTED and run.ranks.is_first:
        run.alarms.notify(reason, text)
    return (
        reporter.values
        | progress.evaluated
        | {
            "steps": float(progress.steps),
            "seconds": seconds,
            "solved": float(reason.startswith("solved")),
        }
    )


def update(run: Run) -> Batch:
    """Waits for a batch, learns from it and from replay, and publishes the weights."""
    config, store, replay = run.rank_config, run.store, run.replay
    with mark("collect"):
        slots = run.pipeline.next_batch()
    # Not the count of the collector, which depends on timing in another thread.
    run.progress.steps += run.ranks.total(store.learned_steps(slots))
    step = run.progress.steps
    with run.timings("learn"):
        replayed = None
        if replay is not None and len(replay):
            beta = linear(config.replay.replay_beta, 1.0, BETA_STEPS, step)
            replayed = replay.sample(config.replayed_unrolls, beta)
        batch = store.batch(slots, replayed)
        priorities = run.learner.update(batch, step)
        released = slots
        if replay is not None:
            if replayed is not None:
                replay.update(replayed.slots, priorities[len(slots) :])
            released = replay.add(slots, priorities[: len(slots)])
        if config.lag and run.device.type == "cuda":
            # The only wait, behind all that the device has to do. Before the end, the
            # collector's stream would wait for slots and weights of this update, and so
            # not overlap; and --lag counts updates that have ended.
            torch.cuda.current_stream(run.device).synchronize()
        store.release(released)
    run.pipeline.publish(run.learner.version)
    return batch


def _gather(run: Run, signalled: int) -> int:
    """Collects on rank 0 the new episodes of all ranks, and the first signal."""
    first_signal = 0
    for new, number in run.ranks.gather((run.own_episodes.take_new(), signalled)):
        if run.episodes is not run.own_episodes:
            run.episodes.add(new)
        for ended in new:
            run.episode_lines.write({"step": run.progress.steps} | ended.line)
        first_signal = first_signal or number
    return first_signal


def _decide(
    run: Run, reporter: Reporter, saver: Saver, batch: Batch, signalled: int
) -> Decision:
    """Reports if a report is due, and decides how the run continues."""
    reporter.log_first_clears()
    reason = _reason_to_end(run, reporter, signalled)
    run.progress.seconds = run.seconds()
    best = False
    if reason or reporter.due():
        reporter.report()
        run.alarms.check(reporter.values)
        check_loss(run, reporter.values.get("learn/loss/total", 0.0), batch)
        best = saver.improved()
    return Decision(reason, saver.due(best=best), best, signalled)


def _reason_to_end(run: Run, reporter: Reporter, signalled: int) -> str:
    """Why the run ends now; "" if it continues."""
    config, progress = run.config, run.progress
    if signalled:
        return _INTERRUPTED
    if config.stop_when_solved and reporter.solved():
        return f"solved: {progress.evaluated['evaluation/clear_rate']:.0%} cleared"
    if config.max_steps and progress.steps >= config.max_steps:
        return "max_steps reached"
    if config.max_seconds and run.seconds() >= config.max_seconds:
        return "max_seconds reached"
    return ""
