"""Where the source tree and the verification material are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def verification_folder() -> Path:
    """The verification material: ``MARIO_VERIFICATION`` or beside the repository."""
    given = os.environ.get("MARIO_VERIFICATION", "")
    return Path(given) if given else ROOT.parent / "shared" / "verification"
