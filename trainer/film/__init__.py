"""Pictures of play: videos, and what people watch live."""
