"""Acting in environments and storing the results: episodes, unrolls, replay."""
