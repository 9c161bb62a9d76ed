"""Some thousand calls of any kind to every native entry; native_calls.py makes more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mario_envpool import _core, _testing


@pytest.mark.parametrize("seed", [1, 2])
def test_any_call_is_answered_or_refused(seed: int) -> None:
    """In a process of its own, which a crash would end."""
    script = Path(__file__).with_name("native_calls.py")
    command = [sys.executable, "-X", "faulthandler", str(script)]
    subprocess.run(
        [*command, "--calls", "3000", "--seed", str(seed)], check=True, timeout=250
    )


@pytest.mark.parametrize("pixel", [64, 255])
def test_a_picture_beyond_the_palette_is_refused(pixel: int) -> None:
    picture = np.zeros((240, 256), np.uint8)
    picture[239, 255] = pixel
    with pytest.raises(ValueError, match="palette indices, which are 0 to 63"):
        _testing.preprocess_frame(picture)
    with pytest.raises(ValueError, match="palette indices"):
        _testing.preprocess_frame(picture * 0, picture)


@pytest.mark.parametrize("value", [2.0, 1 << 40, 1j, [[1.5]], None])
def test_a_picture_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="must be an array of dtype uint8"):
        _testing.preprocess_frame(value)  # type: ignore[arg-type]


def test_an_unknown_register_is_named() -> None:
    import rom_builder

    console = _core.Console(rom_builder.stand_in())
    with pytest.raises(ValueError, match="no CPU register q"):
        console.set_registers(q=1)


@pytest.mark.parametrize("label", [b"\xff", 3, None, ["x"]])
def test_text_of_another_type_is_refused(label: object) -> None:
    """Bytes were taken, and could not be read back."""
    keys = _testing._CountingEnvSpec._config_keys
    values = list(_testing._CountingEnvSpec._default_config_values)
    values[keys.index("label")] = label
    with pytest.raises(TypeError, match="config label must be a str"):
        _testing._CountingEnvSpec(tuple(values))
