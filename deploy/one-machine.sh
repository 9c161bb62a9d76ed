#!/usr/bin/env bash
# Trains with all GPUs of this machine, a process each, and goes on after a killed one:
#
#     deploy/one-machine.sh --levels all --run-dir runs/all
#
# What follows are flags of `python -m trainer.run`; they come last and win. GPUS=2 takes
# as many. Environments and batches are those that one GPU has, times the GPUs.
set -euo pipefail
gpus=${GPUS:-$(python -c 'import torch; print(torch.cuda.device_count())')}
if [ "$gpus" -lt 1 ]; then
    echo "error: no GPU here; without one: python -m trainer.run" >&2
    exit 2
fi
exec torchrun --standalone --nproc-per-node "$gpus" --max-restarts 20 -m trainer.run \
    --num-envs $((1024 * gpus)) --unrolls-per-batch $((256 * gpus)) \
    --minibatch-size $((2048 * gpus)) "$@"
