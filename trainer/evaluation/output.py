"""Files of an evaluation: table.json and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.evaluation.results import Evaluation
from trainer.machine.files import write_json
from trainer.models.policy import run_folder


def make_folder(checkpoint: Path, out: Path | None) -> Path | None:
    """Makes the folder for the files of an evaluation, before the evaluation plays."""
    if out is None:
        run_dir = run_folder(checkpoint)
        if run_dir is None:
            return None
        out = run_dir / "evaluation"
    with _writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    return out


def write(evaluation: Evaluation, folder: Path, *, pictures: bool) -> str:
    """Writes table.json and the pictures of levels."""
    count = 0
    with _writing_to(folder):
        write_json(folder / "table.json", evaluation.to_dict())
        if pictures and evaluation.levels:
            # Imported here, so that Matplotlib loads only for pictures.
            from trainer.evaluation.plots import draw

            count = len(list(draw(evaluation.about, evaluation.levels, folder)))
    more = f" and {count} picture{'s' * (count > 1)}" if count else ""
    return f"wrote table.json{more} to {folder}"


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Adds the folder and advice to an OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write to the folder {folder} ({error.strerror or error}); choose "
            "another folder with --out"
        ) from error
