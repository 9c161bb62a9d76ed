"""Reports versions, hardware and the ROMs that can be played.

With --options, prints every option of a task with its default. With starts, lists the
places where episodes can begin; starts "1-1/*" lists those that match a pattern.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys

from . import __version__, _core, rom, starts


def main() -> int:
    """Prints the report; returns 1 when no ROM is found."""
    parser = argparse.ArgumentParser(
        prog="python -m mario_envpool", description=__doc__
    )
    parser.add_argument(
        "--options", action="store_true", help="print every option with its default"
    )
    parser.add_argument(
        "command", nargs="?", choices=["starts"], help="list the catalogue of starts"
    )
    parser.add_argument(
        "pattern", nargs="?", default="*", help="names to list, such as '1-1/*'"
    )
    parser.add_argument(
        "--rom",
        default="vanilla",
        choices=rom.ROMS,
        help="ROM revision whose starts are listed (default: vanilla)",
    )
    known = parser.parse_intermixed_args()
    if known.options:
        print_options()
        return 0
    if known.command == "starts":
        return print_starts(known.pattern, known.rom)
    rom_lines, playable = describe_roms()
    lines = [
        ("mario-envpool", f"{__version__} ({os.path.dirname(__file__)})"),
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("EnvPool", describe_envpool()),
        ("Gymnasium", version_of("gymnasium")),
        (
            "CPU path",
            f"{_core.cpu_path()} (resizing), {_core.nes_cpu_path()} (drawing)",
        ),
        ("engine", describe_engine()),
        ("threads", f"{_core.usable_cpus()} of {os.cpu_count()} cores usable"),
        ("GPU", describe_gpu()),
        *(("ROM" if i == 0 else "", line) for i, line in enumerate(rom_lines)),
    ]
    for name, text in lines:
        print(f"{name:14} {text}")
    return 0 if playable else 1


def print_options() -> None:
    """Prints every option with its default and a line of help."""
    spec = _core._MarioEnvSpec
    for name, value in zip(spec._config_keys, spec._default_config_values, strict=True):
        print(f"{name} = {value!r}\n    {spec._config_help[name]}")


def print_starts(pattern: str, revision: str) -> int:
    """Prints the names that match; returns 1 if none matches or the ROM is missing."""
    try:
        for name in starts.names(pattern, revision):
            print(name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def describe_engine() -> str:
    """Returns the engine that runs the game, and why it is not the default."""
    try:
        engine, problem = _core.nes_engine()
    except ValueError as error:
        return f"none: {error}; change MARIO_ENGINE"
    if problem:
        return f"{engine} ({problem})"
    chosen = os.environ.get("MARIO_ENGINE", "")
    return f"{engine} (MARIO_ENGINE)" if chosen else engine


def describe_roms() -> tuple[list[str], bool]:
    """Returns lines on the ROM files found, and whether any revision can be played."""
    files = rom.find(os.environ.get("MARIO_ROM", ""))
    lines = [
        f"{file.name or 'unusable':22} {file.path}"
        + (f": {file.problem}" if file.problem else "")
        for file in files
    ]
    problem = ""
    playable = []
    for name in rom.ROMS:
        try:
            rom.load(name)
            playable.append(name)
        except rom.RomError as error:
            problem = problem or str(error)
    if playable:
        lines.append(f"playable: {', '.join(playable)}")
    else:
        lines.append(f"none: {problem}")
    return lines, bool(playable)


def version_of(package: str) -> str:
    """Returns the version of an installed package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def describe_envpool() -> str:
    """Returns EnvPool's version, and the error if its environments cannot be loaded.

    A separate process loads them, because this package does not need them.
    """
    done = _python("import mario_envpool\nimport envpool")
    version = version_of("envpool")
    if done.returncode == 0:
        return version
    return f"{version}; {done.stderr.strip().splitlines()[-1]}"


def _python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new process of this Python."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def describe_gpu() -> str:
    """Asks PyTorch in a separate process: this package does not import PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return "unknown: torch is not installed"
    done = _python(
        "import torch\n"
        "if torch.cuda.is_available():\n"
        "    names = [torch.cuda.get_device_name(i)\n"
        "             for i in range(torch.cuda.device_count())]\n"
        "    print(', '.join(names), '(torch', torch.__version__ + ')')\n"
        "else:\n"
        "    print('none usable by torch', torch.__version__)\n"
    )
    if done.returncode != 0:
        return f"unknown: torch fails ({done.stderr.strip().splitlines()[-1]})"
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        status = main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:  # a full disk, or a reader that has gone
        status = 2
        print(f"error: cannot write to stdout ({error.strerror})", file=sys.stderr)
        # Python's own attempt at its end would fail, too.
        sys.stdout = None
    raise SystemExit(status)
