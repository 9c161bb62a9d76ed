"""Stands in for gym_super_mario_bros._registration."""

from mario_envpool.compat import make

__all__ = ["make"]
