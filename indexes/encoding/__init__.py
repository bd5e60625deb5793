"""Text to vectors: reads passages, writes `vectors` in shards from which a killed build goes on.

Used by `steprag index build` for passages and by retrieval for queries.
"""
