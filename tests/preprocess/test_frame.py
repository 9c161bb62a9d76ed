"""Frames from palette indices: bit-exact against NumPy, close to OpenCV."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from mario_envpool import _core, _testing

ROWS, COLUMNS, HUD_ROWS = 240, 256, 32
PATHS = _testing.preprocess_paths()
PALETTE_RGB = _core.preprocess_palette()


def luma_table() -> np.ndarray:
    """(64,): Rec. 601 in 14-bit fixed point, as OpenCV's RGB2GRAY rounds it."""
    r, g, b = PALETTE_RGB.astype(np.int64).T
    return ((r * 4899 + g * 9617 + b * 1868 + 8192) >> 14).astype(np.uint8)


def axis_weights(size_in: int, size_out: int) -> np.ndarray:
    """(size_out, size_in): integer overlaps of source and output pixels."""
    divisor = math.gcd(size_in, size_out)
    units_in, units_out = size_in // divisor, size_out // divisor
    edges_in = np.arange(size_in + 1) * units_out
    edges_out = np.arange(size_out + 1) * units_in
    end = np.minimum(edges_out[1:, None], edges_in[None, 1:])
    begin = np.maximum(edges_out[:-1, None], edges_in[None, :-1])
    return np.clip(end - begin, 0, None)


def twin(
    indices: np.ndarray,
    previous: np.ndarray | None,
    height: int,
    width: int,
    gray: bool,
    area: bool,
    hud: str,
) -> np.ndarray:
    """The same arithmetic in NumPy."""
    table = luma_table()[:, None] if gray else PALETTE_RGB
    picture = table[indices]
    if previous is not None:
        picture = np.maximum(picture, table[previous])
    if hud == "mask":
        picture = picture.copy()
        picture[:HUD_ROWS] = 0
    if hud == "crop":
        picture = picture[HUD_ROWS:]
    picture = picture.transpose(2, 0, 1).astype(np.int64)
    rows, columns = picture.shape[1:]
    if not area:
        y = np.arange(height) * rows // height
        x = np.arange(width) * columns // width
        return picture[:, y][:, :, x].astype(np.uint8)
    vertical, horizontal = axis_weights(rows, height), axis_weights(columns, width)
    total = int(vertical[0].sum() * horizontal[0].sum())
    sums = vertical @ picture @ horizontal.T
    return ((sums + total // 2) // total).astype(np.uint8)


def random_picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (ROWS, COLUMNS), np.uint8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("height", "width"),
    [
        (84, 84),
        (64, 64),
        (32, 32),
        (72, 72),
        (96, 96),
        (240, 256),
        (1, 1),
        (83, 101),
        (100, 33),
        (50, 250),
    ],
)
@pytest.mark.parametrize("hud", ["keep", "mask", "crop"])
@pytest.mark.parametrize("gray", [True, False])
def test_area_equals_numpy(
    path: str, height: int, width: int, hud: str, gray: bool
) -> None:
    if hud == "crop" and height > ROWS - HUD_ROWS:
        height = ROWS - HUD_ROWS
    now, before = random_picture(1), random_picture(2)
    for previous in (None, before):
        got, _ = _testing.preprocess_frame(
            now, previous, height, width, gray, True, hud, path
        )
        want = twin(now, previous, height, width, gray, True, hud)
        assert np.array_equal(got, want)


@pytest.mark.parametrize(("height", "width"), [(84, 84), (300, 512), (240, 256)])
@pytest.mark.parametrize("hud", ["keep", "mask", "crop"])
@pytest.mark.parametrize("gray", [True, False])
def test_nearest_equals_numpy(height: int, width: int, hud: str, gray: bool) -> None:
    now, before = random_picture(3), random_picture(4)
    for previous in (None, before):
        got, _ = _testing.preprocess_frame(
            now, previous, height, width, gray, False, hud
        )
        want = twin(now, previous, height, width, gray, False, hud)
        assert np.array_equal(got, want)


def test_extreme_pictures_do_not_overflow() -> None:
    white = np.full((ROWS, COLUMNS), 0x30, np.uint8)
    black = np.full((ROWS, COLUMNS), 0x0F, np.uint8)
    for path in PATHS:
        for height, width in ((84, 84), (239, 255), (1, 1)):
            got, _ = _testing.preprocess_frame(
                white, None, height, width, True, True, "keep", path
            )
            assert (got == luma_table()[0x30]).all()
            got, _ = _testing.preprocess_frame(
                black, None, height, width, True, True, "keep", path
            )
            assert (got == 0).all()


def test_usual_size_takes_the_chosen_path() -> None:
    for path in PATHS:
        _, taken = _testing.preprocess_frame(
            random_picture(5), None, 84, 84, True, True, "keep", path
        )
        assert taken == path
    assert _core.cpu_path() == PATHS[-1]


@pytest.mark.parametrize("value", ["scalar", "avx2", "avx512", "fast"])
def test_the_environment_chooses_the_path(value: str) -> None:
    program = """if True:
        import numpy as np
        from mario_envpool import _core, _testing
        picture = (np.arange(240 * 256, dtype=np.uint8) % 64).reshape(240, 256)
        _, taken = _testing.preprocess_frame(picture)
        print(taken, _core.cpu_path(), _core.nes_cpu_path(), sep=",")
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MARIO_CPU": value},
        capture_output=True,
        text=True,
        check=False,
    )
    if value == "fast":
        assert "MARIO_CPU=fast is not possible; choose scalar, avx2" in done.stderr
    elif done.returncode:
        assert "this CPU has no such instructions" in done.stderr
        assert not any(path.startswith(value) for path in PATHS)
    else:
        taken, resizing, drawing = done.stdout.strip().split(",")
        assert taken == resizing
        assert resizing.startswith(value) or value == "avx512"
        assert drawing == ("scalar" if value == "scalar" else "avx2")


@pytest.mark.parametrize(("height", "width"), [(84, 84), (64, 96), (120, 128)])
def test_within_one_grey_level_of_opencv(height: int, width: int) -> None:
    cv2 = pytest.importorskip("cv2")
    for seed in range(3):
        indices = random_picture(seed)
        gray = cv2.cvtColor(PALETTE_RGB[indices], cv2.COLOR_RGB2GRAY)
        want = cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)
        got, _ = _testing.preprocess_frame(indices, None, height, width)
        assert np.abs(got[0].astype(int) - want.astype(int)).max() <= 1


def test_luma_equals_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    gray = cv2.cvtColor(PALETTE_RGB[None], cv2.COLOR_RGB2GRAY)[0]
    assert np.array_equal(gray, luma_table())


def test_area_does_not_enlarge() -> None:
    picture = random_picture(6)
    with pytest.raises(ValueError, match=r"area resize only shrinks: 300 x 84"):
        _testing.preprocess_frame(picture, None, 300, 84)
    with pytest.raises(ValueError, match=r"picture of 208 x 256"):
        _testing.preprocess_frame(picture, None, 240, 84, hud="crop")
    with pytest.raises(ValueError, match=r"outside 1 to 1024"):
        _testing.preprocess_frame(picture, None, 0, 84)
