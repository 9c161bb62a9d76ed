"""Environments: the pool of a run, tiles as observations, levels in the info."""
