"""README.md and docs/: every code block runs, every name and link exists.

A ``python`` or ``bash`` block is executed as it stands, in a fresh interpreter or shell
and a folder of its own, in which ``runs/`` has a small run for each placeholder
(``runs/<run>``). Commands that would take minutes get further flags (``SHORT``). A
block behind a line ``<!-- no-run: reason -->`` is not run; its test is skipped, with
the reason; so is one behind ``<!-- needs: modules -->`` where one of them is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?:no-run: (?P<reason>.+?)|needs: (?P<needs>[\w. ]+)) -->\n+)?"
    r"```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# Blocks that load EnvPool's own environments, or run an example that does.
LOADING = re.compile(r"^import envpool$|^python examples/(cleanrl|envpool)_", re.M)
PLACEHOLDER = re.compile(r"runs/<([\w-]+)>")

# Further flags, and those of the runs that a command starts: seconds, not minutes.
_RUN = "--num-envs 8 --unrolls-per-batch 8 --minibatch-size 64"
_PLAY = "--episodes 2 --noop-max 1 --stall-steps 5"
SHORT = {
    "python -m trainer.run": f"{_RUN} --max-steps 1024 --no-videos",
    "python -m trainer.evaluate": _PLAY,
    "python -m trainer.video": "--max-seconds 1",
    "python -m trainer.baselines": "--episodes 2 --noop-max 1 --no-a2c",
    "python -m trainer.search": f"--trials 1 --max-steps 1024 -- {_RUN}",
    "python -m trainer.population": (
        f"--members 2 --generations 1 --steps-per-generation 1024 -- {_RUN}"
    ),
    "torchrun --nproc-per-node 2": f"{_RUN} --max-steps 1024 --no-videos",
    "python bench/sps.py": "--seconds 0.05 --warmup 0 --num-envs 4 --skip parts",
}
# Commands of others that the text shows, and their flags.
FOREIGN_FLAGS = set(
    "--index-url --extra-index-url --no-sync --rm --build-arg --gpus --logdir "
    "--no-build-isolation --no-deps --strict --directory --platform "
    "--total-timesteps --nnodes --rdzv-backend --rdzv-endpoint --rdzv-id "
    "--numa-binding --shutdown-timeout --signals-to-handle --nodes --gpus-per-node "
    "--cpus-per-task --head --port --address".split()
)
# In the place of `pytest.ini`: a warning is an error, but for the one that is known.
PRELUDE = (
    "import warnings; warnings.simplefilter('error'); warnings.filterwarnings("
    "'ignore', '.*SuperMarioBros.* is out of date', DeprecationWarning)\n"
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    kind: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        reason = match["reason"] or ""
        for module in (match["needs"] or "").split():
            if importlib.util.find_spec(module) is None:
                reason = f"{module} is not installed"
        yield Block(page, line, match["kind"], match["code"], reason)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks(kind: str) -> list[object]:
    """The blocks of a language as parameters of a test."""
    return [
        pytest.param(
            block,
            id=str(block),
            marks=[pytest.mark.skip(reason=block.reason)] * bool(block.reason)
            + [pytest.mark.families] * bool(LOADING.search(block.code)),
        )
        for block in BLOCKS
        if block.kind == kind
    ]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of some seconds that has not come to its end."""
    import torch

    from trainer.models import checkpoint

    folder = tmp_path_factory.mktemp("docs") / "run"
    options = f"{SHORT['python -m trainer.run']} --max-steps 512"
    execute(f"python -m trainer.run {options} --run-dir run", folder.parent)
    path = checkpoint.find(folder)
    state = checkpoint.load(path, torch.device("cpu"))
    state["progress"]["ended"] = ""  # as if it had been interrupted
    checkpoint.save(path, state)
    return folder


def execute(command: str | list[str], folder: Path) -> None:
    """Runs a command, or a line of bash; fails with what it printed if it fails."""
    if isinstance(command, str):
        command = ["bash", "-euc", command]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def furnish(folder: Path, block: Block, small_run: Path) -> None:
    """Makes the files that a block names, new for each line."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    for name in {"run", *PLACEHOLDER.findall(block.code)}:
        shutil.copytree(small_run, folder / "runs" / name)
    for other in BLOCKS:
        name = re.match(r"# (\w+\.py)\n", other.code)
        if other.page == block.page and name:
            (folder / name[1]).write_text(other.code)
    for scripts in ("bench", "examples"):
        if not (folder / scripts).exists():
            (folder / scripts).symlink_to(ROOT / scripts)


def placed(code: str) -> str:
    """The code with the folders that `furnish` made."""
    return PLACEHOLDER.sub(r"runs/\1", code)


def shortened(line: str) -> str:
    """Adds the flags of SHORT to a command line."""
    command = line.partition("  #")[0]
    for name, extra in SHORT.items():
        if re.match(rf"{re.escape(name)}\b", command) and "--help" not in command:
            own, _, theirs = command.partition(" -- ")
            flags, _, flags_of_runs = extra.partition(" -- ")
            command = f"{own} {flags}"
            if theirs or flags_of_runs:
                command += f" -- {theirs} {flags_of_runs}"
    return command


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("block", blocks("python"))
def test_python_block_runs(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if PLACEHOLDER.search(block.code):
        furnish(tmp_path, block, request.getfixturevalue("small_run"))
    execute([sys.executable, "-c", PRELUDE + placed(block.code)], tmp_path)


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("block", blocks("bash"))
def test_bash_block_runs(block: Block, tmp_path: Path, small_run: Path) -> None:
    for line in block.code.replace("\\\n", " ").splitlines():
        furnish(tmp_path, block, small_run)
        execute(shortened(placed(line)), tmp_path)


def test_other_blocks_are_what_they_say() -> None:
    known = {"python", "bash", "toml", "text", "diff"}
    assert [str(block) for block in BLOCKS if block.kind not in known] == []
    for block in BLOCKS:
        if block.kind == "toml":
            assert tomllib.loads(block.code), str(block)
        if block.reason:
            assert block.kind in ("python", "bash"), str(block)


def test_there_is_an_example_for_each_api() -> None:
    calls = ["mario_envpool.make(", "pool.recv(", '"dm"', "gymnasium.make(", "_vec("]
    first = [b.code for b in BLOCKS if b.page.name in ("README.md", "index.md")]
    for call in calls:
        assert any(call in code for code in first), call


def test_pages_are_short() -> None:
    """The limits of CONTRIBUTING.md; references and the lab book have none."""
    long = {"api.md", "lab-book.md"}
    long |= {"environment-reference.md", "migration-reference.md"}
    for page in PAGES:
        words = len(page.read_text().split())
        limit = 1_200 if page.name == "README.md" else 1_500
        assert words <= limit or page.name in long, (page.name, words)


def slug(heading: str) -> str:
    """The anchor of a heading, for GitHub and MkDocs alike."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    # Pages that a page of the site may name: those made of files of the repository.
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page}: {target}#{anchor}"


def known_flags() -> set[str]:
    """Every flag of our commands, from their help, and of the scripts in bench/."""
    from trainer import (
        baselines,
        campaign,
        evaluate,
        export,
        plan,
        population,
        publish,
        release,
        report,
        run,
        search,
        video,
        watch,
    )

    mains_of_package = (ROOT / "mario_envpool").rglob("__main__.py")
    text = "".join(path.read_text() for path in mains_of_package)
    text += "".join(path.read_text() for path in (ROOT / "bench").glob("*.py"))
    mains = (baselines, campaign, evaluate, plan, population, release, report, run)
    others = (export, publish, search, video, watch)
    helps = [(module, "--help") for module in (*mains, *others)]
    helps.append((run, "--help-all"))
    for module, flag in helps:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
            module.main([flag])
        text += out.getvalue()
    tests = ROOT / "tests"
    fuzzing = [*tests.glob("fuzz/*.cc"), *tests.glob("*/*calls.py")]
    shell = tests.glob("*.sh")
    for script in [*(ROOT / "examples").glob("*.py"), *fuzzing, *shell]:
        text += script.read_text()
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


def test_every_flag_of_the_text_exists() -> None:
    known = known_flags() | FOREIGN_FLAGS
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        assert flags - known == set(), page


def native_options() -> dict[str, object]:
    from mario_envpool._core import _MarioEnvSpec as spec

    return dict(zip(spec._config_keys, spec._default_config_values, strict=True))


def test_the_image_can_be_built_from_any_index() -> None:
    """PyTorch's own index is a default; pip alone, also from a mirror, will do."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    defaults = dict(
        line.removeprefix("ARG ").split("=") for line in lines if line.startswith("ARG")
    )
    assert defaults["TORCH_INDEX"] == "https://download.pytorch.org/whl/cpu"
    assert defaults["PIP_INDEX_URL"] == "https://pypi.org/simple"  # what pip reads
    runs = [number for number, line in enumerate(lines) if line.startswith("RUN")]
    assert not [lines[number] for number in runs if "://" in lines[number]]
    first_pip = next(number for number in runs if "pip install" in lines[number])
    assert lines.index("ARG PIP_INDEX_URL=https://pypi.org/simple") < first_pip
    for page in (ROOT / "README.md", ROOT / "docs/installing.md"):
        assert "only PyPI or a mirror" in " ".join(page.read_text().split()), page
    installing = (ROOT / "docs/installing.md").read_text()
    assert "--build-arg PIP_INDEX_URL=" in installing
    assert re.search(r"^pip install torch==[\d.]+ +#", installing, re.MULTILINE)


@pytest.mark.parametrize("name", ["venv", ".venv"])
def test_git_ignores_virtual_environments(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "pyvenv.cfg").touch()
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    status = [*git, "status", "--porcelain", "--untracked-files=all"]
    seen = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    assert seen == "?? .gitignore\n"


def test_every_option_of_the_environments_pages_exists() -> None:
    pages = ("environments.md", "environment-reference.md")
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    named = set(re.findall(r"`([a-z_]+)=", text))
    named |= {
        n for o in re.findall(r"<!-- options: (.*?) -->", text) for n in o.split()
    }
    assert named - native_options().keys() == {"rest"}


def test_every_info_field_is_described() -> None:
    from mario_envpool._core import _MarioEnvSpec as spec

    text = (ROOT / "docs/environment-reference.md").read_text()
    section = text.split("## What `info` holds")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (\w*) \|", section, re.MULTILINE)
    described = {n: kind for names, kind in rows for n in re.findall(r"`(\w+)`", names)}
    config = tuple(native_options().values())
    fields = dict(zip(spec._state_keys, spec(config)._state_spec, strict=True))
    native = {
        key.removeprefix("info:"): str(value[0])
        for key, value in fields.items()
        if key.startswith("info:") or key == "elapsed_step"
    }
    del native["players.env_id"]
    assert described.pop("players") == "dict"
    assert described.keys() == native.keys()
    for name, kind in described.items():
        assert kind in native[name], (name, kind, native[name])


def test_symptoms_are_what_the_program_says() -> None:
    """`...` in a quoted text stands for what differs from time to time."""
    source = (ROOT / "setup.py").read_text() + (ROOT / "CMakeLists.txt").read_text()
    for folder in ("mario_envpool", "trainer", "csrc"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cc"):
                source += path.read_text()
    joined = re.sub(r"\s+", " ", re.sub(r'"\s*\n?\s*f?"', "", source))
    joined = re.sub(r"\\(['\"])", r"\1", joined)
    text = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", text)
    assert len(quoted) > 30
    for symptom in quoted:
        for part in symptom.split("..."):
            assert part.strip() in joined, symptom


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None,
    reason="MkDocs is not installed (pip install -e '.[docs]')",
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    execute([*command, str(site), "-f", str(ROOT / "mkdocs.yml")], tmp_path)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 1
    for page in pages:  # nothing is fetched from elsewhere
        text = page.read_text()
        assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=\"?https?:", text), page
        assert not re.search(r"<link[^>]*stylesheet[^>]*https?:", text), page
        assert "<!-- options:" not in text, page
