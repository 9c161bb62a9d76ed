"""Encodes pictures as MP4 and GIF, with the ffmpeg that imageio-ffmpeg includes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from PIL import Image

from trainer.film.draw import gif_palette

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
        width: int,
        height: int,
        fps: float,
        background: bool = False,
    ) -> None:
        """Starts ffmpeg; in the background with low priority, on one thread."""
        import imageio_ffmpeg  # slow, and only films need it

        check_suffix(path)
        gif = path.suffix.lower() == ".gif"
        if not gif and (width % 2 or height % 2):
            raise ValueError(
                f"MP4 needs an even width and height, got {width} x {height}"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"cannot write to the folder {path.parent} ({error.strerror})"
            ) from error
        try:
            ffmpeg = str(imageio_ffmpeg.get_ffmpeg_exe())
        except RuntimeError as error:
            raise OSError(f"no ffmpeg found; {_GET_FFMPEG}") from error
        self._path, self._shape, self._fps = path, (height, width, 3), fps
        self.count = 0
        """Number of pictures so far."""
        self._partial = path.with_name(f".partial-{path.name}")
        self._scratch = tempfile.TemporaryDirectory()
        self._log = Path(self._scratch.name) / "ffmpeg.log"
        nice = shutil.which("nice") if background else None
        command = [nice, "-n", "10"] if nice else []
        command += [ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo"]
        command += ["-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:.6g}"]
        command += ["-i", "-"]
        if gif:
            palette = self._log.with_name("palette.png")
            Image.fromarray(gif_palette()).save(palette)
            command += ["-i", str(palette), *_GIF]
        else:
            command += [*_MP4, "-preset", "superfast" if background else "veryfast"]
        if background:
            command += ["-threads", "1"]
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [*command, str(self._partial)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    # Ctrl-C must not reach ffmpeg: this process finishes the file.
                    start_new_session=True,
                )
            except OSError as error:
                self._scratch.cleanup()
                raise OSError(
                    f"cannot start {ffmpeg} ({error.strerror}); {_GET_FFMPEG}"
                ) from error
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def write(self, picture: npt.NDArray[np.uint8]) -> None:
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
        self._scratch.cleanup()

    def _close_pipe(self) -> None:
        # If ffmpeg has ended, nothing reads the rest of the buffer.
        with suppress(BrokenPipeError):
            self._pipe.close()

    def _failure(self) -> OSError:
        """An error with the last line of ffmpeg's output."""
        self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {self._process.returncode}"
        return OSError(f"ffmpeg could not write {self._path}: {reason}")

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
