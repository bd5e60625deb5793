"""Corpora: reads JSON Lines, Parquet, hub data sets and Wikipedia dumps; writes the passage store of an index folder.

Passages keep the order of the corpus; other lines are listed in `skipped.jsonl`.
Used by `steprag index build`.
"""
