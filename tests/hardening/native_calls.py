"""Calls every native entry with arguments of all kinds: never a crash, never a hang.

    python tests/hardening/native_calls.py --calls 1000000
    python tests/hardening/native_calls.py --calls 20000 --seed 17    one chunk again

Arguments are half sensible and half anything: other types, shapes and dtypes, arrays
that are strided, read-only or gone, numbers beyond any integer, objects that raise when
they are looked at. A call may succeed, or raise what the library documents
(``ALLOWED``). Chunks of calls run in processes of their own, so that a crash or a hang
costs one chunk, and its seed is printed. No game is needed.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import rom_builder

from mario_envpool import _core, _testing, options, rom

CHUNK_CALLS = 20_000
CHUNK_TIMEOUT_S = 1200
# Objects live this long, then new ones are made (and the old ones dropped).
LIFE_CALLS = 150


class HostileError(Exception):
    """Raised by objects of ours when the library looks at them."""


ALLOWED = (ValueError, TypeError, IndexError, RuntimeError, HostileError)


class Hostile:
    """Raises, or lies, whatever it is asked."""

    def __index__(self) -> int:
        raise HostileError

    __len__ = __float__ = __bool__ = __int__ = __index__  # type: ignore[assignment]

    def __iter__(self) -> Any:
        raise HostileError

    def __getitem__(self, item: object) -> Any:
        raise HostileError

    def __repr__(self) -> str:
        return "Hostile()"


class LyingSequence(list[Any]):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 7


INTEGERS = [0, 1, 2, 3, -1, 4, 7, 84, 255, 256, 1024, 1025, 65536, 2**31 - 1, 2**31]
INTEGERS += [-(2**31), -(2**31) - 1, 2**32, 2**63 - 1, 2**63, 2**64, -(2**64), 10**40]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1e300, -1e300, float("inf"), float("nan"), 5e-324]
DTYPES = "? b B h H i I l L q Q e f d g F O S3 U3 M8[s] V5 >i4 >u8".split()
WORDS = ["", "1-1", "8-4", "A-2", "keep", "crop", "mask", "raw", "simple", "saved"]
WORDS += ["keep\0", "é", "\ud800", "x" * 5000, "NOOP", "scalar", "avx2", "vanilla"]


class Maker:
    """Makes arguments from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def shape(self) -> tuple[int, ...]:
        """Up to four sides, now and then an empty one."""
        sides = [0, 1, 1, 2, 3, 4, 5, 40, 240, 256]
        return tuple(self.random.choices(sides[:8], k=self.random.randrange(4)))

    def array(self) -> Any:
        """An array of any dtype and memory layout."""
        dtype = np.dtype(self.random.choice(DTYPES))
        shape = self.random.choice([(4,), (2,), (1,), self.shape(), self.shape()])
        with np.errstate(all="ignore"):
            numbers = np.array(self.random.choices([0, 1, 2, 3, -1, 2**31 - 1, 255]))
            array = np.resize(numbers, shape).astype(dtype)
        return self.laid_out(array)

    def laid_out(self, array: Any) -> Any:
        """The same values, differently in memory."""
        kind = self.random.randrange(8)
        if kind == 0 and array.ndim > 0:
            return np.repeat(array, 2, axis=-1)[..., ::2]
        if kind == 1 and array.ndim > 0:
            return array[::-1]
        if kind == 2:
            array.flags.writeable = False
        if kind == 3:
            return np.asfortranarray(array)
        if kind == 4:
            return np.broadcast_to(array, (2, *array.shape))
        if kind == 5 and array.dtype.itemsize > 1 and not array.dtype.hasobject:
            odd = np.zeros(array.nbytes + 1, np.uint8)[1:]  # misaligned
            view = odd.view(array.dtype).reshape(array.shape)
            view[...] = array
            return view
        return array

    def integer(self) -> int:
        """Small or at an edge."""
        if self.random.random() < 0.5:
            return self.random.randrange(-2, 9)
        return self.random.choice(INTEGERS)

    def anything(self, depth: int = 0) -> Any:
        pick = self.random
        choice = pick.randrange(16 if depth < 2 else 9)
        if choice < 3:
            return self.integer()
        if choice == 3:
            return pick.choice(FLOATS)
        if choice == 4:
            return pick.choice(WORDS)
        if choice == 5:
            return pick.randbytes(pick.choice([0, 1, 16, 2048, 50_000]))
        if choice == 6:
            return pick.choice([None, True, False, Ellipsis, object, len, 3 + 4j])
        if choice == 7:
            return pick.choice([Hostile(), LyingSequence(), object(), range(3)])
        if choice == 8:
            dtypes = [np.int32, np.uint64, np.float32, np.int8, np.bool_]
            return pick.choice(dtypes)(pick.randrange(3))
        if choice < 12:
            return self.array()
        items = [self.anything(depth + 1) for _ in range(pick.randrange(5))]
        if choice == 12:
            return {str(i): item for i, item in enumerate(items)}
        if choice == 13:
            return (item for item in items)
        return tuple(items) if choice == 14 else items

    def ids(self) -> Any:
        """Environment ids, mostly good ones."""
        count = self.random.randrange(1, 5)
        ids = np.array(self.random.sample(range(4), count), np.int32)
        if self.random.random() < 0.1:
            ids = np.append(ids, np.int32(self.random.choice([-1, 4, 2**31 - 1, 0])))
        return ids

    def weights(self, count: int = 0) -> Any:
        """Weights of starts, mostly good ones."""
        count = count or self.random.randrange(1, 7)
        return [self.random.choice([0, 1, 2.5, 1e300]) for _ in range(count)]

    def damaged(self, blob: bytes) -> bytes:
        """A few bytes changed, cut or added."""
        data = bytearray(blob)
        for _ in range(self.random.randrange(6)):
            if data:
                data[self.random.randrange(len(data))] = self.random.randrange(256)
        cut = self.random.choice([0, 0, 0, 0, 1, -1])
        return bytes(data[:-1] if cut == 1 else data + b"x" if cut == -1 else data)


class Calls:
    """The objects of the moment, and a random call to one of them."""

    def __init__(self, maker: Maker) -> None:
        self.make = maker
        self.rom = rom_builder.stand_in()
        self.kept: list[Any] = []  # views that may outlive their owners
        self.renew()

    def renew(self) -> None:
        """Drops the objects and makes others; views of the old ones stay a while."""
        pick = self.make.random
        if len(self.kept) > 40:
            del self.kept[:30]
        self.console = _core.Console(self.rom)
        self.save = self.console.save()
        self.flat = _testing.FlatCpu()
        small: dict[str, Any] = {"img_height": 8, "img_width": 8, "stack_num": 2}
        extra: list[dict[str, Any]] = [
            {"stages": ["1-1"]},
            {"random_stages": True, "frame_max": True, "noop_max": 4},
            {"episodic_life": True, "reward": "v9", "action_set": "raw"},
        ]
        self.env = _core._MarioEnv(self.rom, small | pick.choice(extra), 0, 1)
        values = dict(
            zip(
                _testing._CountingEnvSpec._config_keys,
                _testing._CountingEnvSpec._default_config_values,
                strict=True,
            )
        )
        values |= {"num_envs": 4, "obs_shape": [64], "num_threads": pick.choice([1, 2])}
        values["batch_size"] = pick.choice([0, 1, 3])
        self.spec = _testing._CountingEnvSpec(tuple(values.values()))
        self.pool = _testing._CountingEnvPool(self.spec)
        self.blob: Any = None

    def arg(self, sensible: Callable[[], Any]) -> Any:
        """A sensible argument, or now and then any."""
        return sensible() if self.make.random.random() < 0.7 else self.make.anything()

    def some(self, *values: Any) -> Callable[[], Any]:
        return lambda: self.make.random.choice(values)

    def call(self) -> None:
        getattr(self, self.make.random.choice(CALLS))()

    def call_console(self) -> None:
        console, make = self.console, self.make
        byte = self.some(0, 1, 128, 255, 256, -1)
        flag = self.some(True, False)
        movie = self.some(b"", b"\x01\x80", b"\xff" * 5)
        method, arguments = make.random.choice(
            [
                (console.step, [byte, flag]),
                (console.step_many, [movie, make.integer]),
                (console.step_instruction, []),
                (console.power_on, []),
                (console.reset, []),
                (console.peek, [make.integer]),
                (console.palette_indices, []),
                (console.screen, []),
                (console.load, [lambda: make.damaged(self.save)]),
                (console.state_bytes, []),
                (console.set_idle_skip, [flag]),
                (console.set_fast_loop, [flag]),
                (console.set_engine, [self.some("interpreter", "translated", "")]),
            ]
        )
        method(*[self.arg(each) for each in arguments])

    def call_console_parts(self) -> None:
        """Properties, registers, live memory; a console of any bytes."""
        choice = self.make.random.randrange(8)
        if choice == 0:
            name = self.make.random.choice(["pc", "a", "x", "y", "sp", "p", "q"])
            self.console.set_registers(**{name: self.arg(self.make.integer)})
        elif choice == 1:
            self.kept.append(self.console.ram)
            self.kept[-1][self.make.random.randrange(2048)] = 7
        elif choice == 2:
            self.save = self.console.save()
        elif choice == 3:
            _ = self.console.registers, self.console.beam, self.console.rom_hash
            self.kept.append(self.console.nametable)
        elif choice == 4:
            _core.Console(self.arg(lambda: self.make.damaged(self.rom)))
        elif choice == 5:
            sizes = {"nametable": 2048, "palette": 32, "oam": 256}
            parts = {n: self.arg(lambda size=s: bytes(size)) for n, s in sizes.items()}  # type: ignore[misc]
            names = ("ctrl", "mask", "status", "v", "t", "fine_x", "w")
            numbers = {name: self.arg(self.some(0, 7, 255)) for name in names}
            self.console.set_picture(**parts, **numbers)
            self.console.step(0)
        elif choice == 6:
            self.flat.step(*[self.arg(self.make.integer) for _ in range(6)])
        else:
            self.kept.append(self.flat.memory)
            self.kept[-1][self.make.random.randrange(65536)] = 3

    def call_env(self) -> None:
        env, make = self.env, self.make
        action = self.some(0, 1, 2, 4, 255, 256, -1)
        method, arguments = make.random.choice(
            [
                (env.reset, [self.some(None, 0, 7, 2**64 - 1)]),
                (env.step, [action]),
                (env.step, [action]),
                (env.film, [action]),
                (env.advance, [action]),
                (env.read, []),
                (env.save_console, []),
                (env.info_ram, []),
                (env.render, []),
                (env.load_console, [lambda: make.damaged(self.save)]),
                (env.restore, [lambda: make.damaged(env.snapshot())]),
            ]
        )
        method(*[self.arg(each) for each in arguments])

    def call_env_parts(self) -> None:
        """Live memory, and environments of any options."""
        make = self.make
        if make.random.random() < 0.5:
            self.kept.append(self.env.ram)
            where = make.random.randrange(2048)
            self.kept[-1][where] = make.random.randrange(256)
            _ = self.env.num_actions, self.env.buttons, self.env.frames
            return
        name = make.random.choice([*_core._MarioEnvSpec._config_keys, "wrong"])
        image = self.arg(lambda: self.rom)
        _core._MarioEnv(image, {name: make.anything()}, self.arg(self.some(0, 3)), 1)

    def call_pool(self) -> None:
        """Send, reset, recv and the rest, on a pool that is kept busy."""
        pool, make = self.pool, self.make
        ids = make.ids()
        actions = np.zeros(len(ids), np.int32)
        bad_triple = self.arg(lambda: [ids, ids, self.arg(lambda: actions)])
        method, arguments = make.random.choice(
            [
                (pool._send, [lambda: [ids, ids, actions]]),
                (pool._send, [lambda: bad_triple]),
                (pool._reset, [lambda: ids, self.some(None, [1] * len(ids), [-1])]),
                (pool._recv, []),
                (pool._recv, []),
                (pool._send_and_recv, [lambda: bad_triple]),
                (pool._reset_and_recv, [lambda: ids, self.some(None, [None, 2])]),
                (pool._restore_and_recv, [lambda: ids, lambda: self.blob]),
                (pool._checked_ids, [make.anything]),
                (pool._checked_actions, [make.anything, make.integer]),
                (lambda: (pool._outstanding, pool._ended), []),
                (pool._render, [lambda: ids, make.integer, make.integer, make.integer]),
                (pool.snapshot, [lambda: ids]),
                (pool.restore, [lambda: ids, lambda: self.blob, self.some("keep")]),
                (pool.set_starts, [lambda: make.weights(1), self.some(None)]),
                (pool.set_starts, [lambda: make.weights(), lambda: self.blob]),
                (pool.status, []),
                (lambda: pool.num_stages, []),
                (pool._xla, []),
            ]
        )
        result = method(*[self.arg(each) for each in arguments])
        if method == pool._recv:
            self.kept.append(result)
        if method == pool.snapshot:
            self.blob = make.laid_out(result)

    def call_spec(self) -> None:
        make = self.make
        for spec in (_testing._CountingEnvSpec, _core._MarioEnvSpec):
            values = list(spec._default_config_values)
            at = make.random.randrange(len(values))
            values[at] = make.anything()
            key = spec._config_keys[at]
            made = spec(self.arg(lambda values=values: tuple(values)))  # type: ignore[misc]
            _ = made._state_spec, made._action_spec, made._config_values
            # Thousands of threads or gigabytes are what was asked for.
            if key not in ("num_envs", "num_threads", "obs_shape", "max_sleep_us"):
                _testing._CountingEnvPool(made)
        _testing._CountingEnvPool(make.anything())

    def call_frame(self) -> None:
        make = self.make

        def picture() -> Any:
            return make.laid_out(np.full((240, 256), make.random.randrange(64), "u1"))

        hud, path = self.some("keep", "mask", "crop"), self.some("", "scalar", "avx2")
        size = self.some(1, 8, 84, 240, 256, 1024)
        flag = self.some(True, False)
        arguments = [picture, self.some(None, picture()), size, size, flag, flag]
        _testing.preprocess_frame(*[self.arg(each) for each in [*arguments, hud, path]])

    def call_python(self) -> None:
        """What stands in front of the native code: options and ROM files."""
        make = self.make
        key = make.random.choice(
            [*_core._MarioEnvSpec._config_keys, "render_mode", "?"]
        )
        if make.random.random() < 0.8:
            options.checked("SuperMarioBros-v0", {key: make.anything()})
        else:
            rom.load(make.anything(), make.random.choice(WORDS))


CALLS = [name for name in dir(Calls) if name.startswith("call_")]


def run(seed: int, calls: int) -> Counter[str]:
    """Makes the calls of one chunk in this process; counts what became of them."""
    machine = Calls(Maker(seed))
    counts: Counter[str] = Counter()
    for number in range(calls):
        if number % LIFE_CALLS == LIFE_CALLS - 1:
            machine.renew()
        try:
            machine.call()
            counts["fine"] += 1
        except ALLOWED as error:
            counts[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, call {number}: {error!r}") from error
    del machine
    gc.collect()
    return counts


def main() -> int:
    """Runs chunk after chunk; says which seed crashed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=CHUNK_CALLS)
    parser.add_argument("--seed", type=int, default=0, help="of the first chunk")
    arguments = parser.parse_args()
    start, done, seed = time.monotonic(), 0, arguments.seed
    failed = []
    if arguments.calls <= CHUNK_CALLS:
        print(dict(run(seed, arguments.calls)))
        return 0
    while done < arguments.calls:
        command = [sys.executable, __file__, "--seed", str(seed)]
        try:
            status = subprocess.run(command, timeout=CHUNK_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            status = -1
        if status != 0:
            failed.append(seed)
            print(f"FAILED: seed {seed}, exit status {status}", flush=True)
        seed, done = seed + 1, done + CHUNK_CALLS
        taken = time.monotonic() - start
        print(f"{done:,} calls in {taken:.0f} s, {len(failed)} bad chunks", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
