"""One run: its parts, its loop, its checkpoints and how it resumes."""
