"""Reads pairs, or questions and an index; writes a checkpoint with a manifest: `steprag train`, `steprag plan train`.

One file a back end (`training.trl`, `training.launch.llamafactory`); rows and recipe are checked before it starts.
"""
