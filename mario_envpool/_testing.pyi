"""Types of the compiled module for tests and benches; no wheel has it."""

import numpy as np
import numpy.typing as npt

from ._core import Console, _EnvPool, _EnvSpec

class _CountingEnvSpec(_EnvSpec): ...
class _CountingEnvPool(_EnvPool): ...

def opcode_table() -> list[tuple[str, str, int, int, bool]]: ...
def preprocess_frame(
    indices: npt.NDArray[np.uint8],
    previous: npt.NDArray[np.uint8] | None = None,
    height: int = 84,
    width: int = 84,
    gray: bool = True,
    area: bool = True,
    hud: str = "keep",
    path: str = "",
) -> tuple[npt.NDArray[np.uint8], str]: ...
def preprocess_paths() -> list[str]: ...

class CheckedConsole(Console):
    def __init__(
        self, rom: bytes, timing: str = "console", checks: bool = True
    ) -> None: ...
    @property
    def translated_runs(self) -> int: ...
    @property
    def translated_share(self) -> float: ...

class FlatCpu:
    def __init__(self) -> None: ...
    @property
    def memory(self) -> npt.NDArray[np.uint8]: ...
    def step(
        self, pc: int, a: int, x: int, y: int, sp: int, p: int
    ) -> tuple[int, int, int, int, int, int, int]: ...
