"""Who may know whom: reads every #include and import; no arrow points upward.

Imports inside functions and under TYPE_CHECKING count: they tie a reader as much as an
interpreter.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder of csrc -> folders it may include ("preprocess/" style), or single headers.
CPP_MAY_INCLUDE = {
    "cpu": {"cpu/"},
    "nes": {"nes/", "cpu/"},
    "preprocess": {"preprocess/", "nes/palette.h", "cpu/"},
    "mario": {"mario/", "preprocess/", "nes/", "pool/spec.h"},
    "pool": {"pool/"},
    "encoders": {"encoders/", "cpu/"},
    "learner": {"learner/", "cpu/"},
    "python": {
        *("python/", "mario/", "pool/", "preprocess/", "nes/"),
        *("encoders/", "learner/", "cpu/"),
    },
}
# Package -> top-level modules it must not import, now or lazily.
PYTHON_MUST_NOT_IMPORT = {
    "mario_envpool": {"torch", "trainer", "bench", "gym_super_mario_bros", "nes_py"},
    "trainer": {"bench", "tests", "gym_super_mario_bros", "nes_py"},
}
# Rooms of the trainer, from the ground up: each may import those before it and itself.
# What stands beside them is a command, which may import any room, but no command.
ROOMS = (
    "machine config planning envs models rollout explore learn film evaluation show "
    "session tuning cli"
).split()
MOST_LINES = 500


def cpp_files() -> list[Path]:
    return sorted(
        path
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in {".h", ".cc", ".inc"}
    )


def own_includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def source_of(path: Path, node: ast.ImportFrom) -> str:
    """The absolute dotted name of what a `from` import of a file takes names from."""
    package = path.relative_to(ROOT).parent.parts
    above = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join((*above, *filter(None, [node.module])))


def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names of everything a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = source_of(path, node)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_imports(package: str) -> dict[str, set[str]]:
    """The modules of a package, and which others of it each one imports.

    Importing a name from a package is an arrow to its ``__init__``; importing a module
    from it is not, though Python runs the ``__init__`` then, too.
    """
    paths = {module_name(path): path for path in (ROOT / package).rglob("*.py")}
    compiled = {f"{package}.{name}" for name in ("_core", "_xla", "_native")}
    arrows = {}
    for name, path in paths.items():
        found = set()
        for imported in imported_modules(path):
            base, _, last = imported.rpartition(".")
            if imported in paths:
                found.add(imported)
            elif base in paths and imported not in compiled and last:
                found.add(base)
        # `from package import module` names the package as well as the module.
        found -= {
            parent
            for parent in found
            if not names_taken_from(path, parent, paths.keys() | compiled)
        }
        arrows[name] = found - {name}
    return arrows


def names_taken_from(path: Path, module: str, modules: set[str]) -> bool:
    """Whether a file imports a module itself, or names of it that are no modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            if any(alias.name == module for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            base = source_of(path, node)
            taken = {f"{base}.{alias.name}" for alias in node.names}
            if module in taken or (base == module and taken - modules):
                return True
    return False


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in arrows[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in arrows:
        if name not in index:
            visit(name)
    return found


def room_of(module: str) -> int:
    """The height of a module of the trainer; commands are on top."""
    name = module.split(".")[1]
    return ROOMS.index(name) if name in ROOMS else len(ROOMS)


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


def test_the_finder_finds_circles() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(arrows) == [["a", "b", "c"]]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["mario_envpool", "trainer"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    arrows = own_imports(package)
    assert sum(map(len, arrows.values())) > len(arrows) / 2  # the reading works
    assert circles(arrows) == []


@pytest.mark.slow
def test_rooms_of_the_trainer_import_downwards() -> None:
    arrows = own_imports("trainer")
    del arrows["trainer"]
    assert {name.split(".")[1] for name in arrows} >= set(ROOMS)
    wrong = [
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in others - {"trainer"}
        if room_of(other) > room_of(name)
        or room_of(other) == room_of(name) == len(ROOMS)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["mario_envpool", "trainer"])
def test_files_are_short_enough_to_read(package: str) -> None:
    lines = {
        path: len(path.read_text().splitlines())
        for path in (ROOT / package).rglob("*.py")
    }
    assert {str(p): n for p, n in lines.items() if n > MOST_LINES} == {}


def test_one_file_knows_stable_baselines() -> None:
    files = [
        path
        for path in sorted((ROOT / "mario_envpool").rglob("*.py"))
        if any(name.startswith("stable_baselines3") for name in imported_modules(path))
    ]
    assert files == [ROOT / "mario_envpool" / "compat" / "sb3.py"]


def test_one_file_knows_torch_distributed() -> None:
    files = [
        path
        for path in sorted((ROOT / "trainer").rglob("*.py"))
        if any(name.startswith("torch.distributed") for name in imported_modules(path))
    ]
    assert files == [ROOT / "trainer" / "machine" / "ranks.py"]


def test_importing_the_package_does_not_load_torch() -> None:
    import subprocess
    import sys

    code = "import sys, mario_envpool; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
