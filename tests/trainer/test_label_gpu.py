"""Whole runs on a GPU of labels (tests/support/label_gpu) have no race.

Each run is the trainer as it is, on a fake pool; everything that its operators,
streams, events, threads and locks leave unordered is reported.
"""

import pytest
from label_gpu import build
from label_gpu.client import LabelGpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(build.missing()), reason=build.missing()),
]


@pytest.fixture(scope="module")
def gpu():
    with LabelGpu() as gpu:
        yield gpu


def test_a_run_has_no_race(gpu):
    result = gpu.run(lag=1)
    assert not result.text, result.text


def test_a_fault_is_found(gpu):
    assert gpu.run("record_stream", lag=1).kinds == {"use after free"}
