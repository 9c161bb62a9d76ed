"""Plays and shows episodes in a notebook, as the output of a cell.

>>> env = gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0", render_mode="rgb_array")
>>> game = notebook.play(env)  # as the last line of a cell: play with the keyboard
>>> notebook.show(game.episode)  # in another cell: shows the episode as a video

Needs `pip install 'mario-envpool[notebook]'`. The browser requests every step and
receives a picture, so the game waits while another cell runs.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from . import nes
from .actions import ACTION_SETS
from .env import FRAMES_PER_SECOND, MarioEnv

try:
    import anywidget
    import traitlets
    from IPython.display import HTML
except ImportError:
    raise ImportError(
        "playing in a notebook needs anywidget: pip install 'mario-envpool[notebook]'"
    ) from None

Picture = npt.NDArray[np.uint8]

# Requests a step with the held buttons at the speed of the game, and never before the
# last request is answered.
_SCRIPT = """
const KEYS = { ArrowUp: 16, ArrowDown: 32, ArrowLeft: 64, ArrowRight: 128,
               KeyX: 1, KeyZ: 2, Enter: 8, ShiftRight: 4 };
function render({ model, el }) {
  el.innerHTML = `<div tabindex="0" style="display:inline-block; max-width:512px">
    <canvas width="256" height="240" style="width:512px; max-width:100%;
      image-rendering:pixelated; background:#000; display:block"></canvas>
    <div>Click the picture to play: arrows, X jumps (A), Z runs (B). A click
      elsewhere pauses.</div><div class="line">&nbsp;</div></div>`;
  const box = el.firstElementChild, line = el.querySelector(".line");
  const canvas = el.querySelector("canvas").getContext("2d");
  const held = new Set();
  let playing = false, due = 0;
  const ask = () => {
    const buttons = [...held].reduce((bits, code) => bits | KEYS[code], 0);
    model.send({ buttons });
  };
  const draw = async (png) =>
    canvas.drawImage(await createImageBitmap(new Blob([png])), 0, 0);
  const answered = async (message, buffers) => {
    line.textContent = message.text;
    await draw(buffers[0]);
    if (!playing) return;
    due = Math.max(due + message.milliseconds, performance.now());
    setTimeout(() => playing && ask(), due - performance.now());
  };
  model.on("msg:custom", answered);
  box.onfocus = () => { if (!playing) { playing = true; due = 0; ask(); } };
  box.onblur = () => { playing = false; held.clear(); };
  box.onkeydown = (event) => {
    if (!(event.code in KEYS)) return;
    held.add(event.code);
    event.preventDefault();
    event.stopPropagation();  // Enter would run the cell
  };
  box.onkeyup = (event) => held.delete(event.code);
  // The kernel answers when no cell runs; until then, the widget's own picture.
  draw(model.get("first")).finally(() => model.send({ look: true }));
  return () => { playing = false; model.off("msg:custom", answered); };
}
export default { render };
"""


class Game(anywidget.AnyWidget):
    """The widget that `play` returns."""

    _esm = _SCRIPT
    first = traitlets.Bytes().tag(sync=True)
    """The picture that begins the first episode, as a PNG file."""

    def __init__(self, env: gymnasium.Env[Any, Any], config: dict[str, Any]) -> None:
        super().__init__()
        self._env = env
        self._bytes = _action_bytes(config)
        self._milliseconds = 1000 * config["frame_skip"] / FRAMES_PER_SECOND
        self.episode: list[Picture] = []
        """The pictures of the running or last episode, (240, 256, 3) uint8 each."""
        self._over = True
        self._return = 0.0
        self._begin_if_over()
        self.first = _png(self.episode[-1])
        self.on_msg(self._answer)

    def _begin_if_over(self) -> None:
        """Begins an episode if none is running."""
        if self._over:
            self._env.reset()
            self._over, self._return = False, 0.0
            self.episode = [self._picture()]

    def _picture(self) -> Picture:
        picture: Picture = np.asarray(self._env.render())
        return picture

    def _answer(self, _: Any, message: Any, buffers: Any) -> None:
        """Plays a step with the buttons of a message and sends the picture."""
        if "buttons" in message:
            self._begin_if_over()
            action = nearest_action(self._bytes, int(message["buttons"]))
            _, reward, terminated, truncated, _ = self._env.step(action)
            self._return += float(reward)
            self._over = terminated or truncated
            self.episode.append(self._picture())
        text = f"step {len(self.episode) - 1}, return {self._return:.2f}"
        answer = {
            "text": f"{text}, over" if self._over else text,
            "milliseconds": self._milliseconds,
        }
        self.send(answer, buffers=[_png(self.episode[-1])])


def play(env: gymnasium.Env[Any, Any]) -> Game:
    """Lets a person play an environment in the output of a cell.

    Keys are buttons of the pad. Every step takes the action that presses the most held
    buttons and no other button. So buttons act every `frame_skip` frames, and
    `action_set="raw"` allows every combination. After the end of an episode the next
    step begins another episode.

    Args:
        env: a `MarioEnv` with `render_mode="rgb_array"`, also in wrappers that do not
            change its actions.

    Returns:
        A widget for the last line of a cell; `show` takes its `episode`.

    Raises:
        ValueError: the environment is not a `MarioEnv`, or has another render mode.
    """
    mario: Any = env.unwrapped
    if not isinstance(mario, MarioEnv):
        raise ValueError(
            f"play is for the environments of this package, got {env}; make one with "
            'gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0", '
            'render_mode="rgb_array")'
        )
    if env.render_mode != "rgb_array":
        raise ValueError(
            f"play needs pictures, got render_mode={env.render_mode!r}; give "
            'render_mode="rgb_array" to gymnasium.make'
        )
    return Game(env, mario._open_pool().config)


def show(
    episode: Sequence[Picture] | Picture, *, fps: float = FRAMES_PER_SECOND / 4
) -> HTML:
    """Shows an episode as a video in the output of a cell.

    Args:
        episode: the pictures of its steps, uint8 of shape (n, H, W, 3) or a list of n
            pictures, H and W even: `Game.episode`, or the results of `env.render()`.
        fps: pictures per second; the default is the speed of the game with
            `frame_skip=4`.

    Returns:
        A video that is stored in the notebook, for the last line of a cell.

    Raises:
        ValueError: `episode` is empty, or has another shape or dtype.
    """
    from imageio_ffmpeg import write_frames

    pictures = np.asarray(episode)
    good = pictures.ndim == 4 and pictures.shape[3] == 3 and pictures.dtype == np.uint8
    if not good or not len(pictures) or pictures.shape[1] % 2 or pictures.shape[2] % 2:
        raise ValueError(
            f"an episode is uint8 of shape (n, H, W, 3), n at least 1, H and W even; "
            f"got {pictures.dtype} {pictures.shape}"
        )
    height, width = pictures.shape[1:3]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        # 4:4:4 would keep every pixel's colour, but not every browser plays it.
        writer = write_frames(
            str(path), (width, height), fps=fps, quality=8, macro_block_size=2
        )
        try:
            writer.send(None)
        except (OSError, RuntimeError) as error:
            raise OSError(
                f"cannot start ffmpeg ({error}); imageio-ffmpeg includes one (pip "
                "install --force-reinstall imageio-ffmpeg), or set IMAGEIO_FFMPEG_EXE "
                "to the path of yours"
            ) from error
        for picture in pictures:
            writer.send(np.ascontiguousarray(picture))
        writer.close()
        video = base64.b64encode(path.read_bytes()).decode()
    return HTML(  # type: ignore[no-untyped-call]
        f'<video controls loop autoplay muted width="{2 * width}" '
        f'style="image-rendering:pixelated; max-width:100%" '
        f'src="data:video/mp4;base64,{video}"></video>'
    )


def nearest_action(action_bytes: Sequence[int], held: int) -> int:
    """Returns the action that presses the most held buttons and no other button.

    Args:
        action_bytes: the pad byte of every action.
        held: the pad byte of the buttons that are held.
    """
    fitting = [i for i, byte in enumerate(action_bytes) if not byte & ~held]
    return max(fitting, key=lambda i: action_bytes[i].bit_count(), default=0)


def _action_bytes(config: dict[str, Any]) -> list[int]:
    """Returns the pad byte of every action of a pool's configuration."""
    if not config["custom_actions"] and config["action_set"] == "raw":
        return list(range(256))
    names = config["custom_actions"] or ACTION_SETS[config["action_set"]]
    return [
        sum(nes.BUTTONS[name] for name in action.split("+") if name != "NOOP")
        for action in names
    ]


def _png(picture: Picture) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()
