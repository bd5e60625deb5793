"""GRPO's episodes: the world that they are played in, their rewards."""
