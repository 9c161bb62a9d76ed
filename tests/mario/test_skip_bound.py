"""Waits that never end are errors that name the environment, not hangs.

The ROM is a few homemade instructions: a game whose clock ticks, so that its
start screen and opening pass, but which keeps the player "busy" for ever.
"""

from __future__ import annotations

from typing import Any

import pytest

from mario_envpool import _core

PRG, NMI = 0x8000, 0x8040


def homemade_rom(nmi: list[int]) -> bytes:
    """An NROM image: NMI on, wait in place; `nmi` runs at every frame."""
    # SEI; LDX #$FF; TXS; LDA #0, X counting: clears RAM; STA $2000 = $80; JMP self
    boot = [
        0x78, 0xA2, 0xFF, 0x9A, 0xA9, 0x00, 0xA2, 0x00,
        0x95, 0x00, 0x9D, 0x00, 0x07, 0xE8, 0xD0, 0xF8,  # clear $00xx, $07xx
        0xA9, 0x08, 0x85, 0x0E,                          # normal state
        0xA9, 0x80, 0x8D, 0x00, 0x20,                    # NMI on
        0x4C, 0x19, 0x80,                                # JMP self
    ]  # fmt: skip
    prg = bytearray(32768)
    prg[: len(boot)] = bytes(boot)
    prg[NMI - PRG : NMI - PRG + len(nmi)] = bytes(nmi)
    prg[0x7FFA:0x8000] = bytes([NMI & 255, NMI >> 8, 0, 0x80, 0, 0x80])
    return b"NES\x1a" + bytes([2, 1, 1, 0]) + bytes(8) + bytes(prg) + bytes(8192)


# The clock's last digit is 9 - bits 2-4 of a frame counter.
TICKING_CLOCK = [
    0xE6, 0x09,              # INC $09
    0xA5, 0x09, 0x4A, 0x4A, 0x29, 0x07,
    0x85, 0x0A, 0xA9, 0x09, 0x38, 0xE5, 0x0A, 0x8D, 0xFA, 0x07,
]  # fmt: skip
BUSY_AFTER_64_FRAMES = [
    0xA5, 0x09, 0xC9, 0x40, 0x90, 0x04,  # LDA $09; CMP #$40; BCC +4
    0xA9, 0x02, 0x85, 0x0E,              # LDA #2; STA $0E
    0x40,
]  # fmt: skip


def make(nmi: list[int], **options: Any) -> Any:
    return _core._MarioEnv(homemade_rom(nmi), options, 7, 0)


def play(env: Any, steps: int) -> None:
    for _ in range(steps):
        env.step(0)


def test_wait_that_never_ends() -> None:
    env = make([*TICKING_CLOCK, *BUSY_AFTER_64_FRAMES])
    env.reset()
    with pytest.raises(
        RuntimeError,
        match=r"environment 7 \(world 1-1\): skipping a wait between areas or lives "
        r"did not end within 1200 frames",
    ):
        play(env, steps=64)
    # A reset makes it playable again.
    env.reset()
    env.step(0)


def test_start_screen_that_never_ends() -> None:
    env = make([0x40])
    with pytest.raises(
        RuntimeError, match=r"environment 7 .*the start screen did not end"
    ):
        env.reset()


def test_clock_that_never_ticks() -> None:
    env = make([0xA9, 0x05, 0x8D, 0xFA, 0x07, 0x40])
    with pytest.raises(RuntimeError, match=r"skipping the start of the stage did not"):
        env.reset()


def test_world_that_never_ends() -> None:
    # The whole game, between worlds: the clock stands still.
    frozen = [0xA9, 0x02, 0x8D, 0x70, 0x07, 0x40]  # LDA #2; STA $0770; RTI
    busy = [0xA5, 0x09, 0xC9, 0x40, 0xB0, 0x01, 0x40]  # past frame 64 only
    clock = [0xA5, 0x09, 0xC9, 0x40, 0xB0, len(TICKING_CLOCK)]
    env = make([*clock, *TICKING_CLOCK, *busy, *frozen])
    env.reset()
    with pytest.raises(RuntimeError, match=r"skipping the end of a world did not"):
        play(env, steps=64)
