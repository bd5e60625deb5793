"""Passages and vectors by row number."""
