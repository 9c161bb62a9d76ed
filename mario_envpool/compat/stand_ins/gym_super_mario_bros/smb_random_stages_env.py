"""Stands in for gym_super_mario_bros.smb_random_stages_env."""

from mario_envpool.compat import SuperMarioBrosRandomStagesEnv

__all__ = ["SuperMarioBrosRandomStagesEnv"]
