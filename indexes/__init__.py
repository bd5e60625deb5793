"""Indexes: a corpus becomes vectors, and vectors answer queries.

Other stages use one name of this package, `open_retriever`. Nothing heavy is imported before it is called.
"""

from __future__ import annotations

from indexes.open import open_retriever

__all__ = ["open_retriever"]
