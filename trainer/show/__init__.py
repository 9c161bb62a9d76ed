"""Output of a run for people: curves, the dashboard, the report."""
