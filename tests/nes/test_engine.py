"""The two engines: equal to the last byte, whatever is played, and exchangeable."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from players import random_movie
from rom_builder import ines, stand_in
from vectors import missing_read, read_vectors

from mario_envpool import _core, _testing, make, rom

TIMINGS = pytest.mark.parametrize("timing", ["console", "nes_py"])
TRANSLATES = not _core.nes_engine()[1]
STAGES = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]


def play(
    image: bytes, movie: bytes, engines: Sequence[str], timing: str, every: int = 1
) -> str:
    """Hash over states and pictures; engines take turns, and so do consoles."""
    consoles = [
        _testing.CheckedConsole(image, timing)
        if engine == "checked"
        else _core.Console(image, timing, engine)
        for engine in engines
    ]
    total = hashlib.sha256()
    for frame, button in enumerate(movie):
        console = consoles[frame // every % len(consoles)]
        console.step(button, draw=frame % 8 == 0)
        total.update(console.state_bytes())
        if frame % 8 == 0:
            total.update(console.palette_indices().tobytes())
        if frame % every == every - 1:
            consoles[(frame + 1) // every % len(consoles)].load(console.save())
    return total.hexdigest()


@TIMINGS
def test_engines_are_equal_and_take_over_from_each_other(timing: str) -> None:
    image, movie = stand_in(), random_movie(400, 1)
    want = play(image, movie, ["interpreter"], timing)
    assert play(image, movie, ["translated"], timing) == want
    assert play(image, movie, ["checked"], timing) == want
    assert play(image, movie, ["translated", "interpreter"], timing, 7) == want


@pytest.mark.rom
@TIMINGS
def test_engines_are_equal_in_the_game(
    load_rom: Callable[[str], bytes], timing: str
) -> None:
    image, movie = load_rom("vanilla"), random_movie(2_000, 2)
    want = play(image, movie, ["interpreter"], timing)
    assert play(image, movie, ["translated"], timing) == want
    assert play(image, movie, ["checked"], timing) == want
    assert play(image, movie, ["translated", "interpreter"], timing, 23) == want


@pytest.mark.rom
@pytest.mark.parametrize("timing", ["console", "nes_py"])
def test_pools_of_both_engines_agree_on_all_levels(timing: str) -> None:
    """Pictures, rewards, infos of 32 levels; snapshots pass from one to the other."""
    pools = {
        engine: make(
            "SuperMarioBros-v0",
            num_envs=32,
            stages=STAGES,
            timing=timing,
            seed=3,
            engine=engine,
        )
        for engine in ("translated", "interpreter")
    }
    random = np.random.default_rng(4)
    ids = np.arange(32, dtype=np.int32)
    for pool in pools.values():
        pool.reset()
    for step in range(60):
        actions = random.choice([1, 2, 3, 4, 4, 4, 6], size=32).astype(np.int32)
        found = [pool.step(actions, ids) for pool in pools.values()]
        for one, other in zip(*(result[:4] for result in found), strict=True):
            np.testing.assert_array_equal(one, other)
        for name, values in found[0][4].items():
            if name != "players":
                np.testing.assert_array_equal(values, found[1][4][name], name)
        if step % 20 == 19:
            saved = [pool.snapshot(ids) for pool in pools.values()]
            np.testing.assert_array_equal(saved[0], saved[1])
            for pool, blobs in zip(pools.values(), reversed(saved), strict=True):
                pool.restore(ids, blobs)
                pool.recv()
    for pool in pools.values():
        pool.close()


def as_rom(memory: dict[int, int]) -> bytes | None:
    """An image with these bytes at $8000 and above; None if some have no place.

    The others have to be in work RAM, where $0800 to $1FFF are the same bytes again.
    """
    prg = bytearray(0x8000)
    ram: dict[int, int] = {}
    for address, value in memory.items():
        if address >= 0x8000:
            prg[address - 0x8000] = value
        elif address >= 0x2000 or ram.setdefault(address % 0x800, value) != value:
            return None
    return ines(prg)


@pytest.mark.slow
@pytest.mark.verification
@pytest.mark.skipif(not TRANSLATES, reason="programs cannot be translated here")
def test_single_step_vectors_as_code_in_a_rom(verification: Path) -> None:
    total = translated = 0
    table = _testing.opcode_table()
    sizes = {"imp": 1, "acc": 1, "abs": 3, "absx": 3, "absy": 3, "ind": 3}
    names = ("pc", "a", "x", "y", "sp", "p")
    for opcode, before, after, bus in read_vectors(
        verification / "cpu" / "6502-sample.bin.gz"
    ):
        # A block goes on behind the instruction, and is not entered for the sake of
        # one: BRK, which is never translated, ends it.
        behind = before.pc + sizes.get(table[opcode][1], 2)
        memory = before.memory | {behind & 0xFFFF: 0}
        image = as_rom(memory)
        if image is None or before.pc < 0x8000 or as_rom(after.memory) is None:
            continue
        if any(
            before.memory.get(address) != value
            for address, value in after.memory.items()
            if address >= 0x8000
        ):
            continue  # it writes to what is ROM here
        console = _testing.CheckedConsole(image)
        for address, value in before.memory.items():
            if address < 0x2000:
                console.ram[address % 0x800] = value
        console.set_registers(**{name: getattr(before, name) for name in names})
        start = console.registers["cycle"]
        console.step_instruction()
        got = console.registers
        want = {name: getattr(after, name) for name in names}
        want["cycle"] = start + len(bus) + missing_read(opcode, before, bus)
        assert {name: got[name] for name in want} == want, f"{opcode:02X}"
        for address, value in after.memory.items():
            if address < 0x2000:
                assert console.ram[address % 0x800] == value, f"{opcode:02X}"
        total += 1
        translated += console.translated_runs
    # The others need memory that is neither work RAM nor ROM, or write to the ROM; of
    # these, nearly half are opcodes that no game may rely on, which are interpreted.
    assert total > 9_000
    assert translated > 5_000


@pytest.mark.rom
@pytest.mark.skipif(not TRANSLATES, reason="programs cannot be translated here")
def test_nearly_all_cycles_of_the_game_run_translated(
    load_rom: Callable[[str], bytes],
) -> None:
    console = _testing.CheckedConsole(load_rom("vanilla"), checks=False)
    console.step_many(random_movie(3_000, 5), 0)
    assert console.translated_share > 0.95
    assert console.translation_size["code_bytes"] < 1 << 20


def test_names_of_engines() -> None:
    image = stand_in()
    console = _core.Console(image, engine="interpreter")
    assert console.engine == "interpreter"
    assert console.translation_size == {}
    console.set_engine("translated")
    assert (console.engine == "translated") == TRANSLATES
    with pytest.raises(ValueError, match="engine='x' is not possible; choose trans"):
        console.set_engine("x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("interpreter", r"interpreter"),
        ("x", "none: MARIO_ENGINE: engine='x' is not possible"),
    ],
)
def test_the_environment_names_the_engine(variable: str, line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mario_envpool"],
        env={"MARIO_ENGINE": variable, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    [said] = [row for row in done.stdout.splitlines() if row.startswith("engine")]
    assert line in said


WITHOUT_CODE_OF_ITS_OWN = """
import ctypes, sys
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit("old kernel")
from mario_envpool import _core
print(*_core.nes_engine(), sep=": ")
console = _core.Console(bytes.fromhex(sys.stdin.read()), engine="translated")
for _ in range(20):
    console.step(0)
print(console.engine, console.state_bytes().hex()[:64])
"""


@pytest.mark.skipif(not TRANSLATES, reason="programs cannot be translated here")
def test_where_memory_may_not_become_code_the_interpreter_plays() -> None:
    image = stand_in()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CODE_OF_ITS_OWN],
        env={"PYTHONPATH": ":".join(sys.path)},
        input=image.hex(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "old kernel" in done.stderr:
        pytest.skip("this kernel cannot forbid a process to make code")
    said, played = done.stdout.splitlines()
    assert said == "interpreter: this system does not let programs create machine code"
    console = _core.Console(image, engine="translated")
    for _ in range(20):
        console.step(0)
    assert played == f"interpreter {console.state_bytes().hex()[:64]}"


WARNED = """
import ctypes, os, sys, warnings
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit("old kernel")
from mario_envpool import _core, make
image, engine = bytes.fromhex(sys.stdin.read()), sys.argv[1]
makers = [
    lambda: _core.Console(image, "console", engine),
    lambda: _core._MarioEnv(image, {"engine": engine}),
]
if sys.argv[2] == "rom":
    makers.append(lambda: make("SuperMarioBros-v0", engine=engine))
for first in (*makers, makers[0]):
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for maker in (first, *makers):
                made = maker()
        if hasattr(made, "status"):
            status = made.status()
            print(status["engine"], status["engine_problem"], sep=": ", flush=True)
        kinds = [warning.category.__name__ for warning in caught]
        print(*kinds, *(str(each.message) for each in caught), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.rom
@pytest.mark.skipif(not TRANSLATES, reason="programs cannot be translated here")
@pytest.mark.parametrize("wanted", ["", "translated", "interpreter"])
@pytest.mark.parametrize("variable", ["", "interpreter"])
def test_one_warning_where_memory_may_not_become_code(
    wanted: str, variable: str
) -> None:
    """Whatever is made first; no warning for who asked for the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", WARNED, wanted, "rom"],
        env={"PYTHONPATH": ":".join(sys.path), "MARIO_ENGINE": variable},
        input=stand_in().hex(),
        capture_output=True,
        text=True,
        check=False,
    )
    if "old kernel" in done.stderr:
        pytest.skip("this kernel cannot forbid a process to make code")
    assert done.returncode == 0, done.stderr
    reason = "this system does not let programs create machine code"
    is_asked_for = "interpreter" in (wanted, wanted or variable)
    lines = done.stdout.splitlines()
    assert lines[::2] == [f"interpreter: {'' if is_asked_for else reason}"] * 4
    for line in lines[1::2]:
        if is_asked_for:
            assert line == ""
        else:
            assert line.startswith("RuntimeWarning the game is interpreted, with")
            assert line.count(reason) == 1
            assert "MemoryDenyWriteExecute=no" in line
            assert "engine='interpreter'" in line


@pytest.mark.rom
def test_status_names_the_engine() -> None:
    for engine in ("interpreter", "translated"):
        pool = make("SuperMarioBros-1-1-v0", engine=engine)
        status = pool.status()
        runs = TRANSLATES or engine == "interpreter"
        assert status["engine"] == (engine if runs else "interpreter")
        assert (status["engine_problem"] == "") == runs
        pool.close()


@pytest.mark.skipif(not TRANSLATES, reason="no program is translated here")
def test_memory_stays_small_where_frames_end_anywhere() -> None:
    """Under nes-py's timing a frame ends inside of blocks, each time elsewhere."""
    console = _core.Console(rom.load(), "nes_py", "translated")
    for first in range(0, 96_000, 24_000):
        console.step_many(random_movie(24_000, seed=first))
    size = console.translation_size
    assert size["code_bytes"] > 0
    assert size["memory_bytes"] < 1.5 * 2**20
