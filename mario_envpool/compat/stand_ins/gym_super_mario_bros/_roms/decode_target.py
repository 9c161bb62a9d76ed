"""Stands in for gym_super_mario_bros._roms.decode_target."""

from mario_envpool.compat.tasks import decode_target

__all__ = ["decode_target"]
