"""Vector files, FAISS index types, and their recall against exact search.

Reads the vectors of an index folder and writes its FAISS file. Used by `steprag index build` (`--type`).
"""
