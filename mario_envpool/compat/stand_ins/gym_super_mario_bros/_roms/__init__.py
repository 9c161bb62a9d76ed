"""Stands in for gym_super_mario_bros._roms."""

from .decode_target import decode_target
from .rom_path import rom_path

__all__ = ["decode_target", "rom_path"]
