"""Stands in for gym_super_mario_bros._roms.rom_path."""

from mario_envpool import rom
from mario_envpool.compat.tasks import rom_name

__all__ = ["rom_path"]


def rom_path(lost_levels: bool, rom_mode: str) -> str:
    """Returns the path of a ROM file.

    Raises:
        ValueError: the game has no such ROM mode.
        RomError: the ROM is not installed.
    """
    name = rom_name(rom_mode, lost_levels)
    rom.load(name)  # explains a missing ROM
    return next(str(file.path) for file in rom.find() if file.name == name)
