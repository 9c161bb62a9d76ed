"""What pyproject.toml promises: commands, extras, a version; scripts for packages."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())[
    "project"
]
COMMANDS: dict[str, str] = PROJECT["scripts"]


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {"mario-train", "mario-watch", "mario-evaluate"}
    page = (ROOT / "docs/installing.md").read_text()
    assert all(f"`{command}`" in page for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_a_function_that_returns_its_exit_status(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module, _, function = COMMANDS[command].partition(":")
    main = getattr(importlib.import_module(module), function)
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    assert "--" in capsys.readouterr().out


def test_every_extra_that_an_error_names_exists() -> None:
    """Errors and pages say: pip install 'mario-envpool[EXTRA]'."""
    named = set()
    for folder in ("trainer", "mario_envpool", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md"):
                found = re.findall(
                    r"(?:mario-envpool|'\.)\[([\w,]+)\]", path.read_text()
                )
                named |= {name for names in found for name in names.split(",")}
    assert {"human", "notify", "search"} <= named
    assert named - set(PROJECT["optional-dependencies"]) <= {"NAME"}


def test_the_version_is_the_changelogs() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d[\w.]*)\] - (\d{4}-\d\d-\d\d)$", text, re.M)
    assert released[0][0] == PROJECT["version"]


@pytest.mark.skipif(not shutil.which("bash"), reason="the script is for bash")
@pytest.mark.parametrize("words", [[], ["60"], ["0", "to"], ["an hour", "to"]])
def test_the_script_of_a_release_checks_its_words(words: list[str]) -> None:
    """Before it trains an hour."""
    script = ROOT / "packaging" / "release.sh"
    done = subprocess.run(
        ["bash", str(script), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    first = f"release.sh: give MINUTES (1 or more) and TO, got '{' '.join(words)}'"
    assert done.stderr.splitlines()[0] == first


@pytest.mark.skipif(not shutil.which("bash"), reason="the script is for bash")
def test_the_script_of_a_release_trains_compares_and_publishes(tmp_path: Path) -> None:
    """With a `python` that writes down its command."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$*" >> commands\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"

    def run(*words: str) -> list[str]:
        (tmp_path / "commands").unlink(missing_ok=True)
        script = ROOT / "packaging" / "release.sh"
        environment = {**os.environ, "PATH": path}
        command = ["bash", str(script), *words]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        return (tmp_path / "commands").read_text().splitlines()

    first = "-m trainer.campaign --run-dir runs/release --max-seconds 3600"
    last = "-m trainer.release runs/release --to hf://me/all"
    assert run("60", "hf://me/all") == [first, f"{last} --last released:all"]
    assert run("60", "hf://me/all", "", "--seed", "2") == [f"{first} --seed 2", last]
    (tmp_path / "runs" / "release").mkdir(parents=True)
    again = "-m trainer.campaign --resume runs/release"
    assert run("60", "hf://me/all", "mine") == [again, f"{last} --last mine"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("wheels.sh --suite sid", "--suite sid: known are bookworm .* and trixie"),
        ("wheels.sh --steps few", "--steps few is not a whole number from 1 to"),
        ("wheels.sh --steps", "--steps wants a value"),
        ("wheels.sh --out wheels.sh", "--out .*/wheels.sh is not a folder"),
        ("wheels.sh --arch arm64", "unknown option --arch; known: --suite, --out"),
        (
            "bare_machine.sh --wheel no.whl",
            "--wheel .*/no.whl is not a file .*wheels.sh",
        ),
        ("bare_machine.sh --wheel wheels.sh", "is not a file that ends in .whl"),
    ],
)
def test_the_scripts_refuse_wrong_options_in_one_line(command: str, words: str) -> None:
    done = subprocess.run(
        ["bash", *command.split()],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(words, done.stderr)
    assert done.stderr.count("\n") == 1
