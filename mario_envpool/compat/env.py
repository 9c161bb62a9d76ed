"""The environments of gym-super-mario-bros on native code: raw pictures, pad bytes.

One step is one frame of the game. Reward, end and info come from the native task
(csrc/mario); this module converts them to the shapes and names of upstream.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, SupportsIndex

import gymnasium
import numpy as np
import numpy.typing as npt

from .. import _core, rom
from ..codes import END_REASONS
from ..env import Window, as_action
from .hooks import Hooks
from .info import as_float64, classic_info, full_info
from .libraries import ClassSpace, Joining, join, old_gym
from .ram import RamView
from .tasks import ROM_MODES, STAGES, WORLDS, decode_target, rom_name, world_label

_U8 = npt.NDArray[np.uint8]

# Each action is the byte of a pad.
_PADS = 256
_RUNNING = END_REASONS.index("none")

APIS = ("gym", "gymnasium")
_REWARDS = ("classic", "v9")
ALL_STAGES = [f"{w}-{s}" for w in range(1, WORLDS + 1) for s in range(1, STAGES + 1)]
# Only the picture of the native task is used, so its observation is as small as
# possible.
_NATIVE = {
    "frame_skip": 1,
    "stack_num": 1,
    "action_set": "raw",
    "img_height": 1,
    "img_width": 1,
    "use_inter_area_resize": False,
}
# Bytes before a native snapshot: the best position of the attempt.
_X_MAX_BYTES = 4
# Attributes that a copy or pickle makes again.
_NOT_COPIED = {"_native", "ram", "viewer", "_screen", "_shown"}
# The keys of nes-py, from bit 7 (right) to bit 0 (A).
_KEYS = [ord(key) for key in "dasw\r po"]


def chosen_api(api: str | None, render_mode: str | None) -> str:
    """Returns the API of an environment: "gym" (4-tuples) or "gymnasium" (5-tuples).

    Args:
        api: "gym", "gymnasium" or None: "gymnasium" if there is a render mode, which
            the constructor of 7.4.0 did not have, else "gym".
        render_mode: the render mode of the constructor.

    Raises:
        ValueError: there is no such API.
    """
    if api is None:
        return "gym" if render_mode is None else "gymnasium"
    if api not in APIS:
        raise ValueError(f"api={api!r} is not known; choose 'gym' or 'gymnasium'")
    return api


if TYPE_CHECKING:
    _Env = gymnasium.Env[_U8, SupportsIndex]
else:
    _Env = Joining


class SuperMarioBrosEnv(Hooks, _Env):
    """Super Mario Bros. or The Lost Levels, as gym-super-mario-bros has them.

    With 4-tuples it is a ``gym.Env`` with the spaces of old Gym where that is
    installed, else a ``gymnasium.Env``.

    A subclass may override what upstream's class calls in a step: ``_get_reward`` or
    its parts ``_x_reward``, ``_time_penalty`` and ``_death_penalty`` (properties),
    ``_get_done``, ``_get_info``, ``_did_step``, and in a reset ``_will_reset`` and
    ``_did_reset``. They see the game as upstream's do. The rest stays native.

    Observations are new arrays, (240, 256, 3) uint8; actions are bytes of the pad
    (``mario_envpool.nes`` has its bits).

    Args:
        rom_mode: "vanilla", "downsample", "pixel" or "rectangle"; the Lost Levels have
            the first two.
        lost_levels: whether to play Super Mario Bros. 2 (The Lost Levels).
        target: (world, stage) for episodes of one level, None for the whole game.
        render_mode: "rgb_array" or "human".
        api: "gym": ``reset`` returns the observation, ``step`` a 4-tuple; "gymnasium":
            a pair and a 5-tuple. None: "gymnasium" if there is a render mode, else
            "gym".
        reward: "classic": reward and info of 7.4.0; "v9": reward and info of 9.x.
        rom_path: as for ``mario_envpool.make``.
        timing: "nes_py" ends a frame where nes-py, the emulator of
            gym-super-mario-bros, ends it, so that every step equals upstream's;
            "console" ends it where a console does (docs/emulator.md, "Two timings").

    Attributes:
        ram: (2048,) uint8, the work RAM of the game. It is always the same array, and
            writing to it changes the game.
        done: whether the episode is over.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: there is no such ROM mode, world, stage, API, reward or timing.
        NotImplementedError: there is no such render mode.
        RomError: the ROM is not installed.
    """

    metadata = {  # noqa: RUF012
        "render_modes": ["rgb_array", "human"],
        "render_fps": 60,
        # The names in old Gym.
        "render.modes": ["rgb_array", "human"],
        "video.frames_per_second": 60,
    }
    render_mode: str | None = None
    spec: Any = None
    if not TYPE_CHECKING:
        observation_space = ClassSpace("Box", 0, 255, (240, 256, 3), np.uint8)
        action_space = ClassSpace("Discrete", _PADS)

    def __init__(
        self,
        rom_mode: str = "vanilla",
        lost_levels: bool = False,
        target: tuple[int, int] | None = None,
        render_mode: str | None = None,
        *,
        api: str | None = None,
        reward: str = "classic",
        rom_path: str = "",
        timing: str = "nes_py",
    ) -> None:
        self._arguments: dict[str, Any] = {
            "rom_mode": rom_mode,
            "lost_levels": lost_levels,
            "target": target,
            "render_mode": render_mode,
            "api": api,
            "reward": reward,
            "rom_path": rom_path,
            "timing": timing,
        }
        self._set_target(target, lost_levels)
        stages = [] if target is None else [f"{world_label(target[0])}-{target[1]}"]
        self._open(stages)
        self._begin(0)

    def _set_target(self, target: tuple[int, int] | None, lost_levels: bool) -> None:
        world, stage, area = decode_target(target, lost_levels)
        self._target_world: int | None = world
        self._target_stage: int | None = stage
        self._target_area: int | None = area

    def _open(self, stages: list[str]) -> None:
        """Makes the native environment for some stages; []: the whole game."""
        given, self._stages = self._arguments, stages
        lost_levels, rom_mode = given.get("lost_levels", False), given["rom_mode"]
        name = rom_name(rom_mode, lost_levels)
        if given["reward"] not in _REWARDS:
            raise ValueError(
                f"reward={given['reward']!r} is not known; choose 'classic' (7.4.0) or "
                "'v9' (9.x)"
            )
        self._check_hooks()
        self._check_mode(given["render_mode"])
        api = chosen_api(given["api"], given["render_mode"])
        self._gymnasium = api == "gymnasium"
        # A subclass may be an Env of Gymnasium by its own choice.
        chosen = self._gymnasium or isinstance(self, gymnasium.Env)
        library: Any = (None if chosen else old_gym()) or gymnasium
        join(self, library.Env)
        self._of_old_gym = library is not gymnasium
        if self._of_old_gym:
            generator: Any = np.random.RandomState()  # as nes-py's
            self.np_random = generator
        if given["render_mode"] is not None:  # a subclass may have set its own
            self.render_mode = given["render_mode"]
        self._rom_mode, self._lost_levels = rom_mode, lost_levels
        self._version = ROM_MODES.index(rom_mode)
        options = {
            **_NATIVE,
            "stages": stages,
            "lost_levels": lost_levels,
            "reward": given["reward"],
            "timing": given["timing"],
        }
        image = rom.load(name, given["rom_path"])
        self._native: Any = _core._MarioEnv(image, options)
        self.ram = self._native.ram
        shape = (240, 256, 3)
        self.observation_space = library.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = library.spaces.Discrete(_PADS)
        self.viewer: Window | None = None
        self._shown: _U8 | None = None
        self._backup_state: bytes | None = None

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Starts an episode.

        Args:
            seed: seeds ``np_random``; the game itself has no randomness.
            options: not used, as upstream.

        Returns:
            The observation; with the API of Gymnasium, the observation and the info.
        """
        self._opened()
        self.seed(seed)
        if self._backup_state is not None:
            self._will_reset()
            self._restore()
            self._did_reset()
            self.done = False
        else:
            self._begin(0)
        return self._first_result()

    def _begin(self, stage: int) -> None:
        """Starts an episode of one of the native environment's stages."""
        self.done = True  # until the reset is complete
        self._will_reset()
        self._native_reward, self._native_done = 0.0, False
        self._start_number = stage
        fields = self._native.reset(stage=stage)
        self._screen: _U8 | None = None
        self._numbers: Any = _scalars(fields)  # None: a call was interrupted
        self._x_position_max = int(self._numbers["x_pos"])
        self._did_reset()
        self.done = False

    def _first_result(self) -> Any:
        if self.render_mode == "human":
            self._show()
        if not self._gymnasium:
            return self.screen
        return self.screen, self._info(self._numbers, 0.0)

    def step(self, action: SupportsIndex) -> Any:
        """Plays one frame, then the frames in which Mario cannot be controlled.

        The info describes the first frame. Picture and RAM are those of the moment at
        which Mario can be controlled again (after a death, a pipe, or a level).

        Args:
            action: the byte of the pad, 0 to 255.

        Returns:
            ``obs, reward, done, info``, or with the API of Gymnasium ``obs, reward,
            terminated, truncated, info``, where ``truncated`` is False.

        Raises:
            ValueError: the episode is over, or the environment is closed.
            TypeError: the action is not an integer.
            IndexError: the action is not a byte.
        """
        native = self._opened()
        if self._numbers is None:
            self._read_again()
        if self.done:
            raise ValueError("the episode is over; call reset() before the next step")
        pad = as_action(action, _PADS, IndexError)
        self._numbers = self._screen = None  # until the step is complete
        if self._has_hooks():
            reward, info = self._step_with_hooks(pad)
        else:
            reward, self.done, _, fields = native.step(pad)
            self._native_reward = reward = as_float64(reward)
            self._native_done = self.done
            info = self._info(self._keep(fields), reward)
        self._screen = native.render()
        if self.render_mode == "human":
            self._show()
        if self._gymnasium:
            return self._screen, reward, self.done, False, info
        return self._screen, reward, self.done, info

    def _keep(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Keeps and returns the numbers of a step."""
        numbers = _scalars(fields)
        self._x_position_max = max(self._x_position_max, numbers["x_pos"])
        self._numbers = numbers
        return numbers

    def _read_again(self) -> None:
        """Reads what a step or ``load_state`` that an exception ended has changed."""
        numbers = self._keep(self._native.read())
        self.done = numbers["end_reason"] != _RUNNING

    def _info(self, numbers: dict[str, Any], reward: float) -> dict[str, Any]:
        if self._arguments["reward"] == "classic":
            return classic_info(numbers, self._of_old_gym)
        facts = RamView()
        facts.ram = self._native.info_ram()
        target = self._target_world, self._target_stage
        return full_info(
            numbers,
            facts,
            reward=reward,
            x_pos_max=self._x_position_max,
            rom_mode=self._rom_mode,
            version=self._version,
            lost_levels=self._lost_levels,
            target=None if None in target else target,  # type: ignore[arg-type]
        )

    @property
    def screen(self) -> _U8:
        """The current picture, (240, 256, 3) uint8."""
        if self._screen is None:
            self._screen = self._opened().render()
        return self._screen

    @property
    def is_single_stage_env(self) -> bool:
        """Whether an episode is one level."""
        return self._target_world is not None

    def seed(self, seed: int | None = None) -> list[int]:
        """Seeds ``np_random`` and returns the seed in a list, empty for None."""
        if seed is None:
            return []
        generator: Any = self.np_random
        if isinstance(generator, np.random.RandomState):
            generator.seed(seed)
        else:
            gymnasium.Env.reset(self, seed=seed)
        return [seed]

    def dump_state(self) -> bytes:
        """Returns the exact state of the game and of its rewards."""
        best = int(self._x_position_max).to_bytes(_X_MAX_BYTES, "little")
        state: bytes = self._opened().snapshot()
        return best + state

    def load_state(self, snapshot: bytes) -> None:
        """Restores a state from an environment with the same arguments.

        Raises:
            ValueError: the state is damaged, or has another ROM, stage, reward or
                timing.
        """
        self._numbers = None
        fields = self._opened().restore(bytes(snapshot[_X_MAX_BYTES:]))
        self._x_position_max = int.from_bytes(snapshot[:_X_MAX_BYTES], "little")
        self._numbers = _scalars(fields)
        self._screen = None
        self.done = False

    def _backup(self) -> None:
        """Keeps the state; from now on ``reset`` restores it, as upstream."""
        self._backup_state = self.dump_state()

    def _restore(self) -> None:
        """Restores the kept state, or the start; ``done`` does not change."""
        done = self.done
        if self._backup_state is None:
            self._begin(self._start_number)
        else:
            self.load_state(self._backup_state)
        self.done = done

    def _frame_advance(self, action: SupportsIndex) -> None:
        """Plays one frame outside the task: no reward, no skipped waits, no end."""
        self._opened().advance(as_action(action, _PADS, IndexError))
        self._screen = None

    def render(self, mode: str | None = None) -> Any:
        """Shows the picture or returns it.

        Args:
            mode: "human" (a window; needs pygame) or "rgb_array". None: the render
                mode of the constructor, else, with the old API, "human".

        Returns:
            (240, 256, 3) uint8 for "rgb_array", else None.

        Raises:
            NotImplementedError: there is no such mode.
        """
        self._opened()
        self._check_mode(mode)
        mode = mode or self.render_mode or (None if self._gymnasium else "human")
        if mode == "rgb_array":
            return self.screen
        if mode == "human":
            self._show()
        else:
            gymnasium.logger.warn(
                "render() does nothing without a render_mode; give render_mode to make"
            )
        return None

    def _check_mode(self, mode: str | None) -> None:
        modes = self.metadata["render_modes"]
        if mode is not None and mode not in modes:
            raise NotImplementedError(f"render mode {mode!r} is not one of {modes}")

    def _show(self) -> None:
        """Shows each picture once, so ``render`` after a step does not wait again."""
        if self.viewer is None:
            self.viewer = Window(self.metadata["render_fps"])
        if self._shown is not self.screen:
            self._shown = self.screen
            self.viewer.show(self._shown)

    def close(self) -> None:
        """Frees the game and closes the window.

        Raises:
            ValueError: the environment is closed already, as upstream. With the API of
                Gymnasium, which allows a second call, nothing happens.
        """
        if self._native is None and self._gymnasium:
            return
        self._opened()
        self._native = None
        if self.viewer is not None:
            self.viewer.close()

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Returns the pad byte of each combination of keys (their character codes).

        The keys are nes-py's: w, a, s, d for the cross, o and p for A and B, the space
        bar for Select and Enter for Start.
        """
        keys_to_action = {}
        for pressed in itertools.product((False, True), repeat=len(_KEYS)):
            byte = sum(on << 7 - i for i, on in enumerate(pressed))
            keys = sorted(key for key, on in zip(_KEYS, pressed, strict=True) if on)
            keys_to_action[tuple(keys)] = byte
        return keys_to_action

    def get_action_meanings(self) -> list[str]:
        """Returns ``["NOOP"]``, as upstream; ``JoypadSpace`` names its own actions."""
        return ["NOOP"]

    def __getstate__(self) -> dict[str, Any]:
        kept = {
            key: value for key, value in vars(self).items() if key not in _NOT_COPIED
        }
        return {**kept, "snapshot": self.dump_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot = state.pop("snapshot")
        self._arguments = state["_arguments"]
        self._open(state["_stages"])
        self.load_state(snapshot)
        vars(self).update(state)

    def _opened(self) -> Any:
        if self._native is None:
            raise ValueError("the environment has been closed; make a new one")
        return self._native


def _scalars(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an info, by name without ``info:``."""
    return {
        name.removeprefix("info:"): value.item()
        for name, value in fields.items()
        if name.startswith("info:") and value.ndim == 0
    }
