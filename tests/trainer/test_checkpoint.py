"""Checkpoints are whole, atomic, free of code, and tell when they are damaged."""

import errno
import io
import os
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

from trainer.models import checkpoint
from trainer.session import files
from trainer.session.files import Checkpoints

CPU = torch.device("cpu")
STATE = {"model": {"w": torch.arange(4096.0)}, "steps": 7, "config": {"a": [1, None]}}


def path_of(run_dir, step=7):
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    return run_dir / "checkpoints" / f"step-{step:09}.pt"


def test_round_trip(tmp_path):
    path = path_of(tmp_path)
    checkpoint.save(path, STATE)
    for source in (path, tmp_path, tmp_path / "checkpoints"):
        loaded = checkpoint.load(source, CPU, ["steps"])
        assert torch.equal(loaded["model"]["w"], STATE["model"]["w"])
        assert loaded["config"] == STATE["config"]
        assert checkpoint.find(source) == path
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# -- damaged and foreign files -------------------------------------------------


class Evil:
    def __reduce__(self):
        return (os.system, ("touch code-was-run",))


def write_zip(path, name, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def flip_tensor(path):
    flip(path, path.read_bytes().index(STATE["model"]["w"].numpy().tobytes()) + 999)


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def saved(**changes):
    return lambda path: checkpoint.save(path, STATE | changes)


def torch_saved(state):
    return lambda path: torch.save(state, path)


NAN = torch.tensor([1.0, float("nan")])
FOREIGN = "is not a checkpoint of this trainer: "
DAMAGES = {
    "empty": (lambda p: p.write_bytes(b""), "is empty: writing it was interrupted"),
    "one byte": (lambda p: cut(p, 1e-4), "is cut off after 1 bytes"),
    "a tenth": (lambda p: cut(p, 0.1), r"is cut off after [\d,]+ bytes"),
    "a half": (lambda p: cut(p, 0.5), r"is cut off after [\d,]+ bytes"),
    "nearly all": (lambda p: cut(p, 0.999), r"is cut off after [\d,]+ bytes"),
    "random bytes": (
        lambda p: p.write_bytes(b"\x8d" + os.urandom(5000)),
        FOREIGN + "it begins like another kind of file",
    ),
    "JSON": (
        lambda p: p.write_text("{}"),
        FOREIGN + "it begins like another kind of file",
    ),
    "a zip": (
        lambda p: write_zip(p, "readme.txt", "hello"),
        FOREIGN + "it is a zip archive, but not a PyTorch archive",
    ),
    "a zip with a data.pkl": (
        lambda p: write_zip(p, "archive/data.pkl", "hello"),
        "is damaged: PyTorch cannot read it",
    ),
    "code": (
        torch_saved({"version": checkpoint.VERSION, "x": Evil()}),
        FOREIGN + r"it contains the code (posix|nt|os)\.system, which was not run",
    ),
    "a plain pickle with code": (
        lambda p: p.write_bytes(pickle.dumps(Evil())),
        FOREIGN + "it begins like another kind of file",
    ),
    "another state dict": (
        torch_saved({"layer.weight": torch.zeros(3)}),
        FOREIGN + "it is another PyTorch file, without a version",
    ),
    "a tensor": (
        torch_saved(torch.zeros(3)),
        FOREIGN + "it is another PyTorch file, without a version",
    ),
    "another version": (
        torch_saved({"version": 99}),
        "is a checkpoint of version 99, but this trainer reads version 6: use",
    ),
    "missing keys": (
        torch_saved({"version": checkpoint.VERSION, "steps": 1}),
        "is incomplete: model, config is missing",
    ),
    "NaN weights": (
        saved(model={"w": NAN}),
        "cannot be used: w in model is not finite",
    ),
    "infinite average": (
        saved(ema={"w": NAN / 0}),
        "cannot be used: w in ema is not finite",
    ),
    "a flipped bit": (flip_tensor, r"is damaged: the checksum of \S+ is wrong"),
    "a flipped bit in the contents": (lambda p: flip(p, -200), "is damaged: "),
    "a folder": (
        lambda p: (p.unlink(), p.mkdir()),
        "no checkpoint at",
    ),
    "nothing": (lambda p: p.unlink(), "no checkpoint at"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_clear_line(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    path = path_of(tmp_path)
    checkpoint.save(path, STATE)
    make, says = DAMAGES[damage]
    make(path)
    with pytest.raises((ValueError, OSError), match=says) as caught:
        checkpoint.load(path, CPU, ["model", "config", "steps"])
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 200 + len(str(path))
    assert not (tmp_path / "code-was-run").exists()


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_any_flipped_bit_is_noticed_or_changes_nothing(tmp_path, every):
    """At every 7th byte, and everywhere in what zip adds to the contents."""
    path = path_of(tmp_path)
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    noticed = 0
    places = {*range(0, len(whole), 7), *range(len(whole) - 1000, len(whole))}
    places = sorted(places)[::every]
    for place in places:
        flip(path, place)
        try:
            loaded = checkpoint.load(path, CPU)
        except ValueError:
            noticed += 1
        else:
            assert torch.equal(loaded["model"]["w"], STATE["model"]["w"]), place
            assert loaded["config"] == STATE["config"], place
            assert loaded["steps"] == STATE["steps"], place
        path.write_bytes(whole)
    assert noticed > len(places) // 2


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = path_of(tmp_path)
    checkpoint.save(path, STATE)

    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    # As root, nothing is unreadable.
    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(OSError, match=rf"cannot read {path} \(Permission denied\)"):
        checkpoint.load(path, CPU)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_falls_back_to_the_valid_one_before(
    tmp_path, monkeypatch, caplog, damage
):
    monkeypatch.chdir(tmp_path)
    for step in (5, 6, 7):
        checkpoint.save(path_of(tmp_path, step), STATE | {"steps": step})
    make, _ = DAMAGES[damage]
    make(path_of(tmp_path, 7))
    needs = ["model", "config", "steps"]
    assert checkpoint.load(tmp_path, CPU, needs)["steps"] == 6
    assert checkpoint.find(tmp_path, needs) == path_of(tmp_path, 6)
    if damage == "nothing":
        assert caplog.text == ""
    elif damage != "a folder":
        assert caplog.records[0].getMessage().endswith("trying step-000000006.pt")


def test_where_all_are_damaged_the_last_error_is_told(tmp_path):
    for step in (5, 6):
        path_of(tmp_path, step).write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-000000005\.pt is empty"):
        checkpoint.load(tmp_path, CPU)


def test_a_best_one_is_taken_where_no_other_is_valid(tmp_path):
    path_of(tmp_path, 9).write_bytes(b"")
    checkpoint.save(tmp_path / "checkpoints" / "best.pt", STATE)
    assert checkpoint.load(tmp_path, CPU)["steps"] == 7


def test_a_folder_without_checkpoints(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*RUN_DIR/c"):
        checkpoint.load(tmp_path, CPU)


def test_weights_of_another_shape(tmp_path):
    with pytest.raises(ValueError, match=r"weight is \(3, 2\) in .* but \(3, 4\)"):
        checkpoint.load_weights(nn.Linear(4, 3), nn.Linear(2, 3).state_dict())


# -- a run's folder --------------------------------------------------------------


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.fixture
def said():
    return []


@pytest.fixture
def folder(tmp_path, said):
    result = Checkpoints(tmp_path, 2, said.append)
    yield result
    result.close()


def test_the_last_few_stay_and_the_best(tmp_path, folder):
    folder.save_best(STATE)
    for step in (5, 1_000_000_000, 1_000_000_010):
        path = folder.save(STATE, step)
        assert path.is_file()
    assert names(tmp_path) == ["best.pt", "step-1000000000.pt", "step-1000000010.pt"]
    assert checkpoint.find(tmp_path).name == "step-1000000010.pt"


def test_a_course_that_was_given_up_goes_with_the_next_one(tmp_path, folder):
    for step in (10, 20, 30):
        folder.save(STATE, step)
    folder.save(STATE, 25)  # resumed from 20
    assert names(tmp_path) == ["step-000000020.pt", "step-000000025.pt"]


def test_one_process_writes_to_a_folder(tmp_path, folder):
    with pytest.raises(ValueError, match="another process is writing to"):
        Checkpoints(tmp_path, 2, print)
    assert files.is_taken(tmp_path)
    folder.close()
    # Without locks (some network file systems) it may be wrong, and does no harm.
    (folder.folder / "step-000000001.pt.tmp").write_bytes(b"half")
    assert not files.is_taken(tmp_path)
    assert names(tmp_path) == ["step-000000001.pt.tmp"]


def test_who_looks_at_a_folder_changes_nothing(tmp_path):
    assert not files.is_taken(tmp_path)
    assert list(tmp_path.iterdir()) == []
    Checkpoints(tmp_path, 2, print).close()
    before = sorted(tmp_path.rglob("*"))
    assert not files.is_taken(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_killed_process_frees_its_folder(tmp_path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from trainer.session.files import Checkpoints\n"
        "folder = Checkpoints(Path(sys.argv[1]), 2, print)\n"
        "print('taken', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        assert files.is_taken(tmp_path)
        with pytest.raises(ValueError, match="another process is writing to"):
            Checkpoints(tmp_path, 2, print)
        process.kill()
    assert not files.is_taken(tmp_path)
    Checkpoints(tmp_path, 2, print).close()


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def fail(lock, *args, **options):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.FileLock, "acquire", fail)
    folder = Checkpoints(tmp_path, 2, print)
    assert not files.is_taken(tmp_path)
    assert folder.save(STATE, 1) is not None
    folder.close()


def test_what_an_interrupted_writing_left_is_cleared_away(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000001.pt.tmp").write_bytes(b"half")
    Checkpoints(tmp_path, 2, print).close()
    assert names(tmp_path) == []


class FullDisk(io.FileIO):
    """A file on a disk that has room for 4,000 bytes."""

    def write(self, data):
        if self.tell() + len(data) > 4000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_costs_nothing_but_the_new_one(tmp_path, folder, said, monkeypatch):
    folder.save_best(STATE)
    folder.save(STATE, 1)
    folder.save(STATE, 2)
    before = {name: (folder.folder / name).read_bytes() for name in names(tmp_path)}
    with monkeypatch.context() as full:
        full.setattr(type(tmp_path), "open", lambda self, mode: FullDisk(self, mode))
        assert folder.save(STATE, 3) is None
        assert folder.save_best(STATE) is None
    assert before == {n: (folder.folder / n).read_bytes() for n in names(tmp_path)}
    assert len(said) == 2
    assert "could not write" in said[0]
    assert "step-000000003.pt (No space left on device" in said[0]
    assert "step-000000002.pt, step-000000001.pt, best.pt stay as they are" in said[0]
    # There is room again.
    assert folder.save(STATE, 4) is not None
    assert checkpoint.find(tmp_path).name == "step-000000004.pt"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_save_keeps_the_old_one(tmp_path, monkeypatch, failing):
    path = path_of(tmp_path)
    checkpoint.save(path, STATE)

    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        with pytest.raises(OSError, match="Input/output"):
            checkpoint.save(path, STATE | {"steps": 8})
    assert checkpoint.load(path, CPU)["steps"] == 7
    assert names(tmp_path) == [path.name]


def test_the_old_ones_go_only_when_the_new_one_is_on_the_disk(
    tmp_path, folder, monkeypatch
):
    folder.save(STATE, 1)
    folder.save(STATE, 2)
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: (seen.append(names(tmp_path)), sync(n)))
    folder.save(STATE, 3)
    one, two, three = (f"step-00000000{n}.pt" for n in (1, 2, 3))
    assert seen == [[one, two, f"{three}.tmp"], [one, two, three]]
    assert names(tmp_path) == [two, three]


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_small_disk_really_full(small_disk, said):
    folder = Checkpoints(small_disk, 3, said.append)
    state = STATE | {"model": {"w": torch.zeros(100_000)}}  # 0.4 MB
    written = [folder.save(state, step) is not None for step in (1, 2, 3)]
    assert written == [True, True, False]
    assert "No space left on device" in said[0]
    assert names(small_disk) == ["step-000000001.pt", "step-000000002.pt"]
    assert checkpoint.load(small_disk, CPU)["steps"] == 7
    (folder.folder / "step-000000001.pt").unlink()
    assert folder.save(state, 4) is not None
    folder.close()
