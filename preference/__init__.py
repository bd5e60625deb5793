"""Trees in, preference pairs and supervised steps out. Pure functions: another reward or margin needs no new search."""
