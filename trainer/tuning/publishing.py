"""A run's policy as a folder to publish: weights, config, card, table and a video."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import mario_envpool
from mario_envpool import rom
from trainer.config import shown
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import game_of, own_levels
from trainer.evaluation.play import first_seed
from trainer.evaluation.results import STALL_STEPS
from trainer.film.draw import Camera
from trainer.film.encode import VideoWriter
from trainer.film.filmed_env import (
    FilmedEnv,
    Player,
    film_episode,
    game_config,
    trained,
)
from trainer.machine.cpu import available_cores, cpu_name
from trainer.machine.files import write_json, write_text
from trainer.machine.imports import check_named
from trainer.models import checkpoint
from trainer.models.policy import load_policy, playing_device, run_folder, save_policy
from trainer.models.released import (
    CARD,
    SUFFIX,
    Card,
    PolicyFile,
    read_policy,
    sha256,
    write_card,
)
from trainer.tuning import releases, specialists
from trainer.tuning.campaign import ONE

_NEEDS = ("config", "model", "steps")
# Frames of the game per frame of the video.
_EVERY = 2


def make(
    source: Path, to: Path, *, episodes: int, seed: int, address: str, model: str = ""
) -> Card:
    """Writes the folder: policy, config.json, card.json, README.md and a video."""
    if (to / CARD).exists():
        raise FileExistsError(f"{to} holds a published policy; choose another folder")
    path = checkpoint.find(source, _NEEDS)
    state = checkpoint.load(path, torch.device("cpu"), needs=_NEEDS)
    config = from_dict(RunConfig, state["config"])
    check_named(path, {"model": config.model.name}, [model])
    levels = config.env.levels or own_levels(config.env.task)
    if not levels:
        raise ValueError(
            f"{source} plays {config.env.task}, which has no levels for the table of "
            "the card; publish a run with --levels"
        )
    to.mkdir(parents=True, exist_ok=True)
    name = levels[0] if len(levels) == 1 else ONE
    policy = to / f"{name}{SUFFIX}"
    save_policy(path, policy)
    found = read_policy(policy, torch.device("cpu"))
    names = ",".join(levels)
    played = specialists.evaluate(policy, names, episodes, seed, model)
    rows = [{key: row[key] for key in releases.RESULT} for row in played["results"]]
    card = Card(
        about=_about(found, config, levels) | {"made_by": _command(source)},
        protocol={
            "episodes": episodes,
            "noop_max": 30,
            "seed": seed,
            "processor": cpu_name(),
        },
        task=game_of(config.env.task),
        rom_sha1=found.rom_sha1,
        levels=list(levels),
        policies={
            name: {
                "file": policy.name,
                "sha256": sha256(policy),
                "steps": found.steps,
                "results": rows,
            }
        },
    )
    video = to / f"{name}.mp4"
    _film(policy, video, levels[0], seed, model)
    write_json(to / "config.json", shown.settings(to_dict(config)))
    text = _front_matter(card) + releases.readme(card, address or policy.name)
    text += f"\nAn episode: [{video.name}]({video.name})\n"
    write_text(to / releases.README, text)
    write_card(to, card)
    return card


def _about(
    policy: PolicyFile, config: RunConfig, levels: Sequence[str]
) -> dict[str, str]:
    """The texts of a card, without the command."""
    return {
        "title": f"A policy for {', '.join(levels)} of Super Mario Bros., from "
        f"{policy.steps:,} steps of training",
        "machine": f"{available_cores()} cores of {cpu_name()}",
        "version": mario_envpool.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": releases.environment_of({"": from_dict(EnvConfig, policy.env)}),
        "rom": rom.describe(policy.rom_sha1),
        "data": _data(config),
        "licence": releases.LICENCE,
    }


def _film(policy: Path, video: Path, level: str, seed: int, model: str) -> None:
    """Films an episode of a level."""
    loaded = load_policy(policy, playing_device("cpu"), model=model)
    options = game_config(
        loaded.env, level=level, repeat_action_probability=0.0, stall_steps=STALL_STEPS
    )
    first = first_seed(seed)
    game, camera = FilmedEnv(options, seed=first), Camera(scale=2, every=_EVERY)
    player = Player(loaded, 1, seed=first, argmax=False)
    width, height = camera.size
    with VideoWriter(video, width=width, height=height, fps=camera.fps) as writer:
        caption = trained(loaded.steps)
        for shot in film_episode(game, game.reset(), player.alone, caption):
            for picture in camera.develop(shot):
                writer.write(picture)


def _command(source: Path) -> str:
    """The command that started a run, as others may see it."""
    folder = run_folder(source)
    words = ["-m", "trainer.run"]
    if folder is not None:
        known = json.loads((folder / "config.json").read_bytes())
        given = shown.command_text(str(known.get("command") or ""))
        words = shlex.split(given) or words
    begin = words.index("-m") if "-m" in words else 0
    return shlex.join(["python", *words[begin:]])


def _data(config: RunConfig) -> str:
    """What a policy has learned from, as text."""
    files = len(config.explore.demos)
    if files:
        learned = (
            f"The game itself, and {files} demonstrations, which are not published"
        )
    elif config.learns_from_demonstrations:
        learned = (
            "Nothing but the game itself, played by the trainer: a search found the "
            "demonstrations"
        )
    else:
        learned = "Nothing but the game itself, played by the trainer"
    return f"{learned}. No RAM, no demonstrations and no ROM are in the files."


def _front_matter(card: Card) -> str:
    """The YAML header of a README for the Hub, in JSON, which is valid YAML."""
    sampled = [
        row
        for about in card.policies.values()
        for row in about["results"]
        if not row["argmax"]
    ]
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
        for row in sampled
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
