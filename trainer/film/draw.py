"""The panel beside the game's picture, and videos of both.

The panel shows the pad, the policy's probabilities and the score. All sizes are in
pixels of the game's picture and are multiplied by the scale, so the panel looks the
same at every size. The ffmpeg that imageio-ffmpeg includes encodes the pictures.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mario_envpool import _core, nes
from mario_envpool.env import FRAMES_PER_SECOND
from trainer.config.schema import TILES_SHAPE
from trainer.envs.pool import tiles_picture
from trainer.film.filmed_env import HEIGHT, WIDTH, Picture, Reading, Shot
from trainer.machine.files import make_folder

Colour = tuple[int, int, int]

# A dark panel, one accent, and a colour each for good and bad endings.
BACKGROUND: Colour = (20, 22, 28)
SURFACE: Colour = (38, 42, 52)
MUTED: Colour = (139, 147, 163)
TEXT: Colour = (233, 236, 242)
ACCENT: Colour = (255, 176, 46)
BAR: Colour = (90, 116, 168)
ENDINGS: dict[str, Colour] = {
    "cleared": (62, 190, 108),
    "died": (228, 74, 74),
    "stopped": (139, 147, 163),
}

# In pixels of the game's picture: 128 x 240 beside its 256 x 240.
PANEL_WIDTH = 128
_MARGIN = 8
_MAX_BARS = 12
_TITLE, _BODY = 10, 6.5

# Every browser, chat and player shows H.264 with 4:2:0 chroma. The colour tags keep
# players from guessing by the size of the picture, and faststart lets them begin
# before the whole file has arrived.
_MP4 = (
    *("-vf", "scale=out_color_matrix=bt709:out_range=tv"),
    *("-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"),
    *("-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p"),
    *("-movflags", "+faststart"),
)
# Pixel art must not be dithered; unchanged rectangles are left out.
_GIF = ("-filter_complex", "[0][1]paletteuse=dither=none:diff_mode=rectangle")

_GET_FFMPEG = (
    "imageio-ffmpeg includes one (pip install --force-reinstall imageio-ffmpeg), or "
    "set IMAGEIO_FFMPEG_EXE to the path of yours"
)


@functools.cache
def font(size: float, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib includes."""
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(folder / name), size)


def gif_palette() -> Picture:
    """The 256 colours of a GIF, (16, 16, 3): the console's 64, and the panel's."""
    colours = [tuple(map(int, c)) for c in _core.preprocess_palette()]
    colours += [(v, v, v) for v in range(4, 256, 8)]  # for the network's observation
    inks = (TEXT, MUTED, ACCENT, BAR, *ENDINGS.values())
    for ground in (BACKGROUND, SURFACE):
        for ink in (*inks, BACKGROUND if ground == SURFACE else SURFACE):
            for k in range(1, 10):
                mixed = (
                    round(a + (b - a) * k / 9) for a, b in zip(ground, ink, strict=True)
                )
                colours.append(tuple(mixed))
    colours += [BACKGROUND] * (256 - len(colours))
    return np.array(colours[:256], np.uint8).reshape(16, 16, 3)


def enlarge(picture: Picture, scale: int) -> Picture:
    """Repeats every pixel scale x scale times; (H, W, 3) or (H, W)."""
    # Rows last, because whole rows are copied: four times as fast as rows first.
    return picture.repeat(scale, axis=1).repeat(scale, axis=0)


class Panel:
    """Draws readings as pictures, each (240 * scale, 128 * scale, 3) uint8."""

    def __init__(self, scale: int) -> None:
        self._scale = scale
        self._width, self._height = PANEL_WIDTH * scale, HEIGHT * scale

    def draw(self, reading: Reading) -> Picture:
        """Draws one reading."""
        self._image = Image.new("RGB", (self._width, self._height), BACKGROUND)
        self._pen = ImageDraw.Draw(self._image)
        self._title(reading)
        pad = controller(reading.buttons, self._scale)
        self._image.paste(pad, (self._px(_MARGIN), self._px(34)))
        if reading.probabilities is None:
            self._text(_MARGIN, 87, reading.names[reading.action], TEXT)
        else:
            self._bars(reading, reading.probabilities)
        self._numbers(reading)
        if reading.obs is not None:
            self._views(reading.obs)
        return np.asarray(self._image)

    def _px(self, units: float) -> int:
        return round(units * self._scale)

    def _box(self, *edges: float) -> tuple[int, ...]:
        return tuple(self._px(edge) for edge in edges)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        colour: Colour,
        *,
        size: float = _BODY,
        bold: bool = False,
        anchor: str = "ls",
    ) -> None:
        """Writes text on a baseline; with the anchor "rs" it ends at x."""
        where = (self._px(x), self._px(y))
        kind = font(self._scale * size, bold)
        self._pen.text(where, text, fill=colour, font=kind, anchor=anchor)

    def _title(self, reading: Reading) -> None:
        title = reading.level if "-" not in reading.level else f"Level {reading.level}"
        self._text(_MARGIN, 16, title, TEXT, size=_TITLE, bold=True)
        self._text(_MARGIN, 27, reading.caption, MUTED)
        if not reading.ending:
            return
        size = self._scale * _BODY
        width = font(size, True).getlength(reading.ending) / self._scale + 10
        right = PANEL_WIDTH - _MARGIN
        self._pen.rounded_rectangle(
            self._box(right - width, 6.5, right, 18),
            radius=self._px(3),
            fill=ENDINGS[reading.ending],
        )
        middle = right - width / 2
        self._text(middle, 14.5, reading.ending, BACKGROUND, bold=True, anchor="ms")

    def _bars(self, reading: Reading, odds: npt.NDArray[np.float32]) -> None:
        """The policy's probabilities; at most the twelve most probable actions."""
        shown = range(len(odds))
        if len(odds) > _MAX_BARS:
            shown = np.sort(np.argsort(-odds)[:_MAX_BARS]).tolist()
        row = min(11.0, 84 / len(shown))
        left, right = 50, PANEL_WIDTH - _MARGIN - 22
        for i, action in enumerate(shown):
            base = 80 + row * (i + 0.72)
            taken = action == reading.action
            name = reading.names[action]
            size = min(_BODY, row * 0.8)
            ink = ACCENT if taken else TEXT
            self._text(_MARGIN, base, name, ink, size=size, bold=taken)
            length = (right - left) * float(odds[action])
            top = base - 0.5 * row
            self._pen.rectangle(self._box(left, top, right, base), fill=SURFACE)
            if self._px(length) >= 1:
                box = self._box(left, top, left + length, base)
                self._pen.rectangle(box, fill=ACCENT if taken else BAR)
            share = f"{odds[action]:.0%}"
            edge = PANEL_WIDTH - _MARGIN
            self._text(edge, base, share, ink, size=size, anchor="rs")

    def _numbers(self, reading: Reading) -> None:
        cells = [("return", f"{reading.total:.2f}")]
        if reading.value is not None:
            cells.append(("value", f"{reading.value:.2f}"))
        cells += [("step", f"{reading.step}"), ("x", f"{reading.x}")]
        for i, (name, text) in enumerate(cells):
            x = _MARGIN + (PANEL_WIDTH - 2 * _MARGIN) * (i % 2) / 2
            y = 176 + 11 * (i // 2)
            self._text(x, y, name, MUTED)
            self._text(x + 24, y, text, TEXT, bold=True)

    def _views(self, obs: Picture) -> None:
        """The newest frames of the observation, oldest on the left."""
        views = [tiles_picture(obs)] if obs.shape == TILES_SHAPE else list(obs)
        count = min(4, len(views))
        gap = 2
        width = (PANEL_WIDTH - 2 * _MARGIN - 3 * gap) / 4
        rows, columns = views[0].shape[:2]
        size = (self._px(width), self._px(width * rows / columns))
        self._text(_MARGIN, 202, "what the network sees", MUTED)
        for i, view in enumerate(views[-count:]):
            picture = Image.fromarray(view).resize(size, Image.Resampling.NEAREST)
            x = _MARGIN + i * (width + gap)
            self._image.paste(picture.convert("RGB"), (self._px(x), self._px(206)))


class Camera:
    """Turns shots into the pictures of a video, at a lower rate if requested."""

    def __init__(self, *, scale: int, every: int = 1, overlay: bool = True) -> None:
        self._scale, self._every = scale, every
        self._panel = Panel(scale) if overlay else None
        self._count = 0
        self._drawn: tuple[Reading, Picture] | None = None
        self.fps = FRAMES_PER_SECOND / every
        width = WIDTH + (PANEL_WIDTH if overlay else 0)
        self.size = (width * scale, HEIGHT * scale)
        """Width and height of the pictures."""

    def develop(self, shot: Shot) -> Iterator[Picture]:
        """The pictures of one shot, (height, width, 3) uint8."""
        for frame in shot.frames:
            self._count += 1
            if (self._count - 1) % self._every == 0:
                yield self._picture(frame, shot.reading)

    def _picture(self, frame: Picture, reading: Reading) -> Picture:
        large = enlarge(frame, self._scale)
        if self._panel is None:
            return large
        if self._drawn is None or self._drawn[0] is not reading:
            self._drawn = reading, self._panel.draw(reading)
        return np.concatenate((large, self._drawn[1]), axis=1)


@functools.lru_cache(maxsize=256)
def controller(buttons: int, scale: int) -> Image.Image:
    """A pad with the pressed buttons lit, 112 x 40 pixels of the game's picture."""
    fine = 4  # drawn larger and then reduced, because Pillow does not smooth edges
    unit = scale * fine
    image = Image.new("RGB", (112 * unit, 40 * unit), BACKGROUND)
    pen = ImageDraw.Draw(image)

    def box(x: float, y: float, w: float, h: float) -> tuple[float, ...]:
        return (x * unit, y * unit, (x + w) * unit - 1, (y + h) * unit - 1)

    def ink(button: int) -> Colour:
        return ACCENT if buttons & button else BACKGROUND

    pen.rounded_rectangle(box(0, 0, 112, 40), radius=6 * unit, fill=SURFACE)
    arm = 9
    x, y = 11, 6.5
    pen.rectangle(box(x + arm, y, arm, 3 * arm), fill=BACKGROUND)
    pen.rectangle(box(x, y + arm, 3 * arm, arm), fill=BACKGROUND)
    pen.rectangle(box(x + arm, y, arm, arm), fill=ink(nes.UP))
    pen.rectangle(box(x + arm, y + 2 * arm, arm, arm), fill=ink(nes.DOWN))
    pen.rectangle(box(x, y + arm, arm, arm), fill=ink(nes.LEFT))
    pen.rectangle(box(x + 2 * arm, y + arm, arm, arm), fill=ink(nes.RIGHT))
    for left, button in ((45, nes.SELECT), (57, nes.START)):
        pen.rounded_rectangle(box(left, 21, 9, 4), radius=2 * unit, fill=ink(button))
    for left, button, name in ((71, nes.B, "B"), (88, nes.A, "A")):
        pen.ellipse(box(left, 13, 14, 14), fill=ink(button))
        lit = bool(buttons & button)
        pen.text(
            ((left + 7) * unit, 20 * unit),
            name,
            fill=BACKGROUND if lit else MUTED,
            font=font(7 * unit, True),
            anchor="mm",
        )
    return image.resize((112 * scale, 40 * scale), Image.Resampling.LANCZOS)


def check_suffix(path: Path) -> None:
    """Raises ValueError unless a file of this name can be written."""
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(
            f"the video {path} must be MP4 or GIF: give a name that ends in .mp4 or "
            ".gif"
        )


class VideoWriter:
    """Encodes pictures into a file, which appears when it is complete.

    A context manager: after an exception inside it there is no file.
    `imageio_ffmpeg.write_frames` would hide whether and why ffmpeg failed.
    """

    def __init__(
        self,
        path: Path,
        *,
        size: tuple[int, int],
        fps: float,
        background: bool = False,
    ) -> None:
        """Starts ffmpeg, for pictures of a width and height.

        In the background it has low priority and one thread.
        """
        import imageio_ffmpeg  # slow, and only films need it

        check_suffix(path)
        width, height = size
        gif = path.suffix.lower() == ".gif"
        if not gif and (width % 2 or height % 2):
            raise ValueError(
                f"MP4 needs an even width and height, got {width} x {height}"
            )
        make_folder(path.parent)
        self._path, self._shape, self._fps = path, (height, width, 3), fps
        self.count = 0
        """Number of pictures so far."""
        self._partial = path.with_name(f".partial-{path.name}")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        nice = shutil.which("nice") if background else None
        command = ["-y", "-loglevel", "error", "-f", "rawvideo"]
        command += ["-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:.6g}"]
        command += ["-i", "-"]
        if gif:
            palette = io.BytesIO()
            Image.fromarray(gif_palette()).save(palette, "PNG")
            text = base64.b64encode(palette.getvalue()).decode()
            command += ["-i", f"data:image/png;base64,{text}", *_GIF]
        else:
            command += [*_MP4, "-preset", "superfast" if background else "veryfast"]
        if background:
            command += ["-threads", "1"]
        try:
            ffmpeg = str(imageio_ffmpeg.get_ffmpeg_exe())
            first = [nice, "-n", "10", ffmpeg] if nice else [ffmpeg]
            self._process = subprocess.Popen(
                [*first, *command, str(self._partial)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                # Ctrl-C must not reach ffmpeg: this process finishes the file.
                start_new_session=True,
            )
        except (RuntimeError, OSError) as error:
            self._log.close()
            raise OSError(f"cannot start ffmpeg ({error}); {_GET_FFMPEG}") from error
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def write(self, picture: Picture) -> None:
        """Adds one picture, (height, width, 3) uint8."""
        if picture.shape != self._shape or picture.dtype != np.uint8:
            raise ValueError(
                f"a picture must be uint8 {self._shape}, got {picture.dtype} "
                f"{picture.shape}"
            )
        try:
            self._pipe.write(np.ascontiguousarray(picture).data)
        except BrokenPipeError:
            raise self._failure() from None
        self.count += 1

    def summary(self) -> str:
        """One line about the file; call it after `close`."""
        height, width, _ = self._shape
        seconds, megabytes = self.count / self._fps, self._path.stat().st_size / 1e6
        return (
            f"wrote {self._path} ({width} x {height}, {seconds:.1f} s at "
            f"{self._fps:.3g} pictures a second, {megabytes:.1f} MB)"
        )

    def close(self) -> None:
        """Finishes the file."""
        try:
            self._close_pipe()
            if self._process.wait():
                raise self._failure()
            self._partial.replace(self._path)
        finally:
            self.abort()  # removes the incomplete file

    def abort(self) -> None:
        """Ends ffmpeg and removes an incomplete file."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._close_pipe()
        self._partial.unlink(missing_ok=True)
        self._log.close()

    def _close_pipe(self) -> None:
        # If ffmpeg has ended, nothing reads the rest of the buffer.
        with suppress(BrokenPipeError):
            self._pipe.close()

    def _failure(self) -> OSError:
        """An error with the last line of ffmpeg's output."""
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {self._process.returncode}"
        return OSError(f"ffmpeg could not write {self._path}: {reason}")

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
