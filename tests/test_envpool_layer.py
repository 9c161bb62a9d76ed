"""EnvPool's Python layer alone, and what is said where its environments cannot load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = "libegl1 libopengl0"
# A machine without EnvPool's graphics libraries: the import of its families fails.
MISSING_LIBRARY = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "envpool.entry":
            raise ImportError("libEGL.so.1: cannot open shared object file")
sys.meta_path.insert(0, Missing())
"""


def run(*args: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python; with ``site``, on a machine without the libraries."""
    env = dict(os.environ)
    if site is not None:
        (site / "sitecustomize.py").write_text(MISSING_LIBRARY)
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(site), env.get("PYTHONPATH")])
        )
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env=env, check=False
    )


def result(code: str, site: Path | None = None) -> str:
    done = run("-c", code, site=site)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.families
@pytest.mark.parametrize(
    "imports",
    [
        "import mario_envpool, envpool",
        "import envpool, mario_envpool",
        "import mario_envpool, envpool.registration, envpool.python.api, envpool",
    ],
)
def test_one_registry_whatever_is_imported_first(imports: str) -> None:
    code = (
        f"{imports}\n"
        "import envpool.registration\n"
        "known = envpool.list_all_envs()\n"
        "print('Pong-v5' in known, 'SuperMarioBros-1-1-v0' in known,\n"
        "      envpool.registration.registry is sys.modules[\n"
        "          'mario_envpool.registration'].registry,\n"
        "      envpool.python.api is sys.modules['envpool.python.api'],\n"
        "      envpool.make_spec('SuperMarioBros-1-1-v0').config.num_envs)\n"
    )
    assert result("import sys\n" + code) == "True True True True 1"


def test_importing_the_package_loads_no_environment_of_envpool() -> None:
    code = (
        "import sys, mario_envpool\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules\n"
        "               if name.startswith('envpool.')}), 'envpool' in sys.modules)"
    )
    assert result(code) == "python registration False"


@pytest.mark.rom
def test_a_pool_plays_where_envpools_environments_cannot_load(tmp_path: Path) -> None:
    code = (
        "import mario_envpool\n"
        "pool = mario_envpool.make('SuperMarioBros-1-1-v0', num_envs=2)\n"
        "print(pool.reset()[0].shape)\n"
    )
    assert result(code, tmp_path) == "(2, 4, 84, 84)"


@pytest.mark.slow
@pytest.mark.rom
def test_the_trainer_runs_where_envpools_environments_cannot_load(
    tmp_path: Path,
) -> None:
    done = run(
        *("-m", "trainer.run", "--max-steps", "64", "--num-envs", "4"),
        *("--unrolls-per-batch", "4", "--minibatch-size", "4", "--no-videos"),
        *("--run-dir", str(tmp_path / "run")),
        site=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


@pytest.mark.slow
def test_errors_name_the_packages(tmp_path: Path) -> None:
    done = run("-c", "import mario_envpool\nimport envpool", site=tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert PACKAGES in last
    assert "libEGL.so.1" in last

    done = run("-m", "trainer.run", "--task", "Pong-v5", site=tmp_path)
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert done.returncode == 2
    assert "Pong-v5" in line
    assert PACKAGES in line

    report = run("-m", "mario_envpool", site=tmp_path).stdout
    (line,) = [x for x in report.splitlines() if x.startswith("EnvPool ")]
    assert PACKAGES in line
