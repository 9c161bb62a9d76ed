"""How PyTorch computes in a run: threads, precision, and what is repeatable."""

from __future__ import annotations

import torch

from trainer.config.schema import RunConfig
from trainer.machine.cpu import Shards, available_cores, keep_large_blocks


def set_up_arithmetic(config: RunConfig, device: torch.device) -> Shards:
    """Sets threads and precision of PyTorch for the whole process.

    Args:
        config: of the run.
        device: of the learner.

    Returns:
        The threads of the learner, which are the caller's to close.
    """
    if device.type == "cpu":
        keep_large_blocks()
        # Acting is one thread beside the emulation; learning has shards.
        torch.set_num_threads(1)
        return Shards(1 if config.serial else _shard_count(config))
    torch.set_float32_matmul_precision("high")  # TF32, as cuDNN's by default
    # The fastest convolution may add in another order every time.
    torch.backends.cudnn.benchmark = config.mode == "async"
    exact = config.mode == "sync"
    torch.backends.cudnn.deterministic = exact
    # For gtrxl: its gradient is added up in any order.
    torch.backends.cuda.enable_mem_efficient_sdp(not exact)
    torch.backends.cuda.enable_cudnn_sdp(not exact)
    return Shards(1)


def _shard_count(config: RunConfig) -> int:
    """CPU threads of the learner; by default none gets fewer than 64 rows.

    Below that, starting and joining the shards costs more than they save.
    """
    learner = config.learner
    useful = max(1, learner.minibatch_size // 64)
    return learner.learner_threads or min(available_cores(), useful)
