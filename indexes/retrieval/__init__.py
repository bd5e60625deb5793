"""Searching an index folder or a service: ranking, fusion, re-ranking.

Reads an index folder and writes nothing.
Commands: `steprag index search`, `steprag index evaluate`.
"""
