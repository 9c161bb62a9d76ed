"""Consoles at screens of every level, for tests that look at the game's RAM."""

from __future__ import annotations

from mario_envpool import nes

LEVELS = [(world, stage) for world in range(1, 9) for stage in range(1, 5)]
PAGES = (0, 2, 4, 6, 9)  # screens at which play begins, as after a lost life


def start(rom: bytes, world: int, stage: int, page: int) -> nes.Console | None:
    """A console at a screen of a stage; None where nothing can begin there."""
    console = nes.Console(rom)
    ram = console.ram
    area = stage + (1 if world in (1, 2, 4, 7) and stage >= 2 else 0)

    def clock() -> int:
        digits = ram[0x7F8:0x7FB].astype(int)
        return int(digits @ (100, 10, 1))

    console.step(0, False)
    console.step(nes.START, False)
    console.step(0, False)
    for _ in range(300):
        if clock() != 0:
            break
        console.step(nes.START, False)
        ram[[0x75F, 0x75C, 0x760]] = world - 1, stage - 1, area - 1
        console.step(0, False)
        ram[0x7A0] = 0
    last = clock()
    for _ in range(300):
        console.step(nes.START, False)
        ram[0x75B] = page
        console.step(0, False)
        ram[0x75B] = page
        if clock() < last:
            return console
        last = clock()
    return None
