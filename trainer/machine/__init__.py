"""The machine: CUDA, processor threads, files, clocks, and what is measured of it."""
