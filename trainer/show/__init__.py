"""What people see of a run: curves, the dashboard, the page."""
