"""Releases of a campaign's policies: how to make one, and how to replay it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mario_envpool
from mario_envpool import rom
from trainer.config import shown
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig
from trainer.evaluation.tables import pairs_of
from trainer.machine.cpu import available_cores, cpu_name
from trainer.machine.files import copy, write_text
from trainer.models.policy import load_policy
from trainer.models.released import (
    CARD,
    SUFFIX,
    Card,
    policy_of,
    read_card,
    read_policy,
    sha256,
    write_card,
)
from trainer.show.campaign_page import OPTIONS, TABLE
from trainer.tuning import specialists
from trainer.tuning.campaign import ONE, POLICIES
from trainer.tuning.campaign_config import CampaignConfig
from trainer.tuning.workers import Failed, Workers

README = "README.md"
# The fields of `LevelResult.to_dict` that a card has.
RESULT = "level argmax episodes clears clear_rate interval cleared_starts".split()
LICENCE = "MIT, as this package. The game's ROM is not part of it."
_DATA = (
    "Nothing but the game itself, played by the trainer: a search found the "
    "demonstrations. No person's play, no pictures, no RAM and no demonstrations "
    "are in the files."
)


# -- making ------------------------------------------------------------------


def make(campaign: Path, to: Path) -> Card:
    """Copies the policies of a campaign, and writes their card."""
    if (to / CARD).exists():
        raise FileExistsError(f"{to} holds a release; choose another folder")
    try:
        known = json.loads((campaign / OPTIONS).read_bytes())
        table = json.loads((campaign / TABLE).read_bytes())
        config = from_dict(CampaignConfig, known["options"])
        by_policy = _by_policy(table)
        episodes, seed = table["episodes"], table["seed"]
    except FileNotFoundError as error:
        begun = (campaign / OPTIONS).exists()
        more = f"; python -m trainer.campaign --resume {campaign} continues" * begun
        raise FileNotFoundError(
            f"{error.filename} is missing: a release needs a campaign with a finished "
            f"evaluation{more}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"a file of {campaign} is damaged: {error!r}") from error
    to.mkdir(parents=True, exist_ok=True)
    policies: dict[str, dict[str, Any]] = {}
    sha1, envs = "", dict[str, EnvConfig]()
    for name, results in by_policy.items():
        path = to / f"{name}{SUFFIX}"
        copy(campaign / POLICIES / path.name, path)
        found = read_policy(path, torch.device("cpu"))
        sha1 = found.rom_sha1
        envs[name] = from_dict(EnvConfig, found.env)
        policies[name] = {
            "file": path.name,
            "sha256": sha256(path),
            "steps": found.steps,
            "results": results,
        }
    card = Card(
        about={
            "title": f"Policies for {len(_levels(table))} levels, from "
            f"{table['seconds'] / 60:.0f} minutes of training",
            "made_by": command_of(config, known["flags"]),
            "machine": f"{available_cores()} cores of {cpu_name()}",
            "version": mario_envpool.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "environment": environment_of(envs),
            "rom": rom.describe(sha1),
            "data": _DATA,
            "licence": LICENCE,
        },
        protocol={
            "episodes": episodes,
            "noop_max": 30,
            "seed": seed,
            "processor": cpu_name(),
        },
        task=config.task,
        rom_sha1=sha1,
        levels=_levels(table),
        policies=policies,
    )
    write_text(to / README, readme(card))
    write_card(to, card)
    return card


def environment_of(envs: Mapping[str, EnvConfig]) -> str:
    """Observations and actions of policies, as text."""
    kinds: dict[str, list[str]] = {}
    for name, env in envs.items():
        what = (
            f"{env.obs} of {env.stack_num} frame{'s' * (env.stack_num > 1)}, an action "
            f"every {env.frame_skip} frames, {len(env.actions)} actions "
            f"({env.action_set})"
        )
        kinds.setdefault(what, []).append(name)
    # The most common environment has no names.
    most, *others = sorted(kinds, key=lambda what: -len(kinds[what]))
    parts = [f"{', '.join(kinds[what])}: {what}" for what in others]
    return "; ".join([most, *parts]) + "."


def _levels(table: Mapping[str, Any]) -> list[str]:
    """The levels of a campaign's table."""
    return [str(name) for name in table["levels"]]


def _by_policy(table: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The results of a campaign by policy, without those of single episodes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in table["single"]:
        kept = {key: result[key] for key in RESULT}
        found.setdefault(result["level"], []).append(kept)
    if table["one"]:
        found[ONE] = [{key: row[key] for key in RESULT} for row in table["one"]]
    return found


def command_of(config: CampaignConfig, flags: Sequence[str]) -> str:
    """The command that started a campaign, as others may see it."""
    words = ["python", "-m", "trainer.campaign"]
    usual = to_dict(CampaignConfig())
    always = {"levels", "max_seconds", "seed"}
    for name, value in to_dict(config).items():
        if name in ("run_dir", "resume", "dashboard"):
            continue
        if name in always or value != usual[name]:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"--{name.replace('_', '-')}={text}")
    return shlex.join(shown.command([*words, *(["--", *flags] if flags else [])]))


def readme(card: Card, address: str = "") -> str:
    """The README of a card."""
    about, protocol = card.about, card.protocol
    kinds = "One policy for each level, and `one`, a network for all of them."
    again = [
        "    python -m trainer.evaluate --policy FOLDER",
        "",
        "plays all of it again; for the release that comes with the package FOLDER is "
        "`released:all`. On the same kind of processor the numbers are equal.",
    ]
    if address:
        kinds = f"One policy, for {', '.join(card.levels)}."
        again = [
            f"    python -m trainer.evaluate --policy {address} --episodes "
            f"{protocol['episodes']} --seed {protocol['seed']}",
            f"    python -m trainer.watch --policy {address}",
            "",
            "The first plays all of it again; on the same kind of processor the "
            "numbers are equal.",
        ]
    lines = [
        f"# {about['title']}",
        "",
        f"Made on {about['date']} by mario-envpool {about['version']}, on "
        f"{about['machine']}, with",
        "",
        f"    {about['made_by']}",
        "",
        kinds,
        "",
        f"- **Sees and does**: {about['environment']}",
        f"- **ROM**: {about['rom']}. Its SHA-1 is `{card.rom_sha1}`; another one is "
        "refused.",
        f"- **Data**: {about['data']}",
        f"- **Licence**: {about['licence']}",
        "- **Files**: safetensors, weights in half precision, large matrices of a "
        "level's policy in 8 bits; `card.json` has the SHA-256 of each, and all of "
        "this.",
        f"- **Protocol**: {card.protocol['episodes']} episodes of each level with "
        f"sampled actions, after 0 to {card.protocol['noop_max']} idle frames (clear "
        "rate, 95 % range by Wilson); then once from each of these "
        f"{card.protocol['noop_max'] + 1} starts with greedy actions (*greedy*). "
        "*no idle frames* is the greedy episode from the start without idle frames, "
        "the protocol of other published results. "
        f"Seed {card.protocol['seed']}, played on {card.protocol['processor']}.",
        "",
        *again,
    ]
    single = {n: p["results"] for n, p in card.policies.items() if n != ONE}
    tables = {
        "A policy for each level": [row for rows in single.values() for row in rows],
        "One network for all levels": card.policies.get(ONE, {}).get("results", []),
    }
    for title, rows in tables.items():
        if rows:
            lines += ["", f"## {title}", "", *_table(rows, card.levels)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]], levels: Sequence[str]) -> Iterator[str]:
    """A table of results in Markdown, with a row per level and a row for all."""
    pairs = pairs_of(rows)
    yield "| level | cleared | 95 % range | greedy | no idle frames |"
    yield "|---|---|---|---|---|"
    for level in levels:
        if level not in pairs:
            yield f"| {level} | no policy | | | |"
            continue
        sampled, argmax = pairs[level]
        low, high = sampled["interval"]
        yield (
            f"| {level} | {100 * sampled['clear_rate']:.0f} % | "
            f"{100 * low:.0f}-{100 * high:.0f} | "
            f"{argmax['clears']}/{argmax['episodes']} | "
            f"{'cleared' if 0 in argmax['cleared_starts'] else ''} |"
        )
    rates = [sampled["clear_rate"] for sampled, _ in pairs.values()]
    greedy = [argmax for _, argmax in pairs.values()]
    yield (
        f"| all | {100 * sum(rates) / len(levels):.1f} % | "
        f"{sum(rate >= 0.9 for rate in rates)} at 90 or more | "
        f"{sum(row['clears'] for row in greedy)}/"
        f"{sum(row['episodes'] for row in greedy)} | "
        f"{sum(0 in row['cleared_starts'] for row in greedy)} "
        f"of {len(levels)} |"
    )


# -- playing again -----------------------------------------------------------


class Replayed(NamedTuple):
    """The result of a policy in a level, from the card and from a replay.

    Attributes:
        policy: name of the policy.
        card, here: results in the format of a card.
        verdict: equal (all numbers are), within (the clear rate is within the interval
            of the card), or outside.
    """

    policy: str
    card: dict[str, Any]
    here: dict[str, Any]
    verdict: str


def replay(
    folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
    model: str = "",
) -> list[Replayed]:
    """Plays all policies of a release as its card describes, on all cores."""
    card = read_card(folder)
    paths = {name: policy_of(folder, name) for name in card.policies}
    for path in paths.values():
        load_policy(path, torch.device("cpu"), model=model)
        sha1 = read_policy(path, torch.device("cpu")).rom_sha1
        if sha1 != card.rom_sha1:
            raise ValueError(
                f"{path} is for the ROM with SHA-1 {sha1}, and {folder / CARD} says "
                f"{card.rom_sha1}"
            )
    workers = Workers(min(available_cores(), len(paths)))
    # The policy with the most work first.
    names = sorted(paths, key=lambda name: -len(card.policies[name]["results"]))
    tasks = [
        (name, specialists.evaluate, paths[name],
         ",".join(dict.fromkeys(r["level"] for r in card.policies[name]["results"])),
         card.protocol["episodes"], card.protocol["seed"], model)
        for name in names
    ]  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        for name, result in workers.do(tasks):
            if isinstance(result, Failed):
                raise RuntimeError(f"{paths[name]}: {result.reason}")
            found[name] = result["results"]
            if on_progress is not None:
                on_progress(len(found), len(paths))
    finally:
        workers.close()
    return [
        _replayed(name, row, here)
        for name, about in card.policies.items()
        for row in about["results"]
        for here in found[name]
        if (here["level"], here["argmax"]) == (row["level"], row["argmax"])
    ]


def _replayed(name: str, row: dict[str, Any], here: dict[str, Any]) -> Replayed:
    """Compares the result of a level in a card with the replay."""
    here = {key: here[key] for key in RESULT}
    low, high = row["interval"]
    if all(row[key] == here[key] for key in ("episodes", "clears", "cleared_starts")):
        verdict = "equal"
    else:
        verdict = "within" if low <= here["clear_rate"] <= high else "outside"
    return Replayed(name, row, here, verdict)
