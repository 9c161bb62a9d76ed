"""Types of the compiled module for tests and benches; no wheel has it."""

import numpy as np
import numpy.typing as npt

from ._core import _EnvPool, _EnvSpec

class _CountingEnvSpec(_EnvSpec): ...
class _CountingEnvPool(_EnvPool): ...

class FlatCpu:
    def __init__(self) -> None: ...
    @property
    def memory(self) -> npt.NDArray[np.uint8]: ...
    def step(
        self, pc: int, a: int, x: int, y: int, sp: int, p: int
    ) -> tuple[int, int, int, int, int, int, int]: ...
