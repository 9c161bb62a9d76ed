"""The public test ROMs for NROM, by the protocols their authors gave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mario_envpool import _core

# What is missing in those that do not pass, and why that is left so. None of
# it can be noticed by a game that runs on this core.
KNOWN = {
    "apu_reset/4017_timing.nes": (
        "the frame counter's delay after power-on and reset is not modelled"
    ),
    "apu_reset/works_immediately.nes": (
        "the frame counter's phase at power-on is not modelled"
    ),
    "apu_test/8-dmc_rates.nes": (
        "the DMC's first period comes out short; not pursued, as nothing plays samples"
    ),
    "blargg_apu_2005.07.30/11.len_reload_timing.nes": (
        "a length reload in the very cycle of its clock is not dropped"
    ),
    "blargg_ppu_tests_2005.09.15b/power_up_palette.nes": (
        "tests for one particular console's palette at power-on"
    ),
    "cpu_interrupts_v2/4-irq_and_dma.nes": (
        "interrupts are polled between instructions, not inside OAM DMA"
    ),
    "dmc_dma_during_read4/dma_2007_read.nes": (
        "the DMC steals cycles between instructions, so it repeats no read"
    ),
    "dmc_dma_during_read4/dma_4016_read.nes": (
        "the DMC steals cycles between instructions, so it repeats no read"
    ),
    "dmc_dma_during_read4/double_2007_read.nes": (
        "two reads in adjacent cycles are not merged into one"
    ),
    "sprdma_and_dmc_dma/sprdma_and_dmc_dma.nes": (
        "DMC fetches do not share cycles with an OAM DMA that is under way"
    ),
    "dmc_tests/buffer_retained.nes": "to be heard: there is no sound",
    "dmc_tests/status.nes": "to be heard: there is no sound",
    "full_palette/full_palette.nes": "to be looked at",
    "nmi_sync/demo_ntsc.nes": "to be looked at",
    "scanline/scanline.nes": "to be looked at",
    "other/nestest.nes": "compared with its log in test_cpu.py",
}


def _text(console: _core.Console) -> str:
    letters = []
    for address in range(0x6004, 0x6404):
        byte = console.peek(address)
        if byte == 0:
            break
        letters.append(chr(byte))
    return " ".join("".join(letters).split())


def _run_shell(console: _core.Console) -> str:
    """blargg's shell: status at $6000 once $6001 holds DE B0 61."""
    reset_in = 0
    for frame in range(2500):
        console.step(0, draw=False)
        if [console.peek(0x6001 + i) for i in range(3)] != [0xDE, 0xB0, 0x61]:
            continue
        status = console.peek(0x6000)
        if status == 0x81:  # wants the reset button after 100 ms
            reset_in = reset_in or 8
            reset_in -= 1
            if reset_in == 1:
                console.reset()
                reset_in = 0
        elif status != 0x80 and frame > 5:
            return "" if status == 0 else f"code {status}: {_text(console)[:60]}"
    return "no result after 2,500 frames"


def _run_zero_page(console: _core.Console, address: int) -> str:
    for _ in range(1500):
        console.step(0, draw=False)
    code = int(console.ram[address])
    return "" if code == 1 else f"code {code}"


def _run_screen(console: _core.Console) -> str:
    for _ in range(1500):
        console.step(0, draw=False)
    text = "".join(chr(b) if 32 <= b < 127 else " " for b in console.nametable[:960])
    return "" if "PASSED" in text.upper() else " ".join(text.split())[:60]


def run(folder: Path, entry: dict[str, object]) -> str:
    """Why the ROM does not pass; empty if it does."""
    console = _core.Console((folder / str(entry["file"])).read_bytes())
    protocol = str(entry["protocol"])
    if protocol == "6000":
        return _run_shell(console)
    if protocol in ("F0", "F8"):
        return _run_zero_page(console, int(protocol, 16))
    if protocol == "screen":
        return _run_screen(console)
    return "no verdict of its own"


@pytest.mark.verification
def test_nrom_test_roms(verification: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = verification / "roms"
    manifest = json.loads((folder / "manifest.json").read_text())
    nrom = [entry for entry in manifest if entry["mapper"] == 0]
    results = {str(entry["file"]): run(folder, entry) for entry in nrom}
    with capsys.disabled():
        print(f"\n{'NROM test ROM':52} result")
        for file, why in results.items():
            print(f"{file:52} {'pass' if not why else f'{KNOWN.get(file)} ({why})'}")
        passed = sum(not why for why in results.values())
        print(f"{passed} of {len(results)} pass")
    required = [str(entry["file"]) for entry in nrom if entry["required"]]
    assert len(required) == 37
    assert [file for file in required if results[file]] == []
    # Exactly the ones explained above fail: a gain or a loss changes the list.
    assert {file for file, why in results.items() if why} == set(KNOWN)


@pytest.mark.verification
def test_other_mappers_are_refused_by_number(verification: Path) -> None:
    folder = verification / "roms"
    manifest = json.loads((folder / "manifest.json").read_text())
    others = [entry for entry in manifest if entry["mapper"] != 0]
    assert others
    for entry in others:
        with pytest.raises(ValueError, match=f"mapper {entry['mapper']};"):
            _core.Console((folder / entry["file"]).read_bytes())
