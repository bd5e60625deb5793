"""Makes harmful files out of good ones, seeded: JSON, lines, YAML, tables of SQLite, arrays, weights, any bytes."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from steprag.records.sealed import file_facts

RAW = {"nested": "[" * 100_000, "digits": "9" * 5000, "surrogate": '"\\ud83d"', "NaN": "NaN", "minus": "-Infinity",
       "huge": "-1e999"}  # fmt: skip
"""JSON that Python's own decoder takes, or falls over; each stands where a value stood."""
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 2**63, 10**400, 0.5, -1e308, "", "x", "0", "a\x00b", "../../etc/passwd", "é" * 300),
    *([], {}, [[]], {"a": 1}, [None], ["x", 1], [[1, 2], [3]], {"": {"": []}}),
    *(f"\x1b]RAW {name}" for name in RAW),
)
BYTES = (
    *(b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"\x00" * 64),
    *(b"\xff\xfe{\x00", b"caf\xe9", b"PK\x03\x04", b"\x1b[2J"),
)


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """One flip, cut, doubling or foreign piece; half of them near the beginning, where headers are."""
    if not content:
        return rng.choice(BYTES)
    most = len(content) if rng.random() < 0.5 else min(len(content), 4096)
    place = rng.randrange(most)
    match rng.randrange(5):
        case 0 | 1:
            return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        case 2:
            return content[:place]
        case 3:
            return content[:place] + content[place : place + 64] * rng.choice([2, 500]) + content[place:]
        case _:
            return content[:place] + rng.choice(BYTES) + content[place:]


def mutated_value(value: Any, rng: random.Random) -> Any:
    """The JSON value with one place in it changed: another value, a key or an item less, one too many."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    copy: Any = value.copy()
    place = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    chance = rng.random()
    if chance < 0.12:
        del copy[place]
    elif chance < 0.2:
        if isinstance(copy, list):
            copy.insert(place, copy[rng.randrange(len(copy))])
        else:
            copy[rng.choice(["", "extra", "\x00", place + "x"])] = copy.pop(place)
    else:
        copy[place] = mutated_value(copy[place], rng)
    return copy


def json_text(value: Any) -> str:
    """The value's JSON, with what `RAW` names in its place."""
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(f"\x1b]RAW {name}"), raw)
    return text


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """A JSON document with one place changed."""
    return json_text(mutated_value(json.loads(content), rng)).encode()


def mutated_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON Lines of which one is changed."""
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = mutated_json(lines[place], rng)
    return b"\n".join(lines) + b"\n"


def mutated_yaml(content: bytes, rng: random.Random) -> bytes:
    """A YAML document with one place changed."""
    return json_text(mutated_value(yaml.safe_load(content), rng)).encode()


def mutate(file: Path, rng: random.Random) -> str:
    """Changes one thing of a file, by what it is; says what was done."""
    kinds: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": mutated_json, ".jsonl": mutated_lines, ".yaml": mutated_yaml, ".index": mutated_lines,
    }  # fmt: skip
    if file.suffix == ".sqlite" and rng.random() < 0.8:
        return _mutate_table(file, rng)
    content = file.read_bytes()
    kind = kinds.get(file.suffix, mutated_bytes)
    change = mutated_bytes if not content.strip() or rng.random() < 0.25 else kind
    file.write_bytes(change(content, rng))
    return f"{file.name} {change.__name__}"


def _mutate_table(file: Path, rng: random.Random) -> str:
    """Changes one cell of a table, or takes a row out."""
    db = sqlite3.connect(file)
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    filled = [name for name in tables if db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
    table = rng.choice(filled)
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns)
    where = f"{column} IS (SELECT {column} FROM {table} LIMIT 1 OFFSET {rng.randrange(3)})"
    old = db.execute(f"SELECT {column} FROM {table} WHERE {where} LIMIT 1").fetchone()
    try:
        if rng.random() < 0.15:
            db.execute(f"DELETE FROM {table} WHERE {where}")
        else:
            db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {where}", (_cell(old, rng),))
    except sqlite3.Error:  # a schema of our own may forbid the value
        db.execute(f"DELETE FROM {table}")
    db.commit()
    db.close()
    return f"{file.name} {table}.{column}"


def _cell(old: tuple[Any] | None, rng: random.Random) -> Any:
    if old and isinstance(old[0], str) and rng.random() < 0.6:
        try:
            return json_text(mutated_value(json.loads(old[0]), rng))
        except ValueError:
            pass
    return rng.choice([None, 7, -1, 2**62, 1.5, "x", "", "{}", "[]", b"\xff\x00", "[" * 100_000, "9" * 5000, "é"])


def reseal(folder: Path) -> None:
    """Writes the files' sizes and hashes into the manifest anew, as a stranger who made the folder would."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
        manifest["files"] = {name: vars(file_facts(folder / name)) for name in manifest["files"]}
    except (ValueError, KeyError, TypeError, RecursionError, OSError):  # it was the manifest that was changed
        return
    path.write_text(json.dumps(manifest), "utf-8")
