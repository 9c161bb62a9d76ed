"""Stands in for gym_super_mario_bros._roms."""

from mario_envpool import rom
from mario_envpool.compat.tasks import decode_target, rom_name

__all__ = ["decode_target", "rom_path"]


def rom_path(lost_levels: bool, rom_mode: str) -> str:
    """Returns the path of a ROM file.

    Raises:
        ValueError: the game has no such ROM mode.
        RomError: the ROM is not installed.
    """
    name = rom_name(rom_mode, lost_levels)
    rom.load(name)  # explains a missing ROM
    return next(str(file.path) for file in rom.find() if file.name == name)
