"""Who may know whom: reads every #include and import; no arrow points upward."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder of csrc -> folders it may include ("preprocess/" style), or single headers.
CPP_MAY_INCLUDE = {
    "nes": {"nes/"},
    "preprocess": {"preprocess/", "nes/palette.h"},
    "mario": {"mario/", "preprocess/", "nes/", "pool/spec.h"},
    "pool": {"pool/"},
    "python": {"python/", "mario/", "pool/", "preprocess/", "nes/"},
}
# Package -> top-level modules it must not import, now or lazily.
PYTHON_MUST_NOT_IMPORT = {
    "mario_envpool": {"torch", "trainer", "bench", "gym_super_mario_bros", "nes_py"},
    "trainer": {"bench", "tests", "gym_super_mario_bros", "nes_py"},
}
# Leaves of the trainer: of ours they import the configuration and nothing else.
TRAINER_LEAVES = ("vtrace", "scan_triton", "replay", "model")
# A leaf may have a part in another file.
PARTS = {"vtrace": ("trainer.learn.scan_triton",)}


def cpp_files() -> list[Path]:
    return sorted(
        path
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in {".h", ".cc", ".inc"}
    )


def own_includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names of everything a file imports, at any depth."""
    package = path.relative_to(ROOT).parent.parts
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", cpp_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_point_downward(path: Path) -> None:
    layer = path.relative_to(ROOT / "csrc").parts[0]
    allowed = CPP_MAY_INCLUDE[layer]
    for include in own_includes(path):
        assert (ROOT / "csrc" / include).is_file(), (
            f'{path.name} includes "{include}": paths start at csrc/'
        )
        assert any(
            include.startswith(entry) if entry.endswith("/") else include == entry
            for entry in allowed
        ), f'{layer} may not include "{include}"; it may know {sorted(allowed)}'


def test_only_the_python_folder_knows_pybind11() -> None:
    for path in cpp_files():
        if path.relative_to(ROOT / "csrc").parts[0] != "python":
            assert "pybind11" not in path.read_text(), path


@pytest.mark.parametrize("package", PYTHON_MUST_NOT_IMPORT)
def test_imports_point_downward(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        top = {name.split(".")[0] for name in imported_modules(path)}
        assert not top & PYTHON_MUST_NOT_IMPORT[package], path


@pytest.mark.parametrize("leaf", TRAINER_LEAVES)
def test_leaves_of_the_trainer_know_only_the_configuration(leaf: str) -> None:
    folder = ROOT / "trainer"
    own = folder / leaf
    files = [own.with_suffix(".py")] if own.with_suffix(".py").is_file() else []
    files += sorted(own.rglob("*.py"))
    if not files:
        pytest.skip(f"trainer.{leaf} is not there")
    for path in files:
        ours = {
            name
            for name in imported_modules(path)
            if name.split(".")[0] in {"trainer", "mario_envpool"}
        }
        allowed = ("trainer.config.schema", f"trainer.{leaf}", *PARTS.get(leaf, ()))
        assert all(name == "trainer" or name.startswith(allowed) for name in ours), (
            f"{path}: {sorted(ours)}"
        )


def test_one_file_knows_stable_baselines() -> None:
    files = [
        path
        for path in sorted((ROOT / "mario_envpool").rglob("*.py"))
        if any(name.startswith("stable_baselines3") for name in imported_modules(path))
    ]
    assert files == [ROOT / "mario_envpool" / "compat" / "sb3.py"]


def test_importing_the_package_does_not_load_torch() -> None:
    import subprocess
    import sys

    code = "import sys, mario_envpool; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
