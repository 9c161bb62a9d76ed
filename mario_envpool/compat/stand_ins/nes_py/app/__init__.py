"""Stands in for nes_py.app."""
