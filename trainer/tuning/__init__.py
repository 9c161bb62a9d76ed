"""Search over settings: spaces and reports."""
