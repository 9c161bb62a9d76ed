"""Pictures of play: videos and live screens."""
