"""Prints what an update and a recv launch and copy, on the label GPU.

PYTHONPATH=tests/support python -m label_gpu.table            # the table
PYTHONPATH=tests/support python -m label_gpu.table --details  # and which lines
"""

from __future__ import annotations

import sys
from contextlib import closing

from label_gpu.client import LabelGpu, Result

#: Settings by name: a preset, and what they change of it.
SETTINGS = {
    "gpu, async, lag 1": ("gpu", {"mode": "async", "lag": 1}),
    "gpu-impala, no replay": ("gpu-impala", {"replay_share": 0.0}),
    "gpu-impala": ("gpu-impala", {}),
}


def table(counts: dict[str, Result]) -> str:
    """The counts of some settings as a table of Markdown."""
    lines = [
        "| setting | copies per recv | launches per recv | copies per update "
        "| launches per update | waits per update |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in counts.items():
        recv, update = result.values["recv"], result.values["update"]
        cells = [name, *map(str, [*recv[:2], *update])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(details: bool) -> None:
    """Counts all settings."""
    with closing(LabelGpu()) as gpu:
        counts = {name: gpu.count(*of) for name, of in SETTINGS.items()}
    print(table(counts))
    for name, result in counts.items() if details else ():
        print(f"\n{name}, the last update:")
        for (thread, kind, *what), times in result.values["log"]:
            print(f"{times:5} {thread:10} {kind:9} {' '.join(what)}")


if __name__ == "__main__":
    main("--details" in sys.argv)
