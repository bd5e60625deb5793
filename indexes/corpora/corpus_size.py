"""How many passages a corpus has: counted, or estimated from its beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from indexes.corpora.readers import json_lines
from indexes.corpora.source import HUB, Source
from steprag.errors import ConfigError, DataError
from steprag.packed import NotWhole, unpacked
from steprag.types import Passage

COUNTED = 64 * 2**20
"""Files up to this size are counted line by line, of larger ones the beginning is."""


def count_rows(source: Source) -> tuple[int, bool]:
    """Passages of a corpus, and whether they were counted or estimated from its beginning. Raises ConfigError."""
    if source.name.startswith(HUB):
        raise ConfigError("how many rows a hub data set has is on its page; give --rows")
    total, exact = 0, True
    for name in source.files:
        path = Path(name)
        if path.name.endswith((".xml", ".xml.bz2")):
            raise ConfigError("a dump does not say how many passages it gives (English: about 45 million); give --rows")
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            total += ParquetFile(path).metadata.num_rows
        elif path.stat().st_size <= COUNTED:
            total += sum(isinstance(value, Passage) for _, value in json_lines(path))
        else:
            lines, read = _lines(path)
            total, exact = total + int(lines * path.stat().st_size / read), False
    return total, exact


def _lines(path: Path) -> tuple[int, int]:
    """Lines in the first 32 MiB, and bytes of the file that they took."""
    with path.open("rb") as raw:
        stream: Any = raw
        if path.suffix in (".gz", ".zst"):
            stream = unpacked(raw, path)
        try:
            content = stream.read(2**25)
        except NotWhole as error:
            raise DataError(path, str(error), remedy=error.remedy) from None
        return content.count(b"\n"), max(1, raw.tell())
