"""A full disk costs a run nothing but what could not be written meanwhile."""

import errno
import io
import json
import os
import re
from dataclasses import replace

import pytest
from small_runs import CPU, make_config, read_points

from trainer.machine import files
from trainer.machine.files import Lines, drop_after, replacing
from trainer.models import checkpoint
from trainer.run import main
from trainer.session.files import Checkpoints
from trainer.session.training import run_training
from trainer.show import tracking


class Disk:
    """Makes writing fail, everywhere that runs write, while it is `full`."""

    def __init__(self, monkeypatch):
        self.full = False
        write, fsync = io.FileIO.write, os.fsync

        class Raw(io.FileIO):
            def write(own, data):  # noqa: N805
                if self.full:
                    # As real disks do: what still fits is written.
                    return write(own, data[:10]) if len(data) > 10 else 0
                return write(own, data)

        def sync(number):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return fsync(number)

        open_lines = Lines.__init__

        def open_raw(lines, path, log):
            open_lines(lines, path, log)
            lines._file.close()
            lines._file = Raw(path, "ab")

        monkeypatch.setattr(Lines, "__init__", open_raw)
        monkeypatch.setattr(files.os, "fsync", sync)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_lines_are_whole_or_not_there(tmp_path, disk):
    said = []
    lines = Lines(tmp_path / "x.jsonl", said.append)
    assert lines.write({"step": 1, "loss": float("nan")})
    disk.full = True
    assert not lines.write({"step": 2})
    assert not lines.write({"step": 3})
    disk.full = False
    assert lines.write({"step": 4})
    lines.close()
    text = (tmp_path / "x.jsonl").read_text()
    assert text == '{"step": 1, "loss": null}\n{"step": 4}\n'
    assert len(said) == 2
    assert "x.jsonl (No space left on device); training continues" in said[0]
    assert "x.jsonl again; 2 lines are missing" in said[1]


def test_lines_after_a_power_cut(tmp_path):
    """Blocks that were not written yet may hold anything."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 3}\n\xff\x00\n{"step": 2}\n{"st')
    episodes = tmp_path / "episodes.jsonl"
    episodes.write_text('{"step": 2}\n{"step": 3}\n')
    assert drop_after(tmp_path, 2) == 4
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert episodes.read_text() == '{"step": 2}\n'
    assert drop_after(tmp_path, 2) == 0


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, disk):
    path = tmp_path / "config.json"
    path.write_text("old")
    disk.full = True
    with pytest.raises(OSError, match="No space"), replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    disk.full = False
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"


class Board:
    """TensorBoard's writer on a disk that is full after some points."""

    made = 0
    left = 2

    def __init__(self, folder, purge_step=None):
        type(self).made += 1

    def add_scalar(self, name, value, step):
        type(self).left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "full")

    def flush(self):
        pass

    def close(self):
        raise OSError(errno.ENOSPC, "full")


def test_tensorboard_gets_a_new_writer_after_a_full_disk(tmp_path, monkeypatch):
    from torch.utils import tensorboard

    monkeypatch.setattr(tensorboard, "SummaryWriter", Board)
    monkeypatch.setattr(Board, "made", 0)
    writer = tracking.MetricsWriter(tmp_path, {})
    for step in range(4):
        writer.write(step, {"x": 1.0})
    assert Board.made == 2
    monkeypatch.setattr(tracking, "_BOARD_NEEDS_BYTES", 2**60)
    writer.write(4, {"x": 1.0})
    assert Board.made == 2
    writer.close()
    assert [point["step"] for point in read_points(tmp_path)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_run_goes_on_while_the_disk_is_full(tmp_path, pools, disk, capsys):
    config = make_config(tmp_path, max_steps=900, checkpoint_seconds=0.0)
    original = Checkpoints.save
    saves = []

    def save(self, state, step):
        disk.full = 3 <= len(saves) < 8
        saves.append(original(self, state, step))
        return saves[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        metrics = run_training(config)
    assert metrics["steps"] >= 900
    assert [path is None for path in saves[:9]] == 3 * [False] + 5 * [True] + [False]
    output = capsys.readouterr().out
    failed = [line for line in output.splitlines() if "could not write" in line]
    # Each checkpoint that was due, and curves and episodes once; best.pt is tried
    # meanwhile.
    assert len([line for line in failed if "best.pt" not in line]) == 7
    assert "No space left on device" in output
    assert "metrics.jsonl again" in output
    steps = [point["step"] for point in read_points(config.run_dir)]
    assert steps == sorted(set(steps))
    assert len(steps) < len(saves)
    assert checkpoint.load(config.run_dir, CPU)["steps"] == metrics["steps"]


def test_the_last_checkpoint_that_fails_is_exit_status_1(
    tmp_path, pools, disk, monkeypatch, capsys
):
    original = Checkpoints.save

    def save(self, state, step):
        disk.full = step >= 200
        return original(self, state, step)

    monkeypatch.setattr(Checkpoints, "save", save)
    options = "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --no-videos "
    options += f"--max-steps 300 --checkpoint-seconds 0 --run-dir {tmp_path / 'run'}"
    assert main(options.split()) == 1
    error = capsys.readouterr().err
    assert re.match(r"error: the last checkpoint, at 33\d steps, could not be", error)
    assert error.count("\n") == 1
    assert 150 < checkpoint.load(tmp_path / "run", CPU)["steps"] < 200


def test_a_disk_that_is_full_before_the_first_checkpoint(tmp_path, pools, disk, capsys):
    original = Checkpoints.save

    def save(self, state, step):
        disk.full = True
        return original(self, state, step)

    config = make_config(tmp_path, checkpoint_seconds=1e9, max_steps=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        patch.setattr(Checkpoints, "save_best", lambda *_: None)
        with pytest.raises(RuntimeError, match="/checkpoints/ has no earlier one"):
            run_training(config)
    assert checkpoint.list_files(config.run_dir) == []


@pytest.mark.slow
def test_folders_with_names_of_checkpoints_are_left_alone(tmp_path, pools):
    """They neither end the run nor are they resumed."""
    config = make_config(tmp_path, checkpoint_seconds=0.0, keep_checkpoints=1)
    folder = config.run_dir / checkpoint.FOLDER
    names = ("step-000000001.pt", "step-999999999.pt", "best.pt", "step-7.pt.tmp")
    for name in names:
        (folder / name).mkdir(parents=True)
    steps = run_training(config)["steps"]
    assert all((folder / name).is_dir() for name in names)
    (newest,) = checkpoint.list_files(config.run_dir)
    assert checkpoint.step_of(newest) == steps
    assert checkpoint.load(config.run_dir, CPU)["steps"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["5m"], indirect=True)
def test_a_run_on_a_small_disk(small_disk, pools, capsys):
    """It fills the disk, prints that, loses no older file, and continues with room."""
    config = make_config(small_disk, max_steps=900, checkpoint_seconds=0.0)
    config = replace(config, keep_checkpoints=9)
    with pytest.raises(RuntimeError, match=r"the last checkpoint, .* could not be"):
        run_training(config)
    output = capsys.readouterr().out
    assert "could not write" in output
    assert "No space left on device" in output
    assert "max_steps reached" in output
    left = checkpoint.list_files(config.run_dir)
    assert len(left) >= 2
    for path in left:
        checkpoint.load(path, CPU)
    assert not list(config.run_dir.rglob("*.tmp"))
    json.loads((config.run_dir / "config.json").read_text())
    steps = [point["step"] for point in read_points(config.run_dir)]
    assert steps == sorted(set(steps))
    left[-1].unlink()
    newest = checkpoint.load(config.run_dir, CPU)["steps"]
    config = replace(config, keep_checkpoints=1, resume=config.run_dir)
    run_training(config)
    assert f"at {newest} steps" in capsys.readouterr().out
    assert checkpoint.load(config.run_dir, CPU)["steps"] >= 900
