"""Add-ons of a finished index folder, each a folder in it: BM25 (`bm25/`) and title links (`links/`).

Reads the passages of an index folder and writes beside them. Command: `steprag index build --hybrid`.
"""
