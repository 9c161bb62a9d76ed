"""The configuration of a run: options, presets, and the names of tasks and levels."""
