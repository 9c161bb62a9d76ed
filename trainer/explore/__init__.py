"""Exploration: where episodes begin, and bonuses for new places."""
