"""Functions that tools files of the tests name."""

from __future__ import annotations

import time


def twice(number: int, loud: bool = False) -> str:
    """Doubles a number."""
    return f"{2 * number}{'!' if loud else ''}"


async def capital(country: str) -> list[str]:
    """The capital of a country."""
    return {"Peru": ["Lima is the capital of Peru."]}.get(country, [])


def hang(text: str) -> str:
    time.sleep(2)
    return text


def broken(text: str) -> str:
    raise RuntimeError(f"no {text}")


def untyped(text) -> str:  # noqa: ANN001
    return text
