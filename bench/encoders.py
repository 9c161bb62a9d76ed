"""Microseconds per row of an encoder on one CPU thread: PyTorch and native code.

    python bench/encoders.py [--rows 32 256] [--seconds 2] [--all-paths]

Both run the same module under bfloat16 autocast, in turns, so that other load on the
machine affects both; the bench reports the shortest time of each. `forward` is acting
(without gradients), `both` is learning (forward and backward pass).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from trainer.config.schema import TILES_ROWS, TILES_SHAPE, ModelConfig
from trainer.models.encoders import build_encoder
from trainer.models.native import PATHS, features_of

SHAPES = {
    "cnn-72k": (4, 40, 40),
    "tiles": TILES_SHAPE,
    "cnn-157k": (4, 84, 84),
    "cnn-345k": (4, 84, 84),
}


def images_for(name: str, rows: int) -> Tensor:
    """Random images (rows, C, H, W) uint8; codes of tiles are below 32."""
    images = torch.randint(0, 256, (rows, *SHAPES[name]), dtype=torch.uint8)
    if name == "tiles":
        images[:, :, :TILES_ROWS] %= 32
        images.view(rows, -1)[:, TILES_ROWS * 16 :: 6] %= 32
    return images


def timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def compared(encoder: nn.Module, images: Tensor, path: str, seconds: float) -> str:
    """One line: PyTorch and native, for the forward pass and for both passes."""
    weights = list(encoder.parameters())
    dy: Tensor | None = None

    def torch_forward() -> Tensor:
        result: Tensor = encoder(images.to(torch.bfloat16))
        return result.float()

    def native_forward() -> Tensor:
        result = features_of(encoder, images, path)
        assert result is not None
        return result

    def both(forward: Callable[[], Tensor]) -> None:
        torch.autograd.grad(forward(), weights, dy)

    cells = []
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        dy = torch.randn_like(native_forward()) / len(images)
        for learning in (False, True):
            ways = [torch_forward, native_forward]
            least = [float("inf")] * 2
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for i, forward in enumerate(ways):
                    with torch.set_grad_enabled(learning):
                        work = partial(both, forward) if learning else forward
                        spent = timed(work)
                    least[i] = min(least[i], spent)
            theirs, ours = (t * 1e6 / len(images) for t in least)
            cells.append(f"{theirs:8.2f} {ours:8.2f} {theirs / ours:6.1f}x")
    return " |".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--models", nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--all-paths", action="store_true", help="measure all instruction sets"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    paths = PATHS if args.all_paths else PATHS[-1:]
    print(
        "us/row, minima".ljust(36) + "forward: torch, native    | both:   torch, native"
    )
    for name in args.models:
        encoder, _ = build_encoder(ModelConfig(name=name), SHAPES[name])
        for rows in args.rows:
            images = images_for(name, rows)
            for path in paths:
                line = compared(encoder, images, path, args.seconds)
                print(f"{name:10s}{rows:5d} rows {path:14s} {line}", flush=True)


if __name__ == "__main__":
    main()
