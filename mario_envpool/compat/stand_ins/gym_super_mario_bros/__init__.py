"""Stands in for gym_super_mario_bros."""

from ._registration import make
from .smb_env import SuperMarioBrosEnv
from .smb_random_stages_env import SuperMarioBrosRandomStagesEnv

__all__ = ["SuperMarioBrosEnv", "SuperMarioBrosRandomStagesEnv", "make"]
