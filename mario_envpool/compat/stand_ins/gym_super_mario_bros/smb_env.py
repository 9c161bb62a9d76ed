"""Stands in for gym_super_mario_bros.smb_env."""

from mario_envpool.compat import SuperMarioBrosEnv

__all__ = ["SuperMarioBrosEnv"]
