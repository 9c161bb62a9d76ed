"""The run on Weights & Biases, for `--wandb`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from trainer.machine.files import write_text

PROJECT = "mario-envpool"
# File in the run folder with the W&B id of the run, which a resumed run keeps.
ID_FILE = "wandb-id.txt"


class WandbRun:
    """A run on Weights & Biases.

    Weights & Biases reads its own environment variables and settings files
    (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, WANDB_RUN_GROUP, WANDB_TAGS,
    WANDB_DIR, WANDB_RUN_ID, WANDB_RESUME, and so on). The defaults here apply only
    if these sources set no value.
    """

    def __init__(
        self, run_dir: Path, config: Mapping[str, Any], *, resumed: bool
    ) -> None:
        """Opens the run."""
        # Imported here: only a run with --wandb needs it.
        import wandb

        self._video = wandb.Video
        settings = wandb.setup().settings
        file = run_dir / ID_FILE
        known = ""
        if resumed and not settings.run_id and file.is_file():
            known = file.read_text("utf-8").strip()
        mode: Literal["offline"] | None = None
        if settings.mode == "online" and "WANDB_MODE" not in os.environ:
            # Without a key, `init` would ask for one and block the run.
            mode = None if wandb.login(prompt=False, verify=False) else "offline"
        # Printed lines name folders.
        console: dict[str, Any] = {}
        if "WANDB_CONSOLE" not in os.environ:
            console["console"] = "off"
        # Offline, `resume` has no effect and prints a warning.
        online = settings.mode == "online" and mode is None
        self._run: Any = wandb.init(
            project=None if settings.project else PROJECT,
            name=None if settings.run_name else run_dir.name,
            dir=None if "WANDB_DIR" in os.environ else str(run_dir),
            id=known or None,
            resume="allow" if known and online and not settings.resume else None,
            config=dict(config),
            allow_val_change=True,  # a resumed run may have other options
            mode=mode,
            # No command line, and no names of the host, the user and folders.
            settings=wandb.Settings(x_disable_meta=True, **console),
        )
        if not self._run.disabled:
            with suppress(OSError):  # a full disk; the run continues
                write_text(file, f"{self._run.id}\n")
        # W&B accepts only rising steps, and a killed run has logged steps after its
        # checkpoint.
        self._first_step = self._run.step if self._run.resumed else 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs one point of every curve, unless W&B already has this step."""
        if step >= self._first_step:
            self._run.log(dict(values), step=step)

    def write_video(self, name: str, path: Path) -> None:
        """Logs a video (MP4) with the latest point."""
        self._run.log({f"videos/{name}": self._video(str(path), format="mp4")})

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()
