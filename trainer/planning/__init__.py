"""Finds ways to the flag by search over exact snapshots, without a network."""
