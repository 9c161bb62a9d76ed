"""Stands in for nes_py.nes_env."""

from mario_envpool.compat import SuperMarioBrosEnv as NESEnv

__all__ = ["SCREEN_HEIGHT", "SCREEN_SHAPE_24_BIT", "SCREEN_WIDTH", "NESEnv"]

SCREEN_HEIGHT = 240
SCREEN_WIDTH = 256
SCREEN_SHAPE_24_BIT = SCREEN_HEIGHT, SCREEN_WIDTH, 3
SCREEN_SHAPE_32_BIT = SCREEN_HEIGHT, SCREEN_WIDTH, 4
