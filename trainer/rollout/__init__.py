"""Acting, and what it leaves: episodes, unrolls, batches, replay."""
