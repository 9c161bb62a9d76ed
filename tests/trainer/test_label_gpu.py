"""Whole runs on a GPU of labels (tests/support/label_gpu) have no race.

Each run is the trainer as it is, on a fake pool or with the game. What its operators,
streams, events, threads and locks leave unordered is reported.

The labels find what they were made for: in commit b24f324, with lag 1, they report that
the collecting thread drops rows (`Rows.acting` of batch 0) that its stream may still
read, and the environments of these rows with a memory; today's runs have neither.
"""

from contextlib import closing

import pytest
from label_gpu import build
from label_gpu.client import LabelGpu
from label_gpu.table import SETTINGS, table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(build.missing()), reason=build.missing()),
]

REPLAY = {"replay_share": 0.25, "replay_capacity": 16}
ASYNC = {"mode": "async"}
NO_GRAPHS = {"cuda_graphs": False}
RUNS = {
    "in turns": {"lag": 0},
    "lag 1": {"lag": 1},
    "lag 2": {"lag": 2},
    "async, in turns": {"lag": 0} | ASYNC,
    "async, lag 1": {"lag": 1} | ASYNC,
    "async, lag 2": {"lag": 2} | ASYNC,
    "no graphs": {"lag": 1} | NO_GRAPHS,
    "async, no graphs": {"lag": 2} | ASYNC | NO_GRAPHS,
    "gru": {"lag": 1, "memory": "gru"},
    "gtrxl": {"lag": 1, "memory": "gtrxl"},
    "async, gru, impala": {"lag": 1, "memory": "gru", "loss": "impala"} | ASYNC,
    "impala": {"lag": 1, "loss": "impala"},
    "impala's network": {"lag": 1, "loss": "impala", "model": "impala"},
    "replay": {"lag": 1} | REPLAY,
    "async, replay, impala": {"lag": 2, "loss": "impala"} | ASYNC | REPLAY,
    "burn-in": {"lag": 1, "memory": "gru", "burn_in": 4} | REPLAY,
    "popart": {"lag": 1, "popart": True},
    "noise": {"lag": 1, "noisy": True},
    "augmentation": {"lag": 1, "augment": ["shift", "brightness"]},
    "bf16": {"lag": 1, "precision": "bf16"},
    "fp16": {"lag": 1, "precision": "fp16"},
    "muon, average": {"lag": 2, "optimizer": "muon", "ema": 0.99},
    "everything": {
        "lag": 2, "loss": "impala", "memory": "gru", "popart": True, "noisy": True,
        "precision": "bf16", "augment": ["shift"],
    } | ASYNC | REPLAY,
}  # fmt: skip
# What each planted fault is reported as.
PLANTED = {
    "record_stream": "use after free",
    "rows": "use after free",
    "fence": "race",
    "weights": "race",
    "copy": "race",
    "item": "capture",
    "cpu_tensor": "device",
}


@pytest.fixture(scope="module")
def gpu():
    with closing(LabelGpu()) as gpu:
        yield gpu


def check(result, *, graphs=True):
    """Nothing is reported, and what should be recorded as graphs is."""
    assert not result.text, result.text
    about_graphs = [line for line in result.values["warnings"] if "graph" in line]
    assert not (graphs and about_graphs)
    replays = sum(counts.get("replays", 0) for counts in result.counts.values())
    assert bool(replays) == graphs


@pytest.mark.parametrize("name", RUNS)
def test_a_run(gpu, name):
    options = RUNS[name]
    result = gpu.run(**options)
    # The scaler of fp16 asks the host, so only acting is recorded.
    if name == "fp16":
        result.values["warnings"].clear()
    check(result, graphs="no graphs" not in name)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_resumed_run(gpu, lag):
    result = gpu.run(how={"resumed_after": 50}, lag=lag)
    check(result)
    assert result.values["steps"] >= 110


@pytest.mark.rom
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_game_with_videos(gpu, mode):
    """Its pool has slabs, which are page-locked and copied in place."""
    result = gpu.run(how={"game": True}, lag=1, mode=mode, max_steps=200)
    check(result)
    assert result.values["videos"]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_fault(gpu, plant):
    assert gpu.run(plant, lag=1).kinds == {PLANTED[plant]}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_resumed_run_without_an_announcement(gpu, memory):
    """The rows are restored in the default stream, before there is any other."""
    how = {"resumed_after": 50}
    assert gpu.run("rows", how, lag=0, memory=memory).kinds == {"use after free"}


def test_a_store_that_grows_without_an_announcement(gpu):
    result = gpu.play("frames_of_a_store_that_grows", "frames")
    assert result.kinds == {"use after free"}


# Copies and launches of a recv in which no unroll closes; copies, launches and waits
# of an update. They may only fall.
MOST = {
    "gpu, async, lag 1": ([3, 10], [1, 292, 1]),
    "gpu-impala, no replay": ([3, 10], [1, 240, 1]),
    "gpu-impala": ([3, 10], [3, 240, 1]),
}


def test_counts(gpu):
    """`python -m label_gpu.table --details` prints which lines launch what."""
    counts = {name: gpu.count(*of) for name, of in SETTINGS.items()}
    assert not any(result.text for result in counts.values())
    for name, result in counts.items():
        recv, update = result.values["recv"], result.values["update"]
        most = [*MOST[name][0], *MOST[name][1]]
        too_many = [a > b for a, b in zip([*recv[:2], *update], most, strict=True)]
        assert not any(too_many), f"at most {most} in\n{table(counts)}"


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        ("race_without_a_wait", "race"),
        ("event_is_waited_for", ""),
        ("race_with_work_after_the_event", "race"),
        ("rows_are_separate", ""),
        ("columns_are_separate", ""),
        ("host_changes_a_part_of_a_buffer", "host"),
        ("race_of_one_row", "race"),
        ("use_after_free", "use after free"),
        ("memory_is_announced", ""),
        ("use_after_free_of_a_graph", "use after free"),
        ("graph_is_replayed", ""),
        ("capture_of_a_mask", "capture"),
        ("device_of_an_index", "device"),
        ("host_changes_what_is_copied", "host"),
        ("source_is_changed_after_the_copy", ""),
        ("host_reads_too_early", "host"),
        ("host_reads_after_the_event", ""),
        ("thread_hands_over", ""),
        ("race_with_a_thread", "race"),
        ("frames_of_a_store_that_grows", ""),
        ("array_is_held_until_it_is_copied", ""),
        ("slab_is_copied_in_place", ""),
        ("host_reuses_a_slab_too_early", "host"),
        ("gradients_are_those_of_a_cpu", ""),
    ],
)
def test_the_labels(gpu, scenario, kind):
    """Short right and wrong uses of the device (scenarios.py)."""
    result = gpu.play(scenario)
    assert not result.error, result.text
    assert result.kinds == ({kind} if kind else set()), result.text
