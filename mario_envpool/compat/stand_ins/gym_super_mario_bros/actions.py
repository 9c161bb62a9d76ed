"""Stands in for gym_super_mario_bros.actions."""

from mario_envpool.compat.actions import COMPLEX_MOVEMENT, RIGHT_ONLY, SIMPLE_MOVEMENT

__all__ = ["COMPLEX_MOVEMENT", "RIGHT_ONLY", "SIMPLE_MOVEMENT"]
