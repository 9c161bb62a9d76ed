"""Tables of an evaluation for a terminal, and the progress bar."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from trainer.evaluation.play import wilson
from trainer.evaluation.results import (
    Evaluation,
    LevelResult,
    by_options,
    levels_in_a_row,
)
from trainer.evaluation.whole_game import GameEvaluation, GameResult
from trainer.rollout.episodes import Place

# Keys of a replayed result: from this machine, and from the card of the release.
_SIDES = ("here", "card")

# Deaths in the same strip of this many pixels count as one place.
_PLACE_WIDTH = 32

_LEGEND = (
    "{} sampled episodes per level; greedy: cleared starts, with greedy actions;\n"
    "best x, steps: medians, steps of clears only; died, stall, time: how many\n"
    "episodes ended this way; dies at: x where most died, and how many"
)
_GAME_LEGEND = (
    "finished: attempts that cleared the last castle (95 %); before a death, passed:\n"
    "mean number of levels before the first lost life (95 %), and in all; warped:\n"
    "levels that warp zones left out; lost: lives"
)
_LIVES_LEGEND = (
    "the first row above: attempts that reached a level, lives lost there, also for\n"
    "each attempt that reached it, and attempts whose last life was lost there"
)
_TEST_LEGEND = "below the row train: levels that the run never trained on"


@contextmanager
def progress(what: str = "episodes") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if stderr is a terminal."""
    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), what, TimeRemainingColumn()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("playing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(evaluation: Evaluation) -> None:
    """Prints an evaluation."""
    about, results = evaluation.about, evaluation.levels
    console = Console(highlight=False)
    weights = "averaged weights" if about["weights"] == "ema" else "latest weights"
    console.print(
        f"{about['checkpoint']}: {about['task']}, {about['trained_steps']:,} steps, "
        f"{weights}\nseed {about['seed']}, 0 to {about['noop_max']} idle frames; "
        f"a step is {about['frame_skip']} frames" + _random_numbers(about),
        soft_wrap=True,
        markup=False,  # of a path
        emoji=False,  # released:one
    )
    if evaluation.rows:
        console.print(_task_table(evaluation.rows))
        return
    parts = by_options(results)
    for chance in dict.fromkeys(chance for chance, _ in parts):
        sampled = parts[chance, False]
        argmax = parts.get((chance, True), [])
        if chance:
            console.print(f"\nsticky actions, with probability {chance:g} per frame:")
        console.print(level_table(sampled, argmax))
        console.print(_LEGEND.format(about["episodes"]), style="dim")
        if any(result.unseen for result in sampled):
            console.print(_TEST_LEGEND, style="dim")
        in_a_row = levels_in_a_row(sampled)
        if in_a_row is not None:
            text = f"levels in a row from 1-1: {in_a_row:.2f} with sampled actions"
            if argmax:
                text += f", {levels_in_a_row(argmax):.2f} with greedy actions"
            console.print(text)


def _random_numbers(about: Mapping[str, Any]) -> str:
    """Names the option that begins episodes with other random numbers, if it is on."""
    most = about.get("rng_frames_max", 0)
    return f"; random numbers of 0 to {most} frames later" if most else ""


def show_games(evaluation: GameEvaluation) -> None:
    """Prints attempts at the whole game."""
    about = evaluation.about
    console = Console(highlight=False)
    who = "a policy for each level" if about["policies"] > 1 else "one network"
    console.print(
        f"{about['checkpoint']}: {who}, {about['trained_steps']:,} steps\n"
        f"{about['task']} from power-on, three lives; seed {about['seed']}, 0 to "
        f"{about['noop_max']} idle frames; a step is {about['frame_skip']} frames"
        + _random_numbers(about),
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
    table = _table(
        *("actions", "sticky", "attempts", "finished", "before a death", "passed"),
        *("warped", "lost", "steps"),
    )
    for result in evaluation.results:
        (low, high), mean = result.interval, result.passed_before_death_mean
        half = result.passed_before_death_95[1] - mean
        table.add_row(
            "greedy" if result.argmax else "sampled",
            f"{result.repeat_action_probability:g}",
            str(result.episodes),
            f"{result.finished}"
            + f" ({100 * low:.0f}-{100 * high:.0f} %)" * (not result.argmax),
            f"{mean:.2f}" + f" ± {half:.2f}" * (not result.argmax),
            f"{result.passed_mean:.2f}",
            f"{result.skipped_mean:.2f}",
            f"{result.lost_mean:.2f}",
            f"{result.steps_mean:.0f}",
        )
    console.print(table)
    console.print(_GAME_LEGEND, style="dim")
    console.print(lives_table(evaluation.results[0]))
    console.print(_LIVES_LEGEND, style="dim")


def lives_table(result: GameResult) -> Table:
    """A row per level that was reached: how often, and the lives lost there."""
    table = _table("level", "reached", "lives lost", "for each", "last life")
    for level, reached in result.reached.items():
        lost = result.lost.get(level, 0)
        ended = result.ended.get(level, 0)
        table.add_row(
            level, str(reached), str(lost), f"{lost / reached:.2f}", str(ended)
        )
    return table


def level_table(sampled: Sequence[LevelResult], argmax: Sequence[LevelResult]) -> Table:
    """A row per level, and a row for all levels; at most 80 columns wide.

    Test levels follow the training levels, with a separate row for all of them.
    """
    table = _table(
        *("level", "cleared", "95 % range", "greedy", "return", "best x", "steps"),
        *("died", "stall", "time", "dies at"),
    )
    split = any(result.unseen for result in sampled)
    for unseen in (False, True)[: 1 + split]:
        rows, starts = (
            [result for result in results if result.unseen == unseen]
            for results in (sampled, argmax)
        )
        for number, result in enumerate(rows):
            argmax_of_level = starts[number : number + 1]
            table.add_row(*_cells(result.level, [result], argmax_of_level))
        if len(rows) > 1 or (split and rows):
            name = "all" if not split else "test" if unseen else "train"
            table.add_section()
            table.add_row(*_cells(name, rows, starts))
            table.add_section()
    return table


def campaign_rows(
    results: Sequence[Mapping[str, Any]],
    levels: Sequence[str],
    show_rate: Callable[[float], str] = lambda rate: f"{100 * rate:.1f} %",
) -> Iterator[tuple[str, ...]]:
    """The heads, a row per level, and a row for all levels."""
    yield "level", "cleared", "95 % range", "greedy", "no idle frames"
    sampled = {r["level"]: r for r in results if not r["argmax"]}
    argmax = {r["level"]: r for r in results if r["argmax"]}
    for level in levels:
        if level not in sampled:
            yield level, "no policy", "", "", "-"
            continue
        low, high = sampled[level]["interval"]
        greedy = argmax[level]
        yield (
            level,
            show_rate(sampled[level]["clear_rate"]),
            f"{100 * low:.0f}-{100 * high:.0f}",
            f"{greedy['clears']}/{greedy['episodes']}",
            "cleared" if 0 in greedy["cleared_starts"] else "-",
        )
    rates = [result["clear_rate"] for result in sampled.values()]
    clears = sum(result["clears"] for result in argmax.values())
    starts = sum(result["episodes"] for result in argmax.values())
    first = sum(0 in result["cleared_starts"] for result in argmax.values())
    yield (
        "all",
        show_rate(sum(rates) / len(levels)),
        f"{sum(rate >= 0.9 for rate in rates)} at 90 or more",
        f"{clears}/{starts}",
        f"{first} of {len(levels)}",
    )


def campaign_table(
    title: str, results: Sequence[Mapping[str, Any]], levels: Sequence[str]
) -> Table:
    """A row per level, and a row for all levels; at most 80 columns wide."""
    heads, *rows, total = campaign_rows(results, levels, _rate)
    table = _table(*heads, title=title, title_justify="left", padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*total)
    return table


def show_replayed(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the results of a release on this machine beside those of its card.

    The table is at most 80 columns wide.
    """
    console = Console(highlight=False)
    table = _table(
        "policy", "level", "cleared", "card", "95 % range", "greedy", "card", ""
    )
    pairs: dict[tuple[str, str], dict[bool, Mapping[str, Any]]] = {}
    for row in rows:
        pair = pairs.setdefault((row["policy"], row["card"]["level"]), {})
        pair[row["card"]["argmax"]] = row
    two = False
    for (policy, level), pair in pairs.items():
        verdicts = dict.fromkeys(row["verdict"] for row in pair.values())
        two |= len(verdicts) > 1
        sampled, argmax = pair[False], pair.get(True)
        low, high = sampled["card"]["interval"]
        greedy = (
            [f"{argmax[who]['clears']}/{argmax[who]['episodes']}" for who in _SIDES]
            if argmax
            else ["-", "-"]
        )
        table.add_row(
            policy,
            level,
            _rate(sampled["here"]["clear_rate"]),
            f"{100 * sampled['card']['clear_rate']:.1f} %",
            f"{100 * low:.0f}-{100 * high:.0f}",
            *greedy,
            " ".join(verdicts),
        )
    console.print(table)
    if two:
        text = "two verdicts: first sampled actions, then greedy actions"
        console.print(text, style="dim")
    count = Counter(row["verdict"] for row in rows)
    console.print(
        f"{len(rows)} results: {count['equal']} equal to the card's, "
        f"{count['within']} within its 95 % ranges, {count['outside']} outside"
    )


def policies_table(results: Mapping[str, Sequence[LevelResult]]) -> Table:
    """A row per policy, over all levels; at most 80 columns wide."""
    many = len(next(iter(results.values()))) > 1
    columns = ["cleared", "95 % interval", "best x", "return", "steps to clear"]
    table = _table("policy", *columns, *["levels"] * many, padding=(0, 1))
    table.columns[0].justify = "left"
    for name, rows in results.items():
        clears, episodes = sum(r.clears for r in rows), sum(r.episodes for r in rows)
        low, high = wilson(clears, episodes)
        cells = [
            f"{100 * clears / episodes:.1f} %",
            f"{100 * low:.1f}-{100 * high:.1f} %",
            f"{_mean(rows, lambda r: r.best_x_median):.0f}",
            f"{_mean(rows, lambda r: r.return_mean):.2f}",
            f"{_mean(rows, lambda r: r.steps_to_clear_median):.0f}" if clears else "-",
        ]
        if many:
            cells.append(f"{sum(r.clears > 0 for r in rows)}/{len(rows)}")
        table.add_row(name, *cells)
    return table


def _table(*columns: str, padding: Any = 0, **more: Any) -> Table:
    """An empty table; its cells stand on the right."""
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=padding, **more
    )
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _mean(
    rows: Sequence[LevelResult], number: Callable[[LevelResult], float | None]
) -> float:
    """Mean over the levels that have the number."""
    numbers = [value for value in map(number, rows) if value is not None]
    return sum(numbers) / len(numbers)


def as_text(table: Table) -> str:
    """A table as lines of plain text."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _cells(
    name: str, sampled: Sequence[LevelResult], argmax: Sequence[LevelResult]
) -> Iterator[str]:
    """The row of a level, or of several: means and sums."""
    one = sampled[0] if name == sampled[0].level else None
    low, high = one.interval if one else (0, 0)
    yield name
    yield _rate(sum(r.clear_rate for r in sampled) / len(sampled))
    yield f"{100 * low:.1f}-{100 * high:.1f}" if one else ""
    yield (
        f"{sum(r.clears for r in argmax)}/{sum(r.episodes for r in argmax)}"
        if argmax
        else "-"
    )
    yield f"{sum(r.return_mean for r in sampled) / len(sampled):.2f}"
    yield f"{one.best_x_median:.0f}" if one else ""
    yield _number(one.steps_to_clear_median) if one else ""
    yield str(sum(len(r.deaths) for r in sampled))
    yield str(sum(r.stalled for r in sampled))
    yield str(sum(r.timed_out for r in sampled))
    yield _deadliest(one.deaths) if one else ""


def _rate(rate: float) -> str:
    """A percentage in green, yellow or red."""
    colour = "green" if rate >= 0.9 else "yellow" if rate >= 0.5 else "red"
    return f"[{colour}]{100 * rate:.1f} %[/]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _deadliest(deaths: Sequence[Place]) -> str:
    """The place where most episodes died, and their number."""
    if not deaths:
        return "-"
    spots = Counter((place.area, place.x // _PLACE_WIDTH) for place in deaths)
    (_, column), count = spots.most_common(1)[0]
    return f"{column * _PLACE_WIDTH + _PLACE_WIDTH // 2}: {count}"


def _task_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per way to play a task without levels."""
    cells = [_cells_of_task(row) for row in rows]
    table = _table(*cells[0])
    for row in cells:
        table.add_row(*row.values())
    return table


def _cells_of_task(row: dict[str, Any]) -> dict[str, str]:
    """A row of the table, by the names of its columns."""
    cells = {"actions": "greedy" if row["argmax"] else "sampled"}
    clears = row["clear_rate"] is not None
    if clears:
        low, high = row["clear_rate_95"]
        cells |= {
            "sticky": f"{row['repeat_action_probability']:g}",
            "cleared": _rate(row["clear_rate"]),
            "95 % interval": f"{100 * low:.1f}-{100 * high:.1f} %",
            "best x": f"{row['best_x_median']:.0f}",
        }
    cells["return"] = f"{row['return_mean']:.2f}"
    cells["steps"] = f"{row['episode_steps_mean']:.0f}"
    if clears:
        cells["steps to clear"] = _number(row["steps_to_clear_median"])
    if "levels_passed_mean" in row:
        cells["levels passed"] = f"{row['levels_passed_mean']:.1f}"
    return cells
