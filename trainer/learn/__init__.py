"""From batches to gradient steps."""
