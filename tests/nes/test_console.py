"""The console: frames, pads, timing, saves, and that shortcuts are exact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rom_builder import build

from mario_envpool import _core

# Counts frames in $10 through the NMI, reads the pad into $11, waits for sprite
# 0 in the idle loop's frame, and counts polls that saw the hit in $12.
PROGRAM = """
reset:
    sei
    ldx #$ff
    txs
    lda #$00
    sta $2000
    sta $2001
wait1: bit $2002
    bpl wait1
wait2: bit $2002
    bpl wait2
    lda #$3f
    sta $2006
    lda #$00
    sta $2006
    ldx #$00
colours:
    txa
    sta $2007
    inx
    cpx #$20
    bne colours
    lda #$20
    sta $2006
    lda #$00
    sta $2006
    ldx #$00
    ldy #$04
    lda #$01
fill:
    sta $2007
    inx
    bne fill
    dey
    bne fill
    lda #$20        ; sprite 0 at (48, 32), tile 1
    sta $0200
    lda #$01
    sta $0201
    lda #$00
    sta $0202
    lda #$30
    sta $0203
    lda #$80
    sta $2000
forever:
    jmp forever
nmi:
    inc $10
    lda #$00
    sta $2003
    lda #$02
    sta $4014
    lda #$01
    sta $4016
    lda #$00
    sta $4016
    ldx #$08
pad:
    lda $4016
    lsr
    ror $11
    dex
    bne pad
    bit $2002
    lda $10
    sta $2005
    lda #$00
    sta $2005
    lda #$1e
    sta $2001
clear:
    lda $2002
    and #$40
    bne clear
hit:
    lda $2002
    and #$40
    beq hit
    inc $12
    lda #$40
    sta $2005
    sta $2005
    rti
irq:
    rti
"""
# Tile 1: a diagonal pattern in both planes; tile 0 is empty.
CHR = bytes(16) + bytes([0xF0, 0x78, 0x3C, 0x1E, 0x0F, 0x87, 0xC3, 0xE1] * 2)


@pytest.fixture(scope="module")
def image() -> bytes:
    return build(PROGRAM, chr_rom=CHR, vertical=False)


def digest(console: _core.Console) -> str:
    return hashlib.sha256(console.state_bytes()).hexdigest()


def test_program_runs_one_nmi_a_frame(image: bytes) -> None:
    console = _core.Console(image)
    for _ in range(10):
        console.step(0)
    frames, hits = int(console.ram[0x10]), int(console.ram[0x12])
    for _ in range(50):
        console.step(0)
    assert int(console.ram[0x10]) - frames == 50
    assert int(console.ram[0x12]) - hits == 50


def test_frames_are_29780_and_a_half_cycles(image: bytes) -> None:
    console = _core.Console(image)
    for _ in range(10):
        console.step(0)
    start = console.registers["cycle"]
    for _ in range(1000):
        console.step(0)
    # 89,341.5 dots a frame with rendering on; an instruction's slack at the ends.
    assert abs(console.registers["cycle"] - start - 29_780_500) < 20


def test_frames_of_nes_py_are_29781_cycles(image: bytes) -> None:
    """Not from the end of the last instruction, but from where the last frame ended."""
    console = _core.Console(image, "nes_py")
    start = console.registers["cycle"]
    for frame in range(1, 1001):
        console.step(0)
        # The longest instruction is an OAM DMA, of 518 cycles.
        assert 0 <= console.registers["cycle"] - start - 29_781 * frame < 518
    assert 998 <= int(console.ram[0x10]) + 256 * 3 <= 1000


def test_single_instructions_of_nes_py_keep_the_frames_in_place(image: bytes) -> None:
    """Over the end of a frame: the state can be saved, and a frame is a frame."""
    console, other = (_core.Console(image, "nes_py") for _ in range(2))
    start = console.registers["cycle"]
    while console.registers["cycle"] < start + 31_000:
        console.step_instruction()
    other.load(console.save())
    other.step(0)
    # The second frame ends where it would have.
    assert 0 <= other.registers["cycle"] - start - 2 * 29_781 < 518


def test_unknown_timing(image: bytes) -> None:
    with pytest.raises(ValueError, match="timing='x' is not possible; choose console"):
        _core.Console(image, "x")


@pytest.mark.parametrize("buttons", [0, 1, 0x81, 0xC0, 0xFF])
def test_pad_bits(image: bytes, buttons: int) -> None:
    console = _core.Console(image)
    for _ in range(10):
        console.step(buttons)
    assert int(console.ram[0x11]) == buttons


def test_buttons_out_of_range(image: bytes) -> None:
    with pytest.raises(ValueError, match="buttons is 256"):
        _core.Console(image).step(256)


def test_ram_is_a_live_writable_view(image: bytes) -> None:
    console = _core.Console(image)
    ram = console.ram
    assert ram.shape == (2048,)
    assert ram.dtype == np.uint8
    ram[0x7F0] = 99
    assert console.peek(0x7F0) == 99
    console.step(0)
    assert int(ram[0x7F0]) == 99
    del console
    assert int(ram[0x7F0]) == 99  # the view keeps the console alive


def test_picture(image: bytes) -> None:
    console = _core.Console(image)
    for _ in range(20):
        console.step(0)
    indices, screen = console.palette_indices(), console.screen()
    assert indices.shape == (240, 256)
    assert screen.shape == (240, 256, 3)
    assert indices.max() < 64
    # Above the split the picture scrolls with the frame counter. Line 24 is the
    # first of a tile, in the half of the attribute square that has palette 0.
    scroll = int(console.ram[0x10])
    # The backdrop is colour 16: $3F10 mirrors $3F00 and was written last.
    pattern = np.roll([3, 3, 3, 3, 16, 16, 16, 16], -(scroll & 7))
    want = np.resize(pattern, 256)
    assert (indices[24] == want).all()


def play(
    image: bytes,
    frames: int,
    *,
    skip: bool = True,
    fast: bool = True,
    draw: bool = False,
    mode: str = "run",
    movie: bytes = b"",
    timing: str = "console",
) -> str:
    """Hash over the states of all frames, in one of three save modes."""
    console = _core.Console(image, timing)
    console.set_idle_skip(skip)
    console.set_fast_loop(fast)
    total = hashlib.sha256()
    for frame in range(frames):
        button = movie[frame] if frame < len(movie) else frame * 7 % 256
        if mode == "load-run-save":
            fresh = _core.Console(image, timing)
            fresh.set_idle_skip(skip)
            fresh.set_fast_loop(fast)
            fresh.load(console.save())
            console = fresh
        if mode == "load-run-save-run":
            saved = console.save()
            console.step(button, draw=draw)
            console.load(saved)
        console.step(button, draw=draw)
        total.update(console.state_bytes())
    return total.hexdigest()


TIMINGS = pytest.mark.parametrize("timing", ["console", "nes_py"])


@TIMINGS
@pytest.mark.parametrize(
    ("skip", "fast", "draw", "mode"),
    [
        (False, True, False, "run"),
        (False, False, False, "run"),
        (True, True, True, "run"),
        (False, True, True, "run"),
        (True, True, False, "load-run-save"),
        (True, True, True, "load-run-save-run"),
    ],
)
def test_shortcuts_and_saves_are_exact(
    image: bytes, skip: bool, fast: bool, draw: bool, mode: str, timing: str
) -> None:
    want = play(image, 300, timing=timing)
    got = play(image, 300, skip=skip, fast=fast, draw=draw, mode=mode, timing=timing)
    assert got == want


def test_a_frame_of_nes_py_may_end_in_any_round_of_a_poll(image: bytes) -> None:
    """Half a cycle later each time, 9,000 frames end all along the wait for a hit."""
    want = play(image, 9_000, timing="nes_py", skip=False, fast=False)
    assert play(image, 9_000, timing="nes_py") == want


@TIMINGS
def test_fast_loop_runs_any_program_as_the_full_loop_does(timing: str) -> None:
    """Random bytes as ROM: every pair, every bail-out, code in RAM and I/O."""
    random = np.random.default_rng(1)
    header = b"NES\x1a" + bytes([2, 1, 1, 0]) + bytes(8)
    for _ in range(60):
        prg = bytearray(random.integers(0, 256, 0x8000, dtype=np.uint8).tobytes())
        # Fewer jams, so that programs live longer.
        for at in np.flatnonzero(
            np.isin(np.frombuffer(bytes(prg), np.uint8), [*range(0x02, 0xFF, 0x10)])
        ):
            prg[at] = 0xEA
        image = header + bytes(prg) + bytes(8192)
        want = play(image, 12, skip=False, fast=False, timing=timing)
        assert play(image, 12, timing=timing) == want


def _right_biased_movie(frames: int, seed: int) -> bytes:
    """Start at the title, then mostly right, in pieces of 4 to 24 frames."""
    random = np.random.default_rng(seed)
    movie = [0] * 40 + ([8] * 4 + [0] * 4) * 5
    while len(movie) < frames:
        button = random.choice([128, 129, 130, 131, 131, 64, 0, 1, 32])
        movie += [int(button)] * int(random.integers(4, 25))
        if random.random() < 0.02:
            movie += [8] * 4 + [0] * 4
    return bytes(movie[:frames])


@pytest.mark.rom
@pytest.mark.slow
@TIMINGS
def test_shortcuts_and_saves_are_exact_in_the_game(
    load_rom: Callable[[str], bytes], timing: str
) -> None:
    """100,000 frames in all: states equal with every shortcut on and off."""
    image = load_rom("vanilla")
    for seed in range(4):
        movie = _right_biased_movie(5_000, seed)
        common: dict[str, Any] = {"movie": movie, "timing": timing}
        want = play(image, 5_000, **common)
        assert play(image, 5_000, **common, skip=False, fast=False) == want
        assert play(image, 5_000, **common, draw=True) == want
        for mode in ("load-run-save", "load-run-save-run"):
            assert play(image, 5_000, **common, mode=mode) == want


def test_save_and_load_in_another_console(image: bytes) -> None:
    console = _core.Console(image)
    for frame in range(30):
        console.step(frame)
    other = _core.Console(image)
    other.load(console.save())
    assert digest(other) == digest(console)
    console.step(5)
    other.step(5)
    assert digest(other) == digest(console)


def test_foreign_saves_are_refused(image: bytes) -> None:
    console = _core.Console(image)
    saved = console.save()
    before = digest(console)
    changed = bytearray(image)
    changed[16 + 100] ^= 1
    other = _core.Console(bytes(changed))
    with pytest.raises(ValueError, match="another ROM"):
        other.load(saved)
    with pytest.raises(ValueError, match="too few for a header"):
        console.load(b"abc")
    with pytest.raises(ValueError, match="not a console state"):
        console.load(bytes(len(saved)))
    with pytest.raises(ValueError, match="version 99"):
        console.load(saved[:4] + (99).to_bytes(4, "little") + saved[8:])
    with pytest.raises(ValueError, match="under the other timing"):
        console.load(_core.Console(image, "nes_py").save())
    with pytest.raises(ValueError, match="under the other timing"):
        _core.Console(image, "nes_py").load(saved)
    with pytest.raises(ValueError, match="does not fit"):
        console.load(saved[:-1])
    assert digest(console) == before


@TIMINGS
def test_damaged_saves_never_crash(image: bytes, timing: str) -> None:
    """Bytes of a state that no console would reach are taken, and run."""
    random = np.random.default_rng(0)
    console = _core.Console(image, timing)
    saved = console.save()
    for _ in range(50):
        damaged = bytearray(saved)
        at = random.integers(24, len(saved), size=40)
        for i in at:
            damaged[i] = int(random.integers(256))
        try:
            console.load(bytes(damaged))
        except ValueError:
            continue
        for _ in range(2):
            console.step(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rom: b"", "0 bytes given"),
        (lambda rom: b"NSF" + rom[3:], "no iNES header"),
        (lambda rom: rom[:6] + bytes([0x11]) + rom[7:], "mapper 1"),
        (lambda rom: rom[:4] + bytes([3]) + rom[5:], "3 PRG banks"),
        (lambda rom: rom[:5] + bytes([2]) + rom[6:], "2 CHR banks"),
        (lambda rom: rom[:-1], "truncated"),
    ],
)
def test_bad_images(
    image: bytes, change: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Console(change(image))


def test_reset_keeps_ram(image: bytes) -> None:
    console = _core.Console(image)
    for _ in range(20):
        console.step(0)
    console.ram[0x700] = 42
    console.reset()
    console.step(0)
    assert int(console.ram[0x700]) == 42
    console.power_on()
    assert int(console.ram[0x700]) == 0


def test_a_picture_of_ones_own(image: bytes) -> None:
    console = _core.Console(image)
    memory = {
        "nametable": bytes(range(256)) * 8,
        "palette": bytes(32),
        "oam": bytes(256),
    }
    registers = {"ctrl": 0, "mask": 0x0E, "status": 0, "v": 0, "t": 0, "fine_x": 3}
    console.set_picture(**memory, **registers, w=1)  # type: ignore[arg-type]
    assert console.nametable.tobytes() == memory["nametable"]
    saved = console.save()
    console.load(saved)
    for wrong, message in (
        ({"oam": bytes(9)}, "oam has 9 bytes; it must have 256"),
        ({"v": 0x8000}, "v and t must be below 32768"),
        ({"fine_x": 8}, "fine_x below 8"),
    ):
        with pytest.raises(ValueError, match=message):
            console.set_picture(**memory | registers | wrong, w=0)  # type: ignore[arg-type]
    assert console.save() == saved
