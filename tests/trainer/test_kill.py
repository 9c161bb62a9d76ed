"""A run that is killed again and again ends like one that never was.

MARIO_KILLS=20 kills it 20 times instead of twice.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from small_runs import CPU, differences, essence, read_points

from trainer.models import checkpoint
from trainer.run import main

KILLS = int(os.environ.get("MARIO_KILLS", "2"))
STEPS = 3_200  # 100 updates

# A checkpoint and a line after every update, so that kills meet them half-way.
OPTIONS = (
    "--device cpu --num-envs 4 --unroll 8 --unrolls-per-batch 4 --minibatch-size 16 "
    "--epochs 1 --noop-max 4 --max-episode-steps 40 --no-stop-when-solved "
    f"--max-steps {STEPS} --log-seconds 0 --checkpoint-seconds 0 --dashboard off"
).split()
KINDS = {
    "in turns": [],
    "overlapped, replay, memory": (
        "--lag 1 --memory gru --memory-size 16 --replay-share 0.5 --replay-capacity 9 "
        "--checkpoint-replay --unrolls-per-batch 8 --learner-threads 1"
    ).split(),
}


def start(folder, arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.run", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_after(process, step, delay):
    """Kills a run once it has told of a step; gives what it printed."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.match(r" *([\d,]+) steps \|", line)
        if found and int(found[1].replace(",", "")) >= step:
            break
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "".join(lines)
    process.stdout.close()
    return "".join(lines)


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
@pytest.mark.parametrize(
    "kind", [pytest.param("in turns", marks=pytest.mark.nightly), [*KINDS][1]]
)
def test_kills_at_random_moments_change_nothing(tmp_path, kind):
    options = [*OPTIONS, *KINDS[kind]]
    whole = tmp_path / "whole"
    assert main([*options, "--num-threads", "1", "--run-dir", str(whole)]) == 0

    rng = random.Random(kind)
    moments = sorted(rng.uniform(0, 0.8 * STEPS) for _ in range(KILLS))
    for number, moment in enumerate(moments):
        begun = list(tmp_path.glob("runs/*/checkpoints/*.pt"))
        again = ["--resume", "auto"] if begun else options
        # The number of emulation threads does not matter to anything.
        threads = str(1 + number % 2)
        process = start(tmp_path, [*again, "--num-threads", threads])
        output = kill_after(process, moment, rng.uniform(0, 0.05))
        assert ("resumed from" in output) == bool(begun)
    process = start(tmp_path, ["--resume", "auto"])
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "new episodes" not in output

    run_dir = max(tmp_path.glob("runs/*"), key=os.path.getmtime)
    assert checkpoint.load(run_dir, CPU)["steps"] >= STEPS
    assert differences(essence(whole), essence(run_dir)) == []
    steps = [row["step"] for row in read_points(run_dir)]
    assert steps == [row["step"] for row in read_points(whole)]
