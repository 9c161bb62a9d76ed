"""Publishes a run's policy: `python -m trainer.publish RUN --to hf://user/name`.

The command writes these files and pushes them to the Hugging Face Hub (pip install
'mario-envpool[hub]', and `hf auth login` once):

- the policy: safetensors, weights only
- the config of the run
- a card: results, how the policy was trained and played, and the hash of the ROM that
  it needs (card.json, and README.md for people)
- the video of an episode, the only file with content of the game

    python -m trainer.publish runs/TASK-TIME --to hf://user/mario-1-1
    python -m trainer.publish runs/TASK-TIME --to a-folder
    python -m trainer.evaluate --policy hf://user/mario-1-1

Every command that takes a policy file also takes `hf://user/name`. It checks such a
policy before it loads it: sizes, the hash of the file, the ROM, and that the file is
not a pickle.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from trainer.cli import main_of
from trainer.config import shown
from trainer.config.options import MAX_SEED, check_ranges, option
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import game_of, own_levels
from trainer.evaluation.play import first_seed
from trainer.evaluation.results import STALL_STEPS
from trainer.film.draw import Camera, VideoWriter
from trainer.film.filmed_env import (
    FilmedEnv,
    Player,
    film_episode,
    game_config,
    trained,
)
from trainer.machine.files import write_json, write_text
from trainer.machine.imports import check_named
from trainer.models import checkpoint, hub
from trainer.models.policy import load_policy, playing_device, run_folder, save_policy
from trainer.models.released import CARD, SUFFIX, write_card
from trainer.tuning import releases, specialists
from trainer.tuning.one_network import ONE

_NEEDS = ("config", "model", "steps")
# Frames of the game per frame of the video.
_EVERY = 2


@dataclass(frozen=True)
class PublishConfig:
    """Publishes a run's policy."""

    run: tyro.conf.Positional[Path]
    """Run folder (its newest checkpoint), or a checkpoint."""

    to: str
    """hf://user/name, or a local folder to write to without a push."""

    model: str = ""
    """Network of your own, module:Class, if the policy has one: code that a file names
    is imported only if you name it here."""

    episodes: int = option(100, least=1)
    """Sampled episodes per level, for the table of the card."""

    seed: int = option(1, between=(0, MAX_SEED))
    """Seed of environments and actions, 0 to 20000."""

    private: bool = False
    """Make a new repository private."""


def publish(config: PublishConfig) -> None:
    """Writes the files, and pushes them.

    Raises:
        FileNotFoundError, ValueError, OSError: there is no such checkpoint, or an
            option is out of range, or the folder or the Hub refuses the files.
        ImportError: huggingface_hub is not installed.
    """
    check_ranges(config)
    if not hub.is_address(config.to):
        if config.private:
            raise ValueError(
                f"--private needs --to hf://user/name, got --to {config.to}; leave out "
                "--private"
            )
        make(config, Path(config.to))
        return
    address = hub.parse(config.to)
    if address.policy:
        raise ValueError(f"--to must be hf://user/name or a folder, got {config.to}")
    # A missing library is reported before minutes of play.
    hub.library()
    with tempfile.TemporaryDirectory() as folder:
        make(config, Path(folder), str(address))
        url = hub.push(Path(folder), address, private=config.private)
        print(f"pushed to {url}", flush=True)


def make(config: PublishConfig, to: Path, address: str = "") -> None:
    """Writes the folder: policy, config.json, card.json, README.md and a video."""
    if (to / CARD).exists():
        raise FileExistsError(f"{to} holds a published policy; choose another folder")
    path = checkpoint.find(config.run, _NEEDS)
    state = checkpoint.load(path, torch.device("cpu"), needs=_NEEDS)
    run = from_dict(RunConfig, state["config"])
    check_named(path, {"model": run.model.name}, [config.model])
    levels = run.env.levels or own_levels(run.env.task)
    if not levels:
        raise ValueError(
            f"{config.run} plays {run.env.task}, which has no levels for the table of "
            "the card; publish a run with --levels"
        )
    to.mkdir(parents=True, exist_ok=True)
    name = levels[0] if len(levels) == 1 else ONE
    policy, video = to / f"{name}{SUFFIX}", to / f"{name}.mp4"
    save_policy(path, policy)
    played = specialists.evaluate(
        policy, ",".join(levels), config.episodes, config.seed, config.model
    )["results"]
    about = {
        "title": f"A policy for {', '.join(levels)} of Super Mario Bros., from "
        f"{state['steps']:,} steps of training",
        "made_by": _command(config.run),
        "data": _data(run),
    }
    protocol = {"episodes": config.episodes, "seed": config.seed}
    task = game_of(run.env.task)
    card = releases.make_card(to, {name: played}, about, protocol, task, levels)
    _film(policy, video, levels[0], config)
    write_json(to / "config.json", shown.settings(to_dict(run)))
    text = releases.front_matter(card) + releases.readme(card, address or policy.name)
    text += f"\nAn episode: [{video.name}]({video.name})\n"
    write_text(to / releases.README, text)
    write_card(to, card)
    for row in played:
        kind = "greedy" if row["argmax"] else "sampled"
        print(f"{row['level']}: {row['clears']} of {row['episodes']} ({kind})")
    size = sum(path.stat().st_size for path in to.iterdir()) / 2**20
    print(f"wrote {len(list(to.iterdir()))} files, {size:.1f} MiB", flush=True)


def _film(policy: Path, video: Path, level: str, config: PublishConfig) -> None:
    """Films an episode of a level."""
    loaded = load_policy(policy, playing_device("cpu"), model=config.model)
    options = game_config(
        loaded.env,
        level=level,
        repeat_action_probability=0.0,
        rng_frames_max=0,
        stall_steps=STALL_STEPS,
    )
    first = first_seed(config.seed)
    game, camera = FilmedEnv(options, seed=first), Camera(scale=2, every=_EVERY)
    player = Player(loaded, seed=first, argmax=False)
    with VideoWriter(video, size=camera.size, fps=camera.fps) as writer:
        caption = trained(loaded.steps)
        for shot in film_episode(game, game.reset(), player, caption):
            for picture in camera.develop(shot):
                writer.write(picture)


def _command(source: Path) -> str:
    """The command that started a run, as others may see it."""
    folder, command = run_folder(source), ""
    if folder is not None:
        config = json.loads((folder / "config.json").read_bytes())
        command = shown.command_text(str(config.get("command") or ""))
    words = shlex.split(command) or ["-m", "trainer.run"]
    begin = words.index("-m") if "-m" in words else 0
    return shlex.join(["python", *words[begin:]])


def _data(config: RunConfig) -> str:
    """What a policy has learned from, as text."""
    learned = "Nothing but the game itself, played by the trainer"
    if files := len(config.explore.demos):
        learned = (
            f"The game itself, and {files} demonstrations, which are not published"
        )
    elif config.learns_from_demonstrations:
        learned += ": a search found the demonstrations"
    return f"{learned}. No RAM, no demonstrations and no ROM are in the files."


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(PublishConfig, publish, "publish", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
