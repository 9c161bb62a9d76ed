"""One run from its first update to its end: `run_training`."""

from __future__ import annotations

from trainer.config.schema import RunConfig
from trainer.machine.cpu import startup_objects_frozen
from trainer.machine.cuda import own_stream
from trainer.machine.monitor import profiler
from trainer.machine.process import Interrupted
from trainer.machine.ranks import FirstRankError, LostRankError
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.rollout.batch import Batch
from trainer.session.build import Session
from trainer.session.evaluator import Evaluator
from trainer.session.loop import (
    INTERRUPTED,
    Lead,
    Loop,
    Stop,
    is_solved,
    stop_on_signal,
)
from trainer.session.progress import Clock
from trainer.session.reporter import FirstClears, Reporter, Source, check_loss
from trainer.show.display import Display


def run_training(config: RunConfig, display: Display | None = None) -> dict[str, float]:
    """Builds a run and trains it; see `train`."""
    try:
        session = Session(config, display)
    except Interrupted as error:
        return {
            "steps": float(error.steps),
            "seconds": error.seconds,
            "solved": 0.0,
            "signal": float(error.signal),
        }
    return train(session)


def train(session: Session) -> dict[str, float]:
    """Trains until solved, out of steps or time, or interrupted; closes the session."""
    display, run_dir = session.display, session.run_dir
    clock = Clock(session.progress.seconds)
    try:
        display.start(session.info)
        with (
            stop_on_signal(display.log) as stopping,
            own_stream(session.device),
            startup_objects_frozen(),
        ):
            session.start()
            try:
                metrics = _run_loop(session, clock, stopping)
            except LostRankError:
                # The last checkpoint covers all ranks and resumes exactly.
                raise
            except BaseException:
                _save_after_failure(session)
                raise
            saved = session.saver.save()
            # torchrun ends the other ranks as soon as one has ended by a signal.
            session.ranks.first(lambda: _check_saved(session, saved))
            contents = "checkpoints, curves"
            if session.filmer is not None:
                session.filmer.finish(session.writer.write_video)
                contents += ", videos"
            display.log(f"wrote {run_dir}/ ({contents})")
            # A signal may have come since the loop ended.
            return metrics | {"signal": float(stopping.signal)}
    except Exception as error:
        if not isinstance(error, FirstRankError):  # rank 0 reports the reason
            session.alarms.notify("failed", str(error))
        raise
    finally:
        session.close()


def _check_saved(session: Session, saved: bool) -> None:
    """Raises RuntimeError unless the last checkpoint of a run is written."""
    if saved:
        return
    kept = [path.name for path in checkpoint.list_files(session.run_dir)]
    raise RuntimeError(
        f"the last checkpoint, at {session.progress.steps:,} steps, could not be "
        f"written; {session.run_dir}/{checkpoint.FOLDER}/ has "
        + (", ".join(kept) if kept else "no earlier one")
    )


def _run_loop(session: Session, clock: Clock, stopping: Stop) -> dict[str, float]:
    """Gives the loop its parts, and runs it; returns the last metrics."""
    progress, run_dir = session.progress, session.run_dir
    reporter = lead = None
    if session.ranks.is_first:
        reporter = _make_reporter(session, clock)
        lead = _make_lead(session, clock, reporter)
    reason = Loop(
        session.ranks,
        lead,
        updater=session.updater,
        saver=session.saver,
        own_episodes=session.own_episodes,
        episodes=session.episodes,
        profiled=profiler(session.share.profile, run_dir, session.device),
        stopping=stopping,
    ).run()
    seconds = clock.seconds()
    more = f"; continue with --resume {run_dir}" if reason == INTERRUPTED else ""
    text = f"{reason} after {progress.steps:,} steps, {format_seconds(seconds)}"
    session.display.log(f"{text}{more}")
    if reason != INTERRUPTED and session.ranks.is_first:
        session.alarms.notify(reason, text)
    return (
        (reporter.values if reporter else {})
        | progress.evaluated
        | {
            "steps": float(progress.steps),
            "seconds": seconds,
            "solved": float(is_solved(reason)),
        }
    )


def _make_reporter(session: Session, clock: Clock) -> Reporter:
    """Makes the reporter of rank 0: curves of all episodes and of its own work."""
    return Reporter(
        session.config,
        sources=_sources(session),
        timings=session.timings,
        writer=session.writer,
        display=session.display,
        filmer=session.filmer,
        progress=session.progress,
        clock=clock,
    )


def _make_lead(session: Session, clock: Clock, reporter: Reporter) -> Lead:
    """Makes the part of rank 0 that decides."""
    config, progress, run_dir = session.config, session.progress, session.run_dir
    log = session.display.log
    evaluator = Evaluator(
        config,
        model=session.model,
        ema=session.learner.ema,
        device=session.device,
        dtype=session.dtype,
        episodes=session.episodes,
        progress=progress,
        clock=clock,
        lines=session.evaluations,
        writer=session.writer,
        log=log,
        skip=reporter.skip,
    )
    first_clears = FirstClears(
        config,
        episodes=session.episodes,
        progress=progress,
        clock=clock,
        run_dir=run_dir,
        log=log,
    )

    def check(batch: Batch) -> None:
        session.alarms.check(reporter.values)
        check_loss(reporter.values, batch, run_dir, session.obs_shape)

    return Lead(
        config,
        first_clears=first_clears,
        reporter=reporter,
        evaluator=evaluator,
        saver=session.saver,
        check=check,
        progress=progress,
        clock=clock,
    )


def _sources(session: Session) -> list[Source]:
    """The sources of the values of the curves."""
    store, replay = session.store, session.replay
    sources: list[Source] = [
        ("time/share_", session.timings.shares),
        ("system/", session.monitor.statistics),
        ("rollout/", session.episodes.statistics),
        ("rollout/", session.collector.statistics),
        ("", session.episodes.level_statistics),
    ]
    if session.explorer is not None:
        sources.append(("explore/", session.explorer.statistics))
    sources += [
        ("learn/", session.learner.statistics),
        ("queue/", lambda: {
            "full_unrolls": float(store.num_full), "free_slots": float(store.num_free),
        }),
    ]  # fmt: skip
    if session.ranks.size > 1:
        sources.append(("time/share_", session.ranks.timings.shares))
    if replay is not None:
        sources += [
            ("replay/", lambda: {"unrolls": float(len(replay))}),
            ("", lambda: {k: v.item() for k, v in replay.statistics().items()}),
        ]
    return sources


def _save_after_failure(session: Session) -> None:
    """Writes a checkpoint if possible; the caller still raises the first failure."""
    try:
        session.saver.save(complete=False)
    except Exception as error:
        session.display.log(f"could not write a checkpoint: {error}")
