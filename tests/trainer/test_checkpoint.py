"""Checkpoints are whole, atomic and free of code."""

import pytest
import torch

from trainer import checkpoint

CPU = torch.device("cpu")


def test_round_trip(tmp_path):
    path = tmp_path / "checkpoint.pt"
    state = {"tensor": torch.arange(3), "steps": 7, "config": {"a": [1, "b", None]}}
    checkpoint.save(path, state)
    loaded = checkpoint.load(path, CPU)
    assert torch.equal(loaded["tensor"], state["tensor"])
    assert loaded["steps"] == 7
    assert loaded["config"] == state["config"]
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_failed_save_keeps_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"steps": 1})

    def broken(state, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, {"steps": 2})
    assert checkpoint.load(path, CPU)["steps"] == 1


def test_code_in_a_file_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("code was run",))

    path = tmp_path / "checkpoint.pt"
    torch.save({"version": checkpoint.VERSION, "x": Evil()}, path)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        checkpoint.load(path, CPU)


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.pt"):
        checkpoint.load(tmp_path / "none.pt", CPU)
    torch.save({"version": 99}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="version 99"):
        checkpoint.load(tmp_path / "other.pt", CPU)
