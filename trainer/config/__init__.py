"""What a run is asked to do: options, presets, tasks and levels by name."""
