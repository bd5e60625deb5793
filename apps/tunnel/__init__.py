"""The wind tunnel: a small world and a small policy, to compare step labels over seeds."""
