"""Fixtures for tests of the trainer."""

import gc
import subprocess
from contextlib import nullcontext

import pytest
import torch
from fake_pools import FakePool
from small_runs import use_pools

from trainer.session import training


@pytest.fixture(scope="session", autouse=True)
def frozen_once():
    """Freezes pytest's objects once: a collection of them costs each run 0.3 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "startup_objects_frozen", nullcontext)
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


@pytest.fixture
def fake_pool():
    return FakePool


@pytest.fixture
def pools(monkeypatch):
    """Makes runs use fake pools; gives the list of them."""
    return use_pools(monkeypatch, FakePool)


@pytest.fixture
def small_disk(tmp_path, request):
    """A real file system of as much memory as the test's parameter says."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if mounted.returncode:
        pytest.skip(f"may not mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
