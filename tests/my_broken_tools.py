"""A module of tools that cannot be imported."""

HALF = 1 / 0
