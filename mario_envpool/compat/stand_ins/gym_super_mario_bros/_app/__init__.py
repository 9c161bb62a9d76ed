"""Stands in for gym_super_mario_bros._app."""
