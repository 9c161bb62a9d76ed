#!/usr/bin/env bash
# All checks that need a GPU machine, in one call: builds, runs the GPU tests, measures
# the trainer, and trains on level 1-1. Needs no network if PyTorch with CUDA and the
# other requirements are installed or available as wheels in a folder:
#
#   bench/gpu.sh [RESULTS [WHEELS]]
#
# RESULTS (default gpu-results/) gets one log per part and the run's folder. After a
# failed part the other parts still run; the exit status is 1 if any part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
RESULTS="${1:-gpu-results}"
WHEELS="${2:-}"
mkdir -p "$RESULTS"
FAILED=0

part() {
  local name="$1" start=$SECONDS
  shift
  echo "=== $name: $*"
  "$@" 2>&1 | tee "$RESULTS/$name.log"
  local status=${PIPESTATUS[0]}
  echo "=== $name: status $status, $((SECONDS - start)) s"
  [[ $status == 0 ]] || FAILED=1
}

if [[ -n $WHEELS ]]; then
  part wheels "$PYTHON" -m pip install -q --no-index --find-links "$WHEELS" \
    torch envpool gymnasium nes-py gym-super-mario-bros pybind11 numpy tensorboard \
    tyro rich wandb psutil nvidia-ml-py pillow matplotlib imageio-ffmpeg \
    pytest pytest-timeout pytest-xdist hypothesis cmake ninja
fi
part build "$PYTHON" -m pip install -q --no-build-isolation --no-deps -e .
part report "$PYTHON" -m mario_envpool
# In one process they take more than 150 s on an H100.
part tests "$PYTHON" -m pytest -q -n 6 -rf --tb=short --junitxml "$RESULTS/tests.xml" \
  tests/trainer/test_gpu.py tests/trainer/test_vtrace.py
for device in cuda cpu; do
  part "profile-$device" "$PYTHON" -m trainer.run --profile 2 --max-seconds 20 \
    --device "$device" --run-dir "$RESULTS/profile-$device"
done
part learner "$PYTHON" bench/learner.py --models impala nature \
  --preset gpu-impala --replay-shares 0 0.5 --seconds 2 --repeats 3 --json
part timeline "$PYTHON" bench/learner.py --timeline "$RESULTS/timeline.png"
part train "$PYTHON" -m trainer.run --max-seconds 300 --run-dir "$RESULTS/run"
part overlap "$PYTHON" -m trainer.run --max-seconds 300 --lag 1 --run-dir "$RESULTS/lag"
part impala "$PYTHON" -m trainer.run --max-seconds 120 --preset gpu-impala \
  --run-dir "$RESULTS/impala"
exit "$FAILED"
