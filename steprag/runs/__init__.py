"""A run folder and its manifest."""
