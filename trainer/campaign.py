"""Trains all levels in a given time: `python -m trainer.campaign`.

Most of the time goes to a policy for each level: one run per core at a time, in slices,
until the level is solved. The time that a solved level leaves goes to the other levels.
A search then corrects the policies where they die (tuning/corrections.py).
Then one network for all levels learns from these policies, and is corrected likewise
(tuning/one_network.py). At the end all policies are played, and two tables show the
clear rate of each level.

    python -m trainer.campaign --levels all --max-seconds 3600
    python -m trainer.campaign --levels 1-1,1-2,1-3,1-4 --max-seconds 600
    python -m trainer.campaign --resume runs/campaign-TIME
    python -m trainer.campaign --resume runs/campaign-TIME --more-seconds 3600

Flags after `--` are flags of `python -m trainer.run` and apply to the runs of the
levels.

The folder of a campaign has a run for each level (levels/1-1), the run of the network
for all levels (merged, and corrected/run for its corrections), all policies
(policies/1-1.safetensors and so on, and policies/one.safetensors; trainer.evaluate,
watch and video take them as `--checkpoint`), and report.html. Ctrl-C, kill -9 and a
full disk lose at most one slice of a minute; `--resume` continues.

Exit status: 0, 128 plus the number of a signal that ended it (130 after Ctrl-C), or 2
with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.cli import code_in, main_of_runs, parse, parse_each
from trainer.config.flags import code_of
from trainer.config.options import flag_of
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import parse_levels
from trainer.evaluation.tables import campaign_table
from trainer.learn.distil import check_fits
from trainer.machine.files import write_json
from trainer.machine.imports import check_named
from trainer.machine.process import complain
from trainer.session.files import alone, new_run_dir
from trainer.show.campaign import CORRECTED, OPTIONS, Board, write
from trainer.tuning import game_starts
from trainer.tuning.campaign import Campaign
from trainer.tuning.campaign_config import CampaignConfig, command_of
from trainer.tuning.one_network import Merged
from trainer.tuning.options import check_base
from trainer.tuning.progress import ERRORS, POLICIES, STARTS

# Flags of the run of every level, and of the run of the network for all levels.
_SINGLE = (
    "--obs", "tiles", "--guide", "0.15", "--imitation", "0.1", "--device", "cpu",
)  # fmt: skip
_MERGED = (
    "--obs", "tiles+world", "--loss", "distillation", "--teacher-temperature", "0.4",
    "--action-set", "complex", "--widths", "32", "64", "--features", "256",
    "--num-envs", "256", "--epochs", "2", "--minibatch-size", "1024",
)  # fmt: skip
# Its share of episodes from where the levels begin in the whole game.
_IN_GAME = "0.5"

# Flags that the campaign sets for every slice of a level's run.
_OWN = tuple(
    f"--{name}"
    for name in "checkpoint-seconds dashboard end-episodes log-seconds videos".split()
)

# Flags that it sets for the run of the network for all levels.
_OWN_MERGED = {"--levels", "--run-dir", "--teachers", "--teacher-model"}

_TITLES = {"a policy for each level": "single", "one network for all levels": "one"}
_LEGEND = (
    "cleared: of {} episodes with sampled actions, after 0 to 30 idle frames\n"
    "greedy: cleared starts, one per number of idle frames, with greedy actions\n"
    "no idle frames: the one start that most publications report"
)


def _main(config: CampaignConfig, flags: Sequence[str]) -> None:
    # With --resume the options are those of a file.
    named = set(code_in([*flags, *shlex.split(config.merge_flags)]).values())
    config.validate()
    config, flags, folder = _open(config, flags)
    config.validate()  # a resumed campaign has options of its own
    for word in shlex.split(config.merge_flags):
        if (flag := word.partition("=")[0]) in _OWN_MERGED:
            raise ValueError(
                f"{flag} in --merge-flags has no effect, because a campaign sets it: "
                "leave it out"
            )
    levels = parse_levels(config.levels, config.task)
    common = ["--seed", str(config.seed)]
    if config.task != EnvConfig.task:
        common += ["--task", config.task]
    runs = parse_each([*_SINGLE, *common, *flags], levels)

    def check(run: RunConfig) -> RunConfig:
        check_named(folder / OPTIONS, code_of(run), named)
        run.validate()
        return run

    def merged(teachers: Sequence[str], *, corrected: bool = False) -> RunConfig:
        """The run of the network for the levels that have a policy.

        With `corrected` its teachers are itself, with the corrections of a level.
        """
        own = shlex.split(config.merge_flags)
        words = [*_MERGED, *common]
        saves = game_starts.files(folder / STARTS, teachers)
        if corrected:
            saves += game_starts.files(folder / CORRECTED / STARTS, teachers)
        if saves and not any(word.startswith("--starts") for word in own):
            words += ["--starts", ",".join(map(str, saves))]
            words += ["--snapshot-share", _IN_GAME]
        words += own
        by = folder / (CORRECTED if corrected else POLICIES)
        words += ["--levels", ",".join(teachers), "--teachers", str(by)]
        if corrected:
            words += ["--teacher-temperature", "1"]
        teacher = parse(words) if corrected else runs[levels[0]]
        if model := code_of(teacher).get("model"):
            words += ["--teacher-model", model]
        return check(parse(words))

    for run in runs.values():
        check_base(run)
        check(run)
    if config.merge_share and len(levels) > 1:
        _check_merge(runs, merged(levels))
    with alone(folder):
        options = {
            "command": command_of(config, flags),
            "options": to_dict(config),
            "flags": list(flags),
        }
        write_json(folder / OPTIONS, options, private=True)
        try:
            _run(config, folder, runs, merged)
        except KeyboardInterrupt:
            complain(f"interrupted; continue with --resume {folder}")
            raise


def _check_merge(runs: Mapping[str, RunConfig], one: RunConfig) -> None:
    """Raises ValueError, before any training, if the policies cannot be merged."""
    for level, run in runs.items():
        if run.model.memory is not None:
            raise ValueError(
                "policies with --memory cannot be merged: leave out --memory, or give "
                "--merge-share 0"
            )
        teacher, env = run.resolved().env, one.resolved().env
        check_fits(teacher, env, f"the policy of {level}")


def _run(
    config: CampaignConfig,
    folder: Path,
    runs: Mapping[str, RunConfig],
    merged: Merged,
) -> None:
    """Trains, evaluates and prints the tables."""
    console = Console(highlight=False)
    board = Board(live=config.dashboard and console.is_terminal)
    try:
        campaign = Campaign(config, folder, runs, merged, board)
        board.log(f"{len(runs)} levels, writing to {folder}/")
        campaign.run()
        table = campaign.evaluate() if config.episodes else None
    finally:
        board.close()
    if table is not None:
        for title, name in _TITLES.items():
            if table[name]:
                console.print(campaign_table(title, table[name], table["levels"]))
        console.print(_LEGEND.format(config.episodes), style="dim")
        if text := _missing(table, folder):
            console.print(text)
    print(f"wrote {folder}/policies/, {write(folder)}")


def _missing(table: Mapping[str, Any], folder: Path) -> str:
    """A line about levels without a policy; "" if all have one."""
    levels = table["levels"]
    count = len(levels) - len({result["level"] for result in table["single"]})
    if not count:
        return ""
    why = "the time was too short: raise --max-seconds"
    if (folder / ERRORS).exists():
        why = f"their runs failed, see {folder / ERRORS}, or had no time"
    return f"{count} of {len(levels)} levels have no policy: {why}"


def _open(
    config: CampaignConfig, flags: Sequence[str]
) -> tuple[CampaignConfig, Sequence[str], Path]:
    """The options and folder of a campaign, new or resumed."""
    if config.resume is None:
        folder = config.run_dir or new_run_dir("campaign")
        if (folder / OPTIONS).exists():
            raise ValueError(
                f"{folder} holds a campaign: resume it (--resume {folder}), or choose "
                "another --run-dir"
            )
        return config, flags, folder
    code = code_in(flags)
    words = {*(flag_of(name) for name in code), *code.values()}
    others = [word for word in flags if not {word, word.partition("=")[0]} & words]
    own = CampaignConfig(resume=config.resume, more_seconds=config.more_seconds)
    if others or config != own:
        raise ValueError(
            "--resume continues with the options of its campaign: leave out all other "
            "options, except --more-seconds and the code that it names, such as -- "
            "--model module:Class"
        )
    folder = config.resume
    path = folder / OPTIONS
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        begun = from_dict(CampaignConfig, content["options"])
        more = config.more_seconds
        seconds = begun.max_seconds + more
        begun = replace(begun, max_seconds=seconds, more_seconds=more, resume=folder)
        return begun, content["flags"], folder
    except FileNotFoundError:
        raise ValueError(
            f"--resume {folder} is not the folder of a campaign: it has no {OPTIONS}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    instead = {f"--{name}": "it" for name in ("levels", "task", "seed", "max-seconds")}
    return main_of_runs(
        CampaignConfig,
        _main,
        "campaign",
        __doc__,
        argv,
        instead=instead | {"--max-steps": "--max-seconds"},
        own=_OWN,
    )


if __name__ == "__main__":
    sys.exit(main())
