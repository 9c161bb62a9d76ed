"""examples/mario.ipynb runs from top to bottom as on a machine without a display."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "mario.ipynb"
BOOK = json.loads(NOTEBOOK.read_text())
CELLS = {cell["id"]: cell for cell in BOOK["cells"]}
# Executes a notebook in a kernel of this Python and writes it with its outputs.
EXECUTE = """
import sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
try:
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3").execute()
finally:
    nbformat.write(book, "executed.ipynb")
"""
NEEDED = ("anywidget", "ipykernel", "nbclient")
needs_a_kernel = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"pip install {' '.join(NEEDED)}",
)


def execute(
    folder: Path, values: dict[str, object], python: str = sys.executable, **more: str
) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Runs the notebook with other parameters; returns its outputs and the errors."""
    book = json.loads(NOTEBOOK.read_text())
    place = list(CELLS).index("parameters")
    for name, value in values.items():
        source, count = re.subn(
            rf"^{name} = .*",
            lambda _, line=f"{name} = {value!r}": line,
            "".join(book["cells"][place]["source"]),
            flags=re.MULTILINE,
        )
        assert count == 1, name
        book["cells"][place]["source"] = source
    (folder / "mario.ipynb").write_text(json.dumps(book))
    display = {"DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"}
    done = subprocess.run(
        [python, "-c", EXECUTE, "mario.ipynb"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k not in display} | more,
        capture_output=True,
        text=True,
    )
    executed = json.loads((folder / "executed.ipynb").read_text())
    cells = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    return {cell["id"]: cell["outputs"] for cell in cells}, done.stderr


def printed(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", "")) for output in outputs)


def check(outputs: dict[str, list[dict[str, Any]]]) -> None:
    """Every cell shows what the text above it says."""
    assert "(8, 4, 84, 84) uint8 positions: [" in printed(outputs["pool"])
    for name in ("pool", "plot"):
        assert outputs[name][-1]["data"]["image/png"], name
    assert "application/vnd.jupyter.widget-view+json" in outputs["play"][-1]["data"]
    for name in ("show", "watch"):
        page = "".join(outputs[name][-1]["data"]["text/html"])
        assert "<video controls" in page, name
        assert 'src="data:video/mp4;base64,' in page, name
    assert "wrote runs/notebook-" in printed(outputs["train"])
    streams = [o for found in outputs.values() for o in found if "name" in o]
    assert [o["text"] for o in streams if o["name"] == "stderr"] == []


@needs_a_kernel
@pytest.mark.slow
@pytest.mark.rom
def test_it_runs(tmp_path: Path) -> None:
    outputs, errors = execute(tmp_path, {"SECONDS": 5})
    assert outputs["plot"], errors
    assert outputs["install"] == []  # all is installed
    check(outputs)


@needs_a_kernel
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.rom
@pytest.mark.timeout(900)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a clone")
def test_it_installs(tmp_path: Path) -> None:
    """As in Colab: the kernel has torch, and the package comes from an address."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    # Its torch and other packages are ours; editable packages of ours it does not find.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "venv" / "lib" / version / "site-packages"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "ours.pth").write_text("\n".join(ours))
    values = {"SECONDS": 5, "REPOSITORY": f"git+{ROOT.as_uri()}"}
    outputs, errors = execute(tmp_path, values, str(python), PYTHONPATH="")
    assert outputs["plot"], errors
    assert list((packages / "mario_envpool").glob("_core.*"))
    check(outputs)


@needs_a_kernel
@pytest.mark.slow
def test_without_a_rom(tmp_path: Path) -> None:
    """The cell of the pool says what is missing, and no later cell runs."""
    rom = tmp_path / "missing.nes"
    outputs, errors = execute(tmp_path, {}, MARIO_ROM=str(rom))
    last = errors.strip().splitlines()[-1]
    assert f"{str(rom)!r} does not exist" in last, errors
    assert "run: pip install 'gym-super-mario-bros" in last, errors
    assert outputs["train"] == []


def test_the_file_has_no_results_and_names_no_machine() -> None:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python"}
    assert BOOK["metadata"] == {"kernelspec": kernel, "language_info": language}
    for name, cell in CELLS.items():
        text = "".join(cell["source"])
        assert not re.search(r"(^|[\s\"'(=])(/|~|[A-Z]:\\)\w", text), name
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), name
        metadata = {"tags": ["parameters"]} if name == "parameters" else {}
        assert cell["metadata"] == metadata, name
    assert len(CELLS) == len(BOOK["cells"])


def test_its_format_is_valid() -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient")
    nbformat.validate(nbformat.from_dict(BOOK))


def test_its_links_exist() -> None:
    text = "".join(line for cell in BOOK["cells"] for line in cell["source"])
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [n for n in links if not (NOTEBOOK.parent / n).exists()] == []
