"""Stands in for nes_py.wrappers.joypad_space."""

from mario_envpool.compat.wrappers import JoypadSpace

__all__ = ["JoypadSpace"]
