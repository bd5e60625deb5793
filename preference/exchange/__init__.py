"""Pairs in other tools' formats, published pairs as ours."""
