"""The web as a corpus: a search engine's results, their pages, and the passages of them that fit a query best.

Reads a web file (YAML); writes the snapshot that it names, from which a run replays without a request.
"""
