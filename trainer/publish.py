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

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from trainer.cli import main_of
from trainer.config.options import check_seed
from trainer.models import hub
from trainer.tuning import publishing


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

    episodes: int = 100
    """Sampled episodes per level, for the table of the card."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20000."""

    private: bool = False
    """Make a new repository private."""


def publish(config: PublishConfig) -> None:
    """Writes the files, and pushes them.

    Raises:
        FileNotFoundError, ValueError, OSError: as of `publishing.make`, or an option is
            out of range, or the Hub refuses the files.
        ImportError: huggingface_hub is not installed.
    """
    if config.episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {config.episodes}")
    check_seed(config.seed)
    if not hub.is_address(config.to):
        if config.private:
            raise ValueError(
                f"--private needs --to hf://user/name, got --to {config.to}; leave out "
                "--private"
            )
        _make(config, Path(config.to), "")
        return
    address = hub.parse(config.to)
    if address.policy:
        raise ValueError(f"--to must be hf://user/name or a folder, got {config.to}")
    # A missing library is reported before minutes of play.
    hub.library()
    with tempfile.TemporaryDirectory() as folder:
        _make(config, Path(folder), str(address))
        url = hub.push(Path(folder), address, private=config.private)
        print(f"pushed to {url}", flush=True)


def _make(config: PublishConfig, folder: Path, address: str) -> None:
    card = publishing.make(
        config.run,
        folder,
        episodes=config.episodes,
        seed=config.seed,
        address=address,
        model=config.model,
    )
    for about in card.policies.values():
        for row in about["results"]:
            kind = "greedy" if row["argmax"] else "sampled"
            print(f"{row['level']}: {row['clears']} of {row['episodes']} ({kind})")
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    print(f"wrote {len(list(folder.iterdir()))} files, {size:.1f} MiB", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(PublishConfig, publish, "publish", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
