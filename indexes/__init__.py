"""Indexes: a corpus becomes vectors, and vectors answer queries.

Other stages use one name of this package, `open_retriever`. Nothing heavy is imported before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexes.open import open_retriever
else:

    def open_retriever(*given: Any, **named: Any) -> Any:
        """See `indexes.open.open_retriever`."""
        from indexes.open import open_retriever as opened

        return opened(*given, **named)


__all__ = ["open_retriever"]
