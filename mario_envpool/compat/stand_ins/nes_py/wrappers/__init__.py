"""Stands in for nes_py.wrappers."""

from .joypad_space import JoypadSpace

__all__ = ["JoypadSpace"]
