"""One run: what it is built of, its loop, checkpoints, how it goes on."""
