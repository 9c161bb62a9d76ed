"""Releases: the card of policies and its text, and playing them again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import mario_envpool
from mario_envpool import rom
from trainer.config.plain import from_dict
from trainer.config.schema import EnvConfig
from trainer.evaluation.tables import campaign_rows
from trainer.machine.cpu import available_cores, cpu_name
from trainer.models.policy import load_policy
from trainer.models.released import (
    CARD,
    SUFFIX,
    Card,
    policy_of,
    read_card,
    read_policy,
    sha256,
)
from trainer.tuning import specialists
from trainer.tuning.one_network import ONE
from trainer.tuning.workers import Failed, Workers

README = "README.md"
# The fields of `LevelResult.to_dict` that a card has.
_RESULT = "level argmax episodes clears clear_rate interval cleared_starts".split()


def make_card(
    folder: Path,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    about: Mapping[str, str],
    protocol: Mapping[str, int],
    task: str,
    levels: Sequence[str],
) -> Card:
    """The card of the policies in a folder, from the results of each by its name.

    `about` has title, made_by and data, and `protocol` episodes and seed.
    """
    policies: dict[str, dict[str, Any]] = {}
    sha1, envs = "", dict[str, EnvConfig]()
    for name, rows in results.items():
        path = folder / f"{name}{SUFFIX}"
        content = read_policy(path, torch.device("cpu"))
        sha1 = content.rom_sha1
        envs[name] = from_dict(EnvConfig, content.env)
        policies[name] = {
            "file": path.name,
            "sha256": sha256(path),
            "steps": content.steps,
            "results": [{key: row[key] for key in _RESULT} for row in rows],
        }
    return Card(
        about={
            **about,
            "machine": f"{available_cores()} cores of {cpu_name()}",
            "version": mario_envpool.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "environment": _environments(envs),
            "rom": rom.describe(sha1),
            "licence": "MIT, as this package. The game's ROM is not part of it.",
        },
        protocol={**protocol, "noop_max": 30, "processor": cpu_name()},
        task=task,
        rom_sha1=sha1,
        levels=list(levels),
        policies=policies,
    )


def _environments(envs: Mapping[str, EnvConfig]) -> str:
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


def front_matter(card: Card) -> str:
    """The YAML header of a README for the Hub, in JSON, which is valid YAML."""
    results = [
        {
            "task": {"type": "reinforcement-learning"},
            "dataset": {"type": card.task, "name": f"{card.task} {row['level']}"},
            "metrics": [
                {
                    "type": "clear_rate",
                    "name": f"episodes cleared of {row['episodes']}",
                    "value": row["clear_rate"],
                }
            ],
        }
        for about in card.policies.values()
        for row in about["results"]
        if not row["argmax"]
    ]
    about = {
        "license": "mit",
        "library_name": "mario-envpool",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "super-mario-bros", "mario-envpool"],
        "model-index": [{"name": "mario-envpool", "results": results}],
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in about.items()]
    return "\n".join(["---", *lines, "---", "", ""])


def readme(card: Card, address: str = "") -> str:
    """The README of a card; `address` is that of a single policy."""
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
        f"- **Protocol**: {protocol['episodes']} episodes of each level with "
        f"sampled actions, after 0 to {protocol['noop_max']} idle frames (clear "
        "rate, 95 % range by Wilson); then once from each of these "
        f"{protocol['noop_max'] + 1} starts with greedy actions (*greedy*). "
        "*no idle frames* is the greedy episode from the start without idle frames, "
        "the protocol of other published results. "
        f"Seed {protocol['seed']}, played on {protocol['processor']}.",
        "",
        *again,
    ]
    single = [p["results"] for name, p in card.policies.items() if name != ONE]
    tables = {
        "A policy for each level": [row for rows in single for row in rows],
        "One network for all levels": card.policies.get(ONE, {}).get("results", []),
    }
    for title, results in tables.items():
        if results:
            heads, *rows = campaign_rows(results, card.levels)
            lines += ["", f"## {title}", ""]
            cells = [heads, ("---",) * len(heads), *rows]
            lines += [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(lines) + "\n"


def replay(
    folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
    model: str = "",
) -> list[dict[str, Any]]:
    """Plays all policies of a release as its card describes, on all cores.

    Returns for each result the `policy`, the results from the `card` and from `here`,
    and a `verdict`; see `compare`.
    """
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
    played: dict[tuple[str, str, bool], dict[str, Any]] = {}
    done = 0
    try:
        for name, result in workers.do(tasks):
            if isinstance(result, Failed):
                raise RuntimeError(f"{paths[name]}: {result.reason}")
            for row in result["results"]:
                played[name, row["level"], row["argmax"]] = row
            done += 1
            if on_progress is not None:
                on_progress(done, len(paths))
    finally:
        workers.close()
    return [
        compare(name, row, played[key])
        for name, about in card.policies.items()
        for row in about["results"]
        if (key := (name, row["level"], row["argmax"])) in played
    ]


def compare(policy: str, card: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """The result of a level in a card, the replay, and how they compare.

    The verdict is equal (all numbers are), within (the clear rate is within the
    interval of the card), or outside.
    """
    low, high = card["interval"]
    if all(card[key] == here[key] for key in ("episodes", "clears", "cleared_starts")):
        verdict = "equal"
    else:
        verdict = "within" if low <= here["clear_rate"] <= high else "outside"
    here = {key: here[key] for key in _RESULT}
    return {"policy": policy, "card": card, "here": here, "verdict": verdict}
