"""Corpora: read as they come, checked, and kept as a store of passages by row."""
