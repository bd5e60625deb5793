"""The embedded model in 8-bit blocks: what llama.cpp serves and what training starts from.

The package ships 4-bit blocks (Q4_1) to be small. On a CPU llama.cpp reads prompts from them at little more than half
the speed of 8-bit blocks (Q8_0), and prompts are what a search spends its time on. Written out once, 145 MB; 8 bits
lose next to nothing of numbers that came from 4 (less than 0.4 % of a block's greatest).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from steprag.engines.models import EMBEDDED, cache_dir, embedded_gguf, embedded_sha256

_FORMAT = 1  # part of the file's name; raise it when its content changes


def eight_bit_gguf() -> Path:
    """The embedded model as Q8_0 in the cache, made from the package's file where it is missing."""
    source = embedded_gguf()
    target = cache_dir() / "weights" / f"{EMBEDDED}-q8_0-{embedded_sha256()[:12]}-{_FORMAT}.gguf"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        _write(source, temporary)
        temporary.replace(target)  # two processes may race: both write the same bytes
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _write(source: Path, target: Path) -> None:
    """Copies the header, and every tensor with its matrices in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            _copy(writer, field)
    writer.add_file_type(7)  # llama.cpp's MOSTLY_Q8_0
    for tensor in reader.tensors:
        matrix = tensor.tensor_type in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
        values = dequantize(tensor.data, tensor.tensor_type)
        if matrix:
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy(writer: Any, field: Any) -> None:
    kind = field.types[0]
    inner = field.types[-1] if len(field.types) > 1 else None
    writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
