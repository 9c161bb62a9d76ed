"""Learning: from training batches to gradient steps."""
