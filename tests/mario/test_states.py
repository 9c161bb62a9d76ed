"""Save states of stable-retro (FCEUmm): how the game continues from them."""

from __future__ import annotations

import gzip
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import mario_envpool
from mario_envpool import nes, states

pytestmark = [pytest.mark.rom, pytest.mark.verification]

FRAMES = 1500
IDS = np.arange(2, dtype=np.int32)

# Plays buttons in stable-retro and writes the work RAM after each frame.
RECORD = """
import gzip, pathlib, sys
import numpy as np
import stable_retro as retro

rom, state, buttons, to = map(pathlib.Path, sys.argv[1:])
save = gzip.decompress(state.read_bytes())
emulator, data = retro.RetroEmulator(str(rom)), retro.data.GameData()
emulator.configure_data(data)
emulator.step()
emulator.set_state(save)
order = [2, 0, 4, 8, 16, 32, 64, 128, 1]  # B, none, Select, Start, the cross, A
rams = []
for byte in buttons.read_bytes():
    emulator.set_button_mask(np.array([bool(byte & bit) for bit in order], "u1"), 0)
    emulator.step()
    data.update_ram()
    rams.append(data.memory.blocks[0] + data.memory.blocks[1024])
to.write_bytes(b"".join(rams))
"""


@pytest.fixture
def world(load_rom: Callable[[str], bytes]) -> bytes:
    return load_rom("world")


@pytest.fixture
def files(verification: Path) -> list[Path]:
    found = sorted((verification / "states").glob("*.state"))
    assert len(found) == 3
    return found


def presses(seed: int) -> bytes:
    """Random buttons, held for up to 19 frames."""
    drawn = np.random.default_rng(seed)
    held = (bytes([drawn.integers(256)]) * drawn.integers(1, 20) for _ in range(FRAMES))
    return b"".join(held)[:FRAMES]


def played(image: bytes, state: bytes, buttons: bytes) -> list[bytes]:
    """Work RAM after each frame of a console."""
    console = nes.Console(image)
    console.load(state)
    rams = []
    for byte in buttons:
        console.step(byte, draw=False)
        rams.append(console.ram.tobytes())
    return rams


def test_a_state_is_what_the_file_says(files: list[Path], world: bytes) -> None:
    for path, level in zip(files, ("1-1", "1-4", "2-1"), strict=True):
        console = nes.Console(world)
        console.load(states.load(path))
        data = gzip.decompress(path.read_bytes())
        assert console.ram.tobytes() == data[93 : 93 + 2048]
        assert console.nametable.tobytes() == data[2220 : 2220 + 2048]
        assert states.level(path) == level
        assert states.load(path, "rectangle") != states.load(path)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("stable_retro") is None,
    reason="stable-retro is not installed (pip install stable-retro)",
)
def test_the_game_continues_as_in_stable_retro(
    files: list[Path], world: bytes, tmp_path: Path
) -> None:
    """Every byte of work RAM, the stack included, in every frame."""
    (tmp_path / "game.nes").write_bytes(world)
    spec = importlib.util.find_spec("stable_retro")
    assert spec is not None
    assert spec.origin is not None
    more = Path(spec.origin).parent / "data" / "stable" / "SuperMarioBros-Nes-v0"
    for seed, path in enumerate([*files, *sorted(more.glob("*.state"))]):
        buttons = presses(seed)
        (tmp_path / "buttons").write_bytes(buttons)
        names = [tmp_path / "game.nes", path, tmp_path / "buttons", tmp_path / "rams"]
        subprocess.run([sys.executable, "-c", RECORD, *map(str, names)], check=True)
        rams = b"".join(played(world, states.load(path), buttons))
        assert rams == (tmp_path / "rams").read_bytes(), path.name


@pytest.mark.parametrize("seed", [1, 2])
def test_an_environment_continues_as_a_console(
    files: list[Path], world: bytes, seed: int
) -> None:
    env = gymnasium.make(
        "mario_envpool:SuperMarioBros-v0",
        rom="world", frame_skip=1, stack_num=1, action_set="raw", obs_type="ram",
        cut_waits=False,
    ).unwrapped  # fmt: skip
    made: Any = env
    state, buttons = states.load(files[seed]), presses(seed)
    obs, info = made.restore(state)
    assert f"{info['world']}-{info['stage']}" == states.level(files[seed])
    assert info["elapsed_step"] == 0
    for byte, ram in zip(buttons, played(world, state, buttons), strict=True):
        obs, _, terminated, _, _ = made.step(byte)
        if terminated:
            break
        assert obs.tobytes() == ram


def test_pools_begin_there(files: list[Path], world: bytes) -> None:
    del world
    one, other = (states.load(path) for path in files[1:])
    pool = mario_envpool.make("SuperMarioBros-v0", num_envs=2, rom="world")
    pool.reset()

    def levels(info: Any) -> list[tuple[int, int]]:
        return list(zip(info["world"].tolist(), info["stage"].tolist(), strict=True))

    for given in ([one, other], np.stack([rows(one), rows(other)])):
        pool.restore(IDS, given)
        obs, *_, info = pool.recv()
        assert levels(info) == [(1, 4), (2, 1)]
        assert obs.any()
    pool.restore(IDS, one)
    assert levels(pool.recv()[-1]) == [(1, 4), (1, 4)]
    pool.set_starts([0, 0, 1], [one, other])
    info = pool.reset()[1]
    assert levels(info) == [(2, 1), (2, 1)]
    assert info["start"].tolist() == [2, 2]
    # Such an episode is like any other: it can be saved and restored.
    saved = pool.snapshot(IDS)
    pool.set_starts([1, 0], saved[:1])
    assert levels(pool.reset()[1]) == [(1, 1), (1, 1)]
    many: Any = gymnasium.make_vec(
        "mario_envpool:SuperMarioBros-v0",
        num_envs=2, vectorization_mode="vector_entry_point", rom="world",
    )  # fmt: skip
    many.set_starts([0, 1], one)
    assert levels(many.reset()[1]) == [(1, 4), (1, 4)]
    late = mario_envpool.make("SuperMarioBros-v0", rom="world", timing="nes_py")
    late.set_starts([0, 1], one)
    assert levels(late.reset()[1]) == [(1, 4)]


def rows(state: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(state, np.uint8)


def test_what_cannot_begin_there_is_refused(
    files: list[Path], world: bytes, tmp_path: Path
) -> None:
    del world
    state = states.load(files[0])
    pool = mario_envpool.make("SuperMarioBros-v0", num_envs=2)
    with pytest.raises(ValueError, match="it was saved with another ROM"):
        pool.set_starts([0, 1], state)
    with pytest.raises(ValueError, match=r"rom='vanilla': .* choose rom='world'"):
        states.load(files[0], "vanilla")
    with pytest.raises(FileNotFoundError, match=r"does not exist; give a file \.state"):
        states.load(tmp_path / "none.state")
    data = gzip.decompress(files[0].read_bytes())
    path = tmp_path / "a.state"
    for content, message in (
        (b"", r"is not a state of FCEUmm, .*, but with nothing"),
        (b"NES", "is not a state of FCEUmm, .*, but with 4e4553"),
        (data[:2000], "its entry RAM has 1907 bytes, must have 2048: it is damaged"),
        (data.replace(b"XOFF", b"xoff"), "its entry XOFF has 0 bytes, must have 1"),
        (data[:29] + b"\x58" + data[30:], "is a state of another game than Super"),
        (data[: 93 + 2047] + b"\0" + data[93 + 2048 :], "is a state of another game"),
        (data[:4637] + b"\0\xff" + data[4639:], "v and t must be below 32768"),
        (gzip.compress(bytes(2 << 20)), "unpacks to more than 1,048,576 bytes"),
        (bytes(2 << 20), "it has more than 1,048,576 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            states.load(path)
        assert str(caught.value).startswith(f"{path} cannot be loaded: ")
        assert "\n" not in str(caught.value)
