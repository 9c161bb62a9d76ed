"""Programs in old Gym: its classes and spaces, subclasses, and unmodified programs."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gym
import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env
from upstream_formulas import Formulas, Parts

from mario_envpool import nes
from mario_envpool.compat import (
    SuperMarioBrosEnv,
    SuperMarioBrosRandomStagesEnv,
    install,
    make,
)
from mario_envpool.compat.actions import SIMPLE_MOVEMENT
from mario_envpool.compat.libraries import has_five
from mario_envpool.compat.wrappers import JoypadSpace

pytestmark = [
    pytest.mark.rom,
    # Gym's own advice.
    pytest.mark.filterwarnings(
        "ignore:.*(step API|is out of date|an OpenAI Gym environment)"
    ),
]
STAGE = "SuperMarioBros-1-1-v0"
RUN = nes.RIGHT | nes.B
# The wrappers of 0.26 need 5-tuples, those of 0.25 take 4-tuples.
FIVE = has_five(gym)
NEW = {"apply_api_compatibility": True} if FIVE else {}


def observed(result: Any) -> Any:
    """The observation of a reset or step of either API."""
    return result[0] if isinstance(result, tuple) else result


def run(program: str, *arguments: str, cwd: Path | None = None) -> str:
    """Runs a program in a new process and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: make(STAGE),
        lambda: make("SuperMarioBrosRandomStages-v0"),
        lambda: make(STAGE, max_episode_steps=50),
        lambda: make(STAGE, **NEW),
        lambda: gym.make(STAGE),
        lambda: gym.make("SuperMarioBros2-v0"),
        lambda: SuperMarioBrosEnv(target=(1, 2)),
        lambda: SuperMarioBrosRandomStagesEnv(),
        lambda: SuperMarioBrosEnv(render_mode="rgb_array", api="gym"),
    ],
)
def test_4_tuples_are_of_old_gym(make_env: Any) -> None:
    env = make_env()
    wrapped = JoypadSpace(gym.Wrapper(env), SIMPLE_MOVEMENT)
    for each in (env, wrapped):
        assert isinstance(each, gym.Env)
        assert not isinstance(each, gymnasium.Env)
        assert type(each.observation_space) is gym.spaces.Box
        assert type(each.action_space) is gym.spaces.Discrete
    assert isinstance(wrapped, gym.Wrapper)
    assert wrapped.action_space.n == 7
    assert wrapped.observation_space.contains(observed(wrapped.reset()))
    assert wrapped.observation_space.contains(wrapped.step(1)[0])


def test_5_tuples_are_of_gymnasium_and_do_not_import_gym() -> None:
    program = f"""
import sys
import gymnasium
from mario_envpool.compat import SuperMarioBrosEnv, make
from mario_envpool.compat.wrappers import JoypadSpace
for env in (
    make({STAGE!r}, api="gymnasium"),
    make({STAGE!r}, render_mode="rgb_array"),
    SuperMarioBrosEnv(api="gymnasium"),
    gymnasium.make("mario_envpool_compat/{STAGE}"),
):
    env = JoypadSpace(env, [["right"]])
    assert isinstance(env, gymnasium.Wrapper)
    assert type(env.action_space) is gymnasium.spaces.Discrete
    env.reset(seed=1)
    assert len(env.step(0)) == 5
assert "gym" not in sys.modules
"""
    run(program)


@pytest.mark.parametrize("first", ["gym", "mario_envpool.compat"])
def test_gym_knows_the_ids_in_any_order_of_imports(first: str) -> None:
    program = f"""
import {first}
import mario_envpool.compat, gym
env = gym.make("SuperMarioBros-4-2-v3")
print(env.spec.id, env.unwrapped._rom_mode, env.reset().shape, len(env.step(1)))
"""
    assert run(program) == "SuperMarioBros-4-2-v3 rectangle (240, 256, 3) 4\n"


def test_without_gym_environments_are_of_gymnasium() -> None:
    program = f"""
import sys
sys.modules["gym"] = None  # as if it were not installed
import gymnasium
from mario_envpool.compat import SuperMarioBrosEnv, envpool, make
from mario_envpool.compat.wrappers import JoypadSpace
env = JoypadSpace(make({STAGE!r}, disable_env_checker=True), [["right"]])
assert isinstance(env, gymnasium.Wrapper)
assert env.reset().shape == (240, 256, 3)
assert len(env.step(0)) == 4
assert len(make({STAGE!r}, apply_api_compatibility=True).reset()) == 2
assert isinstance(SuperMarioBrosEnv(), gymnasium.Env)
assert isinstance(envpool.make({STAGE!r}, "gym"), gymnasium.Env)
"""
    run(program)


def test_the_generator_is_nes_pys() -> None:
    """Wrappers of baselines draw with it; the drawn stages come from it, too."""
    env = make(STAGE)
    for _ in range(2):
        assert env.seed(3) == [3]
        expected = np.random.RandomState(3).randint(1, 31)
        assert env.unwrapped.np_random.randint(1, 31) == expected
    stages = make("SuperMarioBrosRandomStages-v0")
    stages.reset(seed=1)
    assert (stages.unwrapped._world, stages.unwrapped._stage) == (6, 4)
    expected = np.random.RandomState(1)
    expected.randint(1, 9, 2)
    assert stages.unwrapped.np_random.randint(1000) == expected.randint(1000)


def test_gyms_own_arguments_and_limits() -> None:
    env = make(STAGE, max_episode_steps=3, disable_env_checker=True)
    env.reset()
    dones = [env.step(0) for _ in range(3)]
    assert [row[2] for row in dones] == [False, False, True]
    assert dones[-1][-1]["TimeLimit.truncated"]
    assert env.spec.id == STAGE
    with pytest.raises(TypeError, match="unexpected keyword argument 'frames'"):
        make(STAGE, frames=4)


def test_the_step_api_of_gym_0_25() -> None:
    if FIVE:
        pytest.skip("gym 0.26 has no new_step_api")
    env = make(STAGE, new_step_api=True)
    env.reset()
    assert len(env.step(0)) == 5
    assert len(JoypadSpace(env, SIMPLE_MOVEMENT).step(0)) == 5


@pytest.mark.parametrize("kind", ["SyncVectorEnv", "AsyncVectorEnv"])
def test_vectors_of_old_gym(kind: str) -> None:
    envs = getattr(gym.vector, kind)(2 * [partial(make, STAGE, **NEW)])
    assert observed(envs.reset()).shape == (2, 240, 256, 3)
    assert envs.step(np.array([0, RUN]))[0].shape == (2, 240, 256, 3)
    envs.close()


def test_wrappers_of_gym() -> None:
    pytest.importorskip("cv2", reason="gym's ResizeObservation needs opencv-python")
    wrappers = gym.wrappers
    env = JoypadSpace(make(STAGE, **NEW), SIMPLE_MOVEMENT)
    env = wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(env, 100))
    env = wrappers.ResizeObservation(wrappers.GrayScaleObservation(env), 84)
    env = wrappers.TransformReward(env, lambda reward: reward / 10)
    env = wrappers.FrameStack(env, 4)
    obs = observed(env.reset())
    assert env.observation_space.shape == np.asarray(obs).shape[:3] == (4, 84, 84)
    for _ in range(30):
        obs, reward, *_, info = env.step(1)
    assert (reward, info["x_pos"]) == (pytest.approx(0.1), 68)
    assert env.unwrapped is not env


def test_shimmy_and_stable_baselines3() -> None:
    """The usual ways of 2025: 4-tuples below shimmy, and SB3's own use of shimmy."""
    shimmy = pytest.importorskip("shimmy", reason="pip install shimmy")
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    def make_one() -> Any:
        env = SuperMarioBrosEnv(rom_mode="rectangle", lost_levels=False, target=(1, 1))
        env = JoypadSpace(env, SIMPLE_MOVEMENT)
        return shimmy.GymV21CompatibilityV0(env=env)

    env = make_one()
    assert isinstance(env, gymnasium.Env)
    assert env.observation_space.contains(env.reset(seed=1)[0])
    assert len(env.step(1)) == 5
    for vector in (DummyVecEnv([make_one]), SubprocVecEnv([make_one, make_one])):
        assert vector.reset().shape[1:] == (240, 256, 3)
        vector.step([1] * vector.num_envs)
        vector.close()
    if FIVE:  # Stable-Baselines3 takes shimmy by itself
        env = JoypadSpace(make(STAGE, **NEW), SIMPLE_MOVEMENT)
    PPO("CnnPolicy", env, n_steps=8, batch_size=8, n_epochs=1).learn(8)


def test_what_programs_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    class Buttons(JoypadSpace):
        def __init__(self, env: Any) -> None:
            super().__init__(env, [["right"], ["right", "A"]])

    monkeypatch.setattr(JoypadSpace, "reset", lambda self, **_: self.env.reset())
    env = Buttons(make(STAGE))
    assert isinstance(env, gym.Wrapper)
    env.reset(seed=3)
    assert env.action_space.n == 2
    monkeypatch.setattr(SuperMarioBrosEnv, "_x_position", property(lambda _: 7))
    assert env.unwrapped._x_position == 7


def equal_step(got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(got[0], expected[0])
    assert got[1:] == expected[1:]
    assert isinstance(got[1], float)
    assert isinstance(got[2], bool)


@pytest.mark.parametrize("target", [None, (1, 1), (4, 2)])
def test_subclasses_with_upstreams_formulas_equal_the_native_game(
    target: tuple[int, int] | None,
) -> None:
    """Through deaths, pipes and new games, with random buttons."""
    native = SuperMarioBrosEnv(target=target)
    others = [Formulas(target=target), Parts(target=target)]
    rng = np.random.default_rng(2)
    games = (native, *others)
    for env in games:
        env.reset()
    held = 0
    for t in range(1500):
        if t % 12 == 0:
            held = int(rng.choice([RUN, RUN | nes.A, nes.RIGHT, nes.LEFT | nes.A]))
        expected = native.step(held)
        for env in others:
            equal_step(env.step(held), expected)
            np.testing.assert_array_equal(env.ram, native.ram)
        if expected[2]:
            for env in games:
                env.reset()


def test_upstreams_methods_are_called_in_its_order() -> None:
    env = Formulas()
    assert env.calls == ["will reset", "did reset"]
    env.reset()
    env.step(0)
    assert env.calls[2:] == ["will reset", "did reset", "did step False"]


def test_a_subclass_changes_a_part_of_the_step() -> None:
    class Slow(SuperMarioBrosEnv):
        reward_range = (-100, 100)

        @property
        def _x_reward(self) -> float:
            return 10 * super()._x_reward

        def _get_done(self) -> bool:
            return self._x_position > 100

        def _get_info(self) -> dict[str, Any]:
            return {**super()._get_info(), "tall": self._player_status == "tall"}

    env, plain = Slow(target=(1, 1)), SuperMarioBrosEnv(target=(1, 1))
    env.reset()
    plain.reset()
    rewards = []
    for _ in range(200):
        _, reward, done, info = env.step(RUN)
        _, native, _, expected = plain.step(RUN)
        assert info == {**expected, "tall": False}
        rewards.append(reward)
        assert (reward - native) % 9 == 0
        if done:
            break
    assert max(rewards) > 15
    assert 100 < env._x_position < 110
    with pytest.raises(ValueError, match="reset"):
        env.step(RUN)


def test_parts_of_another_reward_are_refused() -> None:
    with pytest.raises(ValueError, match="Parts overrides _x_reward, a part of"):
        Parts(reward="v9")
    assert isinstance(Formulas(reward="v9").reset(), np.ndarray)


def test_what_a_wrapper_writes_counts() -> None:
    env = SuperMarioBrosEnv(target=(1, 1))
    env.reset()
    for _ in range(60):
        env.step(RUN)
    assert env._x_position_last == env._x_position
    assert env._time_last == env._time
    env._x_position_last -= 2
    twin = copy.deepcopy(env)
    twin._x_position_last += 2
    assert env.step(RUN)[1] == twin.step(RUN)[1] + 2
    with pytest.raises(ValueError, match="-1 is not a position or a clock"):
        env._x_position_last = -1


def test_methods_replaced_on_the_class_or_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = SuperMarioBrosEnv(target=(1, 1))
    env.reset()
    monkeypatch.setattr(env, "_get_reward", lambda: 3)
    assert env.step(0)[1] == 3.0
    monkeypatch.undo()
    assert env.step(0)[1] == 0.0
    monkeypatch.setattr(SuperMarioBrosEnv, "_time_penalty", property(lambda _: -4))
    assert env.step(0)[1] == -4.0


@pytest.mark.parametrize(
    "name", ["_skip_start_screen", "_skip_change_area", "_write_stage", "_kill_mario"]
)
def test_methods_that_are_native_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"Changed overrides {name}, which"):
        type("Changed", (SuperMarioBrosEnv,), {name: lambda self: None})


def test_a_render_mode_of_a_subclass_is_kept() -> None:
    class Shown(SuperMarioBrosEnv):
        def __init__(self) -> None:
            self.render_mode = "rgb_array"
            super().__init__()

    env = Shown()
    assert env.render_mode == "rgb_array"
    np.testing.assert_array_equal(env.reset(), env.render())
    assert len(env.step(0)) == 4


@pytest.mark.parametrize(
    "make_copy",
    [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))],
)
@pytest.mark.parametrize("api", ["gym", "gymnasium"])
def test_copies_with_another_constructor(
    make_copy: Any, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Numbered(SuperMarioBrosEnv):
        def __init__(self, number: int) -> None:
            self.number = number
            super().__init__(target=(1, 1), api=api)

        def _get_info(self) -> dict[str, Any]:
            return {**super()._get_info(), "number": self.number}

    monkeypatch.setitem(globals(), "Numbered", Numbered)  # for pickle
    Numbered.__qualname__ = "Numbered"
    env = Numbered(5)
    joypad = JoypadSpace(env, SIMPLE_MOVEMENT)
    joypad.reset(seed=4)
    for _ in range(40):
        joypad.step(3)
    other = make_copy(env)
    assert (other.number, type(other)) == (5, type(env))
    np.testing.assert_array_equal(other.ram, env.ram)
    assert other.ram is not env.ram
    equal_step(other.step(RUN), env.step(RUN))
    again = make_copy(joypad)
    assert type(again) is type(joypad)
    if make_copy is not copy.copy:  # which shares the environment inside
        equal_step(again.step(3), joypad.step(3))


def test_wrappers_under_gymnasium_can_be_made_again() -> None:
    env = JoypadSpace(make(STAGE, api="gymnasium"), SIMPLE_MOVEMENT)
    again = gymnasium.make(env.spec)
    assert again.action_space == env.action_space
    assert again.get_action_meanings() == env.get_action_meanings()
    with pytest.warns(UserWarning, match="different from the unwrapped version"):
        check_env(env, skip_render_check=True)


PROGRAM = """
import sys
import gym_super_mario_bros
from gym_super_mario_bros import smb_env
from gym_super_mario_bros._registration import make
from gym_super_mario_bros._roms import decode_target, rom_path
from gym_super_mario_bros.actions import SIMPLE_MOVEMENT
from gym_super_mario_bros.smb_random_stages_env import SuperMarioBrosRandomStagesEnv
from multiprocessing import get_context
from nes_py import NESEnv
from nes_py.nes_env import SCREEN_HEIGHT, SCREEN_SHAPE_24_BIT, SCREEN_WIDTH
from nes_py.wrappers import JoypadSpace
import nes_py.wrappers.joypad_space

def play(env_id):
    env = gym_super_mario_bros.make(env_id)
    assert isinstance(env.unwrapped, NESEnv)
    assert isinstance(env.unwrapped, smb_env.SuperMarioBrosEnv)
    env = JoypadSpace(env, SIMPLE_MOVEMENT)
    env.reset()
    return type(env).__module__, sum(env.step(1)[1] for _ in range(60))

if __name__ == "__main__":
    assert SCREEN_SHAPE_24_BIT == (SCREEN_HEIGHT, SCREEN_WIDTH, 3)
    assert decode_target((1, 2), False) == (1, 2, 3)
    assert rom_path(False, "vanilla").endswith(".nes")
    print(sys.argv[1:], play("SuperMarioBros-1-1-v0"))
    with get_context("spawn").Pool(1) as pool:
        print(pool.map(play, ["SuperMarioBros-1-1-v0"]))
"""


def test_an_unmodified_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool.compat", str(program), "--steps", "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = "('mario_envpool.compat.wrappers', 78.0)"
    assert done.stdout == f"['--steps', '1'] {expected}\n[{expected}]\n"


def test_a_program_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool.compat", "missing.py"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'missing.py' is not a file; give the program")


def test_importing_does_not_install_and_installing_is_refused_late() -> None:
    program = """
import importlib.util, sys
import mario_envpool.compat
before = importlib.util.find_spec("gym_super_mario_bros").origin
assert "stand_ins" not in before, before
sys.modules["nes_py"] = sys
try:
    mario_envpool.compat.install()
except ImportError as error:
    print(error)
del sys.modules["nes_py"]
mario_envpool.compat.install()
mario_envpool.compat.install()
import gym_super_mario_bros
print(gym_super_mario_bros.make is mario_envpool.compat.make)
"""
    message, same = run(program).splitlines()
    assert message.startswith("nes_py is imported already, from None; call")
    assert same == "True"
    assert install.__doc__


def test_an_alias_by_hand_finds_its_rom() -> None:
    program = f"""
import sys
import mario_envpool.compat.actions
sys.modules["gym_super_mario_bros"] = mario_envpool.compat
sys.modules["gym_super_mario_bros.actions"] = mario_envpool.compat.actions
import gym_super_mario_bros
print(gym_super_mario_bros.make({STAGE!r}).reset().shape)
"""
    assert run(program) == "(240, 256, 3)\n"


def test_old_wrappers_of_programs() -> None:
    """Frame skip, grey, resize and stack as programs write them for 4-tuples."""

    class Skip(gym.Wrapper):
        def step(self, action: int) -> Any:
            total = 0.0
            for _ in range(4):
                obs, reward, done, info = self.env.step(action)
                total += reward
                if done:
                    break
            return obs, total, done, info

    class Grey(gym.ObservationWrapper):
        def __init__(self, env: gym.Env) -> None:
            super().__init__(env)
            shape = env.observation_space.shape[:2]
            self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

        def reset(self, **arguments: Any) -> npt.NDArray[np.uint8]:
            return self.observation(self.env.reset(**arguments))

        def step(self, action: int) -> Any:
            obs, *rest = self.env.step(action)
            return self.observation(obs), *rest

        def observation(self, observation: Any) -> npt.NDArray[np.uint8]:
            return observation.mean(-1).astype(np.uint8)

    env = JoypadSpace(Skip(make(STAGE)), SIMPLE_MOVEMENT)
    env = Grey(env)
    assert env.observation_space.contains(env.reset())
    obs, _, done, info = env.step(1)
    assert env.observation_space.contains(obs)
    assert (done, info["x_pos"], env.ram.shape) == (False, 40, (2048,))


def test_wrappers_of_gymnasium_around_4_tuples() -> None:
    program = f"""
import sys
from mario_envpool.compat import install, make
install(library="gymnasium")
import gymnasium
from gym_super_mario_bros import make
env = gymnasium.wrappers.TimeLimit(make({STAGE!r}), 100)
print(env.unwrapped.reset().shape, type(env.observation_space).__module__)
try:
    install(library="dm")
except ValueError as error:
    print(error)
"""
    shape, error = run(program).splitlines()
    assert shape == "(240, 256, 3) gymnasium.spaces.box"
    assert error == "library='dm' is not 'gym' or 'gymnasium'"


def test_the_window_of_nes_py(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from mario_envpool.compat.stand_ins.nes_py._image_viewer import ImageViewer

    viewer = ImageViewer(
        "game", 240, 256, monitor_keyboard=True, relevant_keys={ord("d")}
    )
    viewer.show(make(STAGE).reset())
    assert viewer.is_open
    for key in (pygame.K_d, pygame.K_x, pygame.K_ESCAPE):
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
    viewer.show(make(STAGE).reset())
    assert viewer.pressed_keys == (ord("d"),)
    assert viewer.is_escape_pressed
    viewer.close()
    viewer.close()
    assert not viewer.is_open


def test_a_gym_that_is_too_old_is_left_alone() -> None:
    program = f"""
import types, sys, warnings
old = types.ModuleType("gym")
old.Env, old.__version__ = type("Env", (), {{}}), "0.21.0"
sys.modules["gym"] = old
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import mario_envpool.compat
    env = mario_envpool.compat.make({STAGE!r})
import gymnasium
assert isinstance(env, gymnasium.Env)
print([str(w.message)[:34] for w in told if "gym" in str(w.message)])
"""
    assert run(program) == "['gym 0.21.0 is older than 0.24; env']\n"


def test_playing_by_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from mario_envpool.compat.stand_ins.nes_py.app.play_human import play_human

    env = JoypadSpace(make(STAGE), SIMPLE_MOVEMENT)
    steps = []

    def callback(*step: Any) -> None:
        steps.append(step)
        key = pygame.K_d if len(steps) == 1 else pygame.K_ESCAPE
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))

    play_human(env, callback)
    assert [step[1] for step in steps] == [0, 0, 1]
    obs, _, reward, done, next_obs = steps[0]
    assert obs.shape == next_obs.shape == (240, 256, 3)
    assert np.array_equal(next_obs, steps[1][0])
    assert (float(reward), done) == (0.0, False)


COMMAND = """
import sys
import numpy as np
from gym_super_mario_bros import SuperMarioBrosEnv
from gym_super_mario_bros._app.cli import main
from nes_py._rom import ROM
ROM.prg_rom_size = property(lambda self: 16 * 1024 * int(self.header[4]))
shown = []
SuperMarioBrosEnv.render = lambda self: shown.append(self._stage)
main()
print(len(shown), set(shown))
"""


def test_the_command_of_upstream(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(COMMAND)
    options = "-m random -a right -s 3 -e SuperMarioBrosRandomStages-v0 -S 1-2".split()
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool.compat", str(program), *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 {2}\n"


def test_names_of_classes() -> None:
    assert SuperMarioBrosEnv.action_space == gym.spaces.Discrete(256)
    assert SuperMarioBrosEnv.observation_space == SuperMarioBrosEnv().observation_space

    class HighJump(JoypadSpace):
        _button_map = JoypadSpace._button_map | {"AA": 256}

    env = HighJump(make(STAGE), [["right", "A"], ["AA"]])
    assert env.buttons()[-1] == "AA"
    assert env._action_map == {0: nes.RIGHT | nes.A, 1: 256}
    assert env._action_meanings == {0: "right A", 1: "AA"}


def test_info_between_steps() -> None:
    env = SuperMarioBrosEnv(target=(1, 1))
    env.reset()
    assert env._get_info()["time"] == 400
    for _ in range(5):
        _, _, done, info = env.step(RUN)
    assert (env._get_info(), env._get_done()) == (info, done)
