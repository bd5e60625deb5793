"""Searching an index folder or a service: ranking, fusion, re-ranking, caches.

Reads an index folder and writes nothing but the query cache.
Commands: `steprag index search`, `steprag index evaluate`.
"""
