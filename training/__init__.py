"""Reads pairs, or questions and an index; writes a checkpoint with a manifest: `steprag train`, `steprag plan train`.

One file a back end (`training.trl`, `training.llamafactory`); before any of them starts, rows and recipe are checked.
"""
