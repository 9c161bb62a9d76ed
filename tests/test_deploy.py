"""The recipes of deploy/: what they start, with stand-ins for torchrun and Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from trainer.cli import parse
from trainer.config.schema import RunConfig

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
STAND_INS = {
    "torchrun": 'printf "%s\\n" "$@"',
    "srun": 'exec "$@"',
    # More than a pipe holds: a reader that stops early ends it with SIGPIPE.
    "scontrol": "seq -f node-%.0f 100000",
}
SLURM = {
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_JOB_NODELIST": "node-[1-2]",
    "SLURM_JOB_ID": "17",
}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "FLAGS": "--levels all",
}


def started(folder: Path, command: list[str], **variables: str) -> list[str]:
    """What torchrun would be given, by a recipe that runs in a folder."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def config_of(words: list[str]) -> RunConfig:
    """The run that torchrun's arguments are of."""
    at = words.index("trainer.run")
    assert words[at - 1] == "-m"
    return parse(words[at + 1 :])


def value(words: list[str], flag: str) -> str:
    """Of one of torchrun's own flags."""
    return words[words.index(flag) + 1]


def sky_script(runs: Path) -> list[str]:
    """What SkyPilot runs on each machine, with its runs in a folder."""
    text = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())["run"]
    return ["bash", "-c", text.replace("/runs/", f"{runs}/")]


def test_one_machine(tmp_path: Path) -> None:
    script = ["bash", str(DEPLOY / "one-machine.sh"), "--levels", "1-1"]
    words = started(tmp_path, script, GPUS="4")
    assert value(words, "--nproc-per-node") == "4"
    assert value(words, "--max-restarts") == "20"
    config = config_of(words)
    config.share(4).validate()
    assert (config.env.num_envs, config.env.levels) == (4096, ("1-1",))
    # The user's own flags win.
    words = started(tmp_path, [*script, "--num-envs", "64"], GPUS="1")
    assert config_of(words).env.num_envs == 64


def test_one_machine_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(DEPLOY / "one-machine.sh")],
        env=os.environ | {"GPUS": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    said = "error: this machine has no GPU; without a GPU use: python -m trainer.run\n"
    assert done.stderr == said


def test_slurm(tmp_path: Path) -> None:
    script = ["bash", str(DEPLOY / "slurm.sbatch"), "--levels", "all"]
    words = started(tmp_path, script, **SLURM)
    assert value(words, "--nnodes") == "2"
    assert value(words, "--nproc-per-node") == "4"
    assert value(words, "--rdzv-endpoint") == "node-1:29500"
    config = config_of(words)
    config.share(8).validate()
    assert config.run_dir == Path("runs/slurm-17")
    assert (config.env.num_envs, config.env.levels) == (8192, ("all",))
    # Queued again: another meeting, the same folder.
    (tmp_path / "runs/slurm-17/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/slurm-17/checkpoints/step-1.pt").touch()
    again = started(tmp_path, script, SLURM_RESTART_COUNT="1", **SLURM)
    assert again[again.index("trainer.run") + 1 :] == ["--resume", "runs/slurm-17"]
    assert value(again, "--rdzv-id") != value(words, "--rdzv-id")


def test_slurm_ends_a_run_before_its_time_limit(tmp_path: Path) -> None:
    """Slurm's signal reaches torchrun as SIGTERM, and the job waits for its end."""
    started(tmp_path, ["true"])  # writes the stand-ins
    (tmp_path / "bin/torchrun").write_text(
        "#!/bin/bash\n"
        "trap 'sleep 0.5; echo ended; exit 143' TERM\n"
        "trap 'echo killed; exit 138' USR1\n"
        "echo begun\n"
        "while true; do sleep 0.1; done\n"
    )
    script = (DEPLOY / "slurm.sbatch").read_text()
    assert "#SBATCH --signal=B:USR1@120\n" in script
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    job = subprocess.Popen(
        ["bash", str(DEPLOY / "slurm.sbatch")],
        cwd=tmp_path,
        env=os.environ | SLURM | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with job:
        assert job.stdout is not None
        assert job.stdout.readline() == "begun\n"
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read() == "ended\n"
    assert job.returncode == 143


def test_skypilot(tmp_path: Path) -> None:
    words = started(tmp_path, sky_script(tmp_path / "runs"), **SKYPILOT)
    assert value(words, "--node-rank") == "1"
    assert value(words, "--master-addr") == "10.0.0.1"
    config = config_of(words)
    config.share(8).validate()
    assert config.run_dir == tmp_path / "runs" / "mario"
    assert (config.env.num_envs, config.env.levels) == (8192, ("all",))
    (tmp_path / "runs/mario/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/mario/checkpoints/best.pt").touch()
    words = started(tmp_path, sky_script(tmp_path / "runs"), **SKYPILOT)
    flags = words[words.index("trainer.run") + 1 :]
    assert flags == ["--resume", str(tmp_path / "runs" / "mario")]


def test_skypilot_reads_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # it writes there
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed: skypilot")
    task = sky.Task.from_yaml(str(DEPLOY / "skypilot.yaml"))
    assert (task.name, task.num_nodes) == ("mario", 2)
    (resources,) = task.resources
    assert resources.use_spot
    assert resources.accelerators == {"H100": 8}
