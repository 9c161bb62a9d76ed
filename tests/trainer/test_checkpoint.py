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
    with pytest.raises(ValueError, match="is not a checkpoint of this trainer"):
        checkpoint.load(path, CPU)


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.pt"):
        checkpoint.load(tmp_path / "none.pt", CPU)
    torch.save({"version": 99}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="version 99"):
        checkpoint.load(tmp_path / "other.pt", CPU)


@pytest.mark.parametrize("content", ["json", "cut", "tensor", "empty"])
def test_a_foreign_or_damaged_file_is_named_in_one_line(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    if content == "tensor":
        torch.save(torch.zeros(3), path)
    elif content == "cut":
        checkpoint.save(path, {"x": torch.zeros(1000)})
        path.write_bytes(path.read_bytes()[:2000])
    else:
        path.write_text("{}" if content == "json" else "")
    with pytest.raises(ValueError, match="is not a checkpoint of this") as caught:
        checkpoint.load(tmp_path, CPU)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200 + len(str(path))


def test_what_is_needed_and_missing_is_named(tmp_path):
    checkpoint.save(tmp_path / "checkpoint.pt", {"steps": 1})
    assert checkpoint.load(tmp_path, CPU, ["steps"])["steps"] == 1
    with pytest.raises(ValueError, match="no model, config in it"):
        checkpoint.load(tmp_path, CPU, ["steps", "model", "config"])
