"""Stands in for nes_py."""

from .nes_env import NESEnv

__all__ = ["NESEnv"]
