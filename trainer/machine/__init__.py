"""The machine: CUDA, CPU threads, processes, files, seeds and measurements."""
