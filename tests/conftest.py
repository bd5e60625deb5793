"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import make_encoder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with random weights: 16 dimensions, loads in a blink."""
    return make_encoder(tmp_path_factory.mktemp("encoder"), seed=0)
