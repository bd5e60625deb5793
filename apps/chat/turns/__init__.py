"""A turn: played, told again, kept."""
