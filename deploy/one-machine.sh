#!/usr/bin/env bash
# Trains with all GPUs of this machine, one process per GPU, and resumes the run if a
# process is killed:
#
#     deploy/one-machine.sh --levels all --run-dir runs/all
#
# The arguments are flags of `python -m trainer.run` and override those set here. GPUS=2
# uses two GPUs. Environments and batches are those of the preset gpu-impala for one GPU,
# times the number of GPUs.
set -euo pipefail
gpus=${GPUS:-$(python -c 'import torch; print(torch.cuda.device_count())')}
if [ "$gpus" -lt 1 ]; then
    echo "error: this machine has no GPU; without a GPU use: python -m trainer.run" >&2
    exit 2
fi
exec torchrun --standalone --nproc-per-node "$gpus" --max-restarts 20 -m trainer.run \
    --preset gpu-impala --num-envs $((1024 * gpus)) \
    --unrolls-per-batch $((256 * gpus)) --minibatch-size $((2048 * gpus)) "$@"
