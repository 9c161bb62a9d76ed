"""Settings of PyTorch for a run: threads, precision and repeatability."""

from __future__ import annotations

import warnings

import torch

from trainer.config.schema import RunConfig
from trainer.machine.cpu import Shards, available_cores, keep_large_blocks


def set_up_arithmetic(config: RunConfig, device: torch.device) -> Shards:
    """Sets threads and precision of PyTorch for the whole process."""
    if device.type == "cpu":
        keep_large_blocks()
        # Acting uses one thread beside the emulation; learning uses shards.
        torch.set_num_threads(1)
        return Shards(1 if config.serial else _shard_count(config))
    _allow_tf32(config.precision != "fp32")
    # The fastest convolution may add in a different order in every run.
    torch.backends.cudnn.benchmark = config.mode == "async"
    exact = config.mode == "sync"
    torch.backends.cudnn.deterministic = exact
    # For gtrxl, whose gradient these kernels add in any order.
    torch.backends.cuda.enable_mem_efficient_sdp(not exact)
    torch.backends.cuda.enable_cudnn_sdp(not exact)
    return Shards(1)


def _allow_tf32(allowed: bool) -> None:
    """Whether float32 products and convolutions on a GPU round inputs to 11 bits.

    With bf16 and fp16 that is little: the heads, whose features have 8 or 11 bits, and
    Muon, which tolerates it.
    """
    with warnings.catch_warnings():
        # PyTorch 2.9 and some later releases prefer fp32_precision. But after it is
        # set, torch.compile fails there, because it still reads allow_tf32.
        warnings.filterwarnings("ignore", "Please use the new API settings")
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def _shard_count(config: RunConfig) -> int:
    """CPU threads of the learner; by default each gets at least 64 rows.

    With fewer rows, starting and joining the shards costs more than they save.
    """
    learner = config.learner
    useful = max(1, learner.minibatch_size // 64)
    return learner.learner_threads or min(available_cores(), useful)
