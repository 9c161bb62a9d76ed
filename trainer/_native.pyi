"""Types of the compiled module; csrc/encoders and csrc/learner say what they mean.

Tensors are addresses; 0 where one may be missing.
"""

from collections.abc import Sequence

def paths() -> list[str]: ...
def best_path() -> str | None: ...
def cnn_valid(shape: Sequence[int], /) -> bool: ...
def cnn_forward(
    shape: Sequence[int],
    path: str,
    rows: int,
    pixels: int,
    weights: Sequence[int],
    maps: int,
    x: int,
    y: int,
    /,
) -> None: ...
def cnn_backward(
    shape: Sequence[int],
    path: str,
    rows: int,
    pixels: int,
    weights: Sequence[int],
    maps: int,
    x: int,
    y: int,
    dy: int,
    gradients: Sequence[int],
    /,
) -> None: ...
def tiles_forward(
    shape: Sequence[int],
    path: str,
    rows: int,
    frames: int,
    weights: Sequence[int],
    scales: int,
    maps: int,
    x: int,
    y: int,
    /,
) -> None: ...
def tiles_backward(
    shape: Sequence[int],
    path: str,
    rows: int,
    frames: int,
    weights: Sequence[int],
    scales: int,
    maps: int,
    x: int,
    y: int,
    dy: int,
    gradients: Sequence[int],
    /,
) -> None: ...
def decide(
    shape: Sequence[int],
    weights: Sequence[int],
    rows: int,
    features: int,
    levels: int,
    noise: int,
    version: int,
    records: int,
    /,
) -> None: ...
def ppo_head_loss(
    shape: Sequence[int],
    weights: Sequence[int],
    options: tuple[float, float, float, bool, bool],
    targets: Sequence[int],
    rows: int,
    size: int,
    first: int,
    count: int,
    features: int,
    d_features: int,
    gradients: Sequence[int],
    /,
) -> list[float]: ...
def clip_norm(gradients: Sequence[tuple[int, int]], max_norm: float, /) -> float: ...
def muon_scratch(rows: int, columns: int, /) -> int: ...
def muon_step(
    path: str,
    matrices: Sequence[Sequence[int]],
    options: Sequence[float],
    scratch: int,
    /,
) -> None: ...
