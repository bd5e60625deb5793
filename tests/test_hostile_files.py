"""Files that are broken or mean harm: one line with file, place and remedy, exit code 2, bounded memory."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes import open_retriever
from indexes.corpora.readers import Problem, json_lines
from indexes.rows.passage_store import mapped_list
from preference.exchange.export import export
from steprag.engines.headers import tensor_heads
from steprag.errors import LONGEST, ConfigError, DataError, StepragError, quoted, shortened
from steprag.records.inputs import read_passages, read_questions
from steprag.records.json_text import NotJson, decoded
from steprag.records.jsonl import lines_of, read_json, read_lines, read_records, read_rows
from steprag.records.packed import EXPANSION, LINE
from steprag.records.yaml_files import read_yaml
from steprag.runs.run import read_manifest
from steprag.tree import Tree
from steprag.types import Passage, Prediction, Question
from tests.hostile_files import mutated_bytes
from tests.levels import SEED, rounds

MIB = 1 << 20
CRASHES = {
    "nested list": b"[" * 100_000,
    "nested object": b'{"a":' * 100_000,
    "nested in a field": b'{"id": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "big integer": b'{"id": ' + b"9" * 5000 + b"}",
    "more than a float holds": b'{"id": 1' + b"0" * 400 + b"}",
    "latin-1": b'{"id": "caf\xe9"}',
    "utf-16": b"\xff\xfe{\x00}\x00",
    "half a surrogate pair": b'{"id": "a", "question": "\\ud83d"}',
    "NaN": b'{"id": "a", "score": NaN}',
    "infinity to a float": b'{"id": "a", "question": "q", "golden_answers": ["a"], "metadata": {"n": [1e999]}}',
    "minus infinity": b'{"id": "a", "score": -Infinity}',
    "a list": b"[1, 2]",
    "null": b"null",
    "a string": b'"text"',
    "nothing but a brace": b"{",
    "two values": b"{} {}",
    "a carriage return between": b'{"id": "a"}\r{"id": "b"}',
    "a null byte": b'{"id": "a\x00"}',
}
"""Inputs that once gave a traceback, a hang or a silent change at some door."""
READERS: dict[str, Callable[[Path], object]] = {
    "questions": read_questions,
    "passages": lambda path: list(read_passages(path)),
    "trees": lambda path: list(read_records(path, Tree)),
    "predictions": lambda path: list(read_records(path, Prediction)),
    "placed lines": lambda path: [Passage(**row) for _, row, _, _ in lines_of(path) if _refuse(row, path)],
    "document": lambda path: _refuse(read_json(path), path),
    "run manifest": lambda path: read_manifest(path.rename(path.with_name("manifest.json")).parent, "stage"),
}


def _refuse(row: object, path: Path) -> bool:
    """A reader of plain JSON takes odd objects; the readers of records then refuse them."""
    raise DataError(path, "no record")


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("reader", READERS)
def test_the_crash_corpus_is_refused_in_one_line(reader: str, crash: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes(CRASHES[crash] + b"\n")
    with pytest.raises(StepragError) as refused:
        READERS[reader](file)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("crash", CRASHES)
def test_a_corpus_names_the_line_and_goes_on(crash: str, tmp_path: Path) -> None:
    good = b'{"id": "p", "title": "t", "text": "x"}\n'
    for ending, packed in ((".jsonl", bytes), (".jsonl.gz", gzip.compress)):
        file = tmp_path / f"corpus{ending}"
        file.write_bytes(packed(good + CRASHES[crash] + b"\n" + good))
        (first, one), (second, bad), (third, other) = json_lines(file)
        assert (first, second, third) == (1, 2, 3)
        assert isinstance(bad, Problem)
        assert isinstance(one, Passage)
        assert one == other


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "question", "text"]), inner),
    max_leaves=8,
)
ROWS = st.dictionaries(
    st.sampled_from(["id", "question", "golden_answers", "metadata", "dataset", "title", "text", "contents", "nodes"]),
    ODD | st.just(["a"]) | st.just("a"),
)


@settings(max_examples=150, deadline=None)
@given(ROWS | ODD)
def test_any_json_is_a_record_or_a_named_refusal(tmp_path_factory: pytest.TempPathFactory, row: object) -> None:
    file = tmp_path_factory.mktemp("odd") / "file.jsonl"
    file.write_text(json.dumps(row) + "\n", "utf-8")
    for cls in (Question, Tree, Prediction):
        try:
            assert all(isinstance(one, cls) for one in read_records(file, cls))
        except DataError as error:
            assert str(error).startswith(f"{file}:1: ")


GOOD = json.dumps({"id": "q", "question": "who?", "golden_answers": ["a", "é"], "metadata": {"n": [1, 2.5, None]}})


@pytest.mark.timeout(1200)
def test_mutations_of_good_files_are_read_or_refused(tmp_path: Path) -> None:
    rng, file, tries = random.Random(SEED), tmp_path / "file.jsonl", rounds(400, 5_000, 50_000)
    content = f"{GOOD}\n{GOOD.replace('q', 'r', 1)}\n".encode()
    refused = 0
    for _ in range(tries):
        file.write_bytes(mutated_bytes(content, rng))
        for read in (read_questions, lambda path: list(json_lines(path)), lambda path: list(lines_of(path))):
            try:
                read(file)
            except DataError as error:
                refused += 1
                assert str(error).startswith(str(file))
    assert refused > tries / 4


def test_a_line_has_a_bound_that_the_user_can_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINE, "1")
    file = tmp_path / "long.jsonl"
    good = '{"id": "p", "title": "", "text": "x"}\n'
    file.write_text(good + '{"id": "q", "text": "' + "x" * (3 * MIB) + '"}\n' + good)
    with pytest.raises(DataError, match=rf"long.jsonl:2: a line of more than 1,048,576 bytes .*\${LINE}"):
        list(read_lines(file))
    kinds = [value.kind if isinstance(value, Problem) else value.id for _, value in json_lines(file)]
    assert kinds == ["p", "long", "p"]
    with pytest.raises(DataError, match=LINE):
        read_json(file)
    monkeypatch.setenv(LINE, "4")
    assert [number for number, _ in read_rows(file)] == [1, 2, 3]
    monkeypatch.setenv(LINE, "much")
    with pytest.raises(ConfigError, match=LINE):
        list(read_lines(file))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_costs_little_memory_and_is_refused(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steprag.records.packed.FREE", 4 * MIB)
    monkeypatch.setenv(LINE, "1")
    file = tmp_path / f"bomb.jsonl{ending}"
    if ending == ".gz":
        file.write_bytes(gzip.compress(b" " * (80 * MIB)))
    else:
        file.write_bytes(pytest.importorskip("zstandard").compress(b" " * (400 * MIB)))
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"expands to more than 200 times its size .*\${EXPANSION}"):
        list(json_lines(file))
    assert tracemalloc.get_traced_memory()[1] < 48 * MIB
    tracemalloc.stop()


def test_an_endless_device_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/dev/zero: is a device"):
        read_questions("/dev/zero")


@pytest.mark.parametrize("content", [
    b"", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"\x80\x04K\x01.",
    b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + b" " * 60,
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (-4,), }" + b" " * 60,
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': ((" + b" " * 60,
])  # fmt: skip
def test_arrays_that_are_none_are_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "offsets.npy"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"offsets.npy: .*mend it"):
        mapped_list(file, "i", "mend it")


def header(value: object, body: bytes = b"") -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text + body


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize("content", [
    b"", b"1234567", b"\xff" * 40, header({}), header({"__metadata__": {}}), header([]), header({"w": TENSOR}),
    header({"w": {}}, b"1234"), header({"w": {**TENSOR, "data_offsets": [4, 0]}}, b"1234"),
    (10).to_bytes(8, "little") + b"[" * 10, b"\x80\x04K\x01." * 8,
])  # fmt: skip
def test_adapters_without_tensors_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(header({"w": TENSOR}, b"1234"))
    tensor_heads(file)
    file.write_bytes(content)
    with pytest.raises(DataError, match="adapter_model.safetensors"):
        tensor_heads(file)


@pytest.mark.parametrize("format", ["verl", "proguide"])
def test_whole_numbers_of_rows_fit_every_format(format: str, pairs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pairs, tmp_path / "pairs")
    first, *rest = (folder / "pairs.train.jsonl").read_text().splitlines()
    row = {**json.loads(first), "depth": 10**30}
    (folder / "pairs.train.jsonl").write_text("\n".join([json.dumps(row), *rest]) + "\n")
    with pytest.raises(DataError, match=r"pairs.train.jsonl:1: Pair: depth: input should be less"):
        export(folder, format, tmp_path / "out")


@given(st.binary(max_size=200))
def test_bytes_are_json_or_a_reason(content: bytes) -> None:
    try:
        decoded(content)
    except NotJson as error:
        assert str(error)


LONG = "[" * 100_000


ENDLESS: dict[str, object] = {
    "text": LONG, "controls": "\n\x1b[2J" * 500, "list": [LONG] * 50, "nested": {LONG: {LONG: [LONG]}},
    "digits": 10**5000, "minus": -(10**400), "list of digits": [10**5000], "bytes": b"x" * 5000, "nan": float("nan"),
    "nothing": None, "many": {n: n for n in range(10_000)},
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_any_value_is_quoted_in_one_short_line(name: str) -> None:
    said = quoted(ENDLESS[name])
    assert 0 < len(said) <= 240
    assert said.isprintable()


def test_short_values_are_quoted_as_they_are() -> None:
    for value in ("Tirana", 7, ["a", 1], {"a": None}, 0.5, "x" * 150):
        assert quoted(value) == repr(value)
    assert quoted("a" * 200 + "the end").endswith("the end'")
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 9) == "abcd...jk"


def test_a_message_has_a_longest_length_and_keeps_both_ends() -> None:
    said = str(DataError("trees.jsonl", LONG, line=7, remedy="make it again"))
    assert len(said) == LONGEST
    assert said.startswith("trees.jsonl:7: [[")
    assert said.endswith("[[ (make it again)")


@pytest.mark.parametrize("web", [
    {"base_url": "http" + LONG}, {"base_url": "ftp://" + LONG}, {"allow": [LONG]}, {"provider": LONG}, {LONG: 1},
    {"results": LONG}, {"backends": [LONG], "provider": "ddgs"}, {"snapshot": LONG}, {"params": {"a": [[LONG] * 9]}},
])  # fmt: skip
def test_a_web_file_with_an_endless_value_is_refused_in_a_line(web: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(yaml.safe_dump({"web": {"provider": "searxng", "base_url": "http://127.0.0.1:9", **web}}))
    with pytest.raises(StepragError) as refused:
        open_retriever(file)
    assert len(str(refused.value)) <= LONGEST
    assert "\n" not in str(refused.value)


def test_ids_and_keys_of_files_are_quoted_short(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(f'{{"id": "{LONG}", "question": "q", "golden_answers": []}}\n')
    with pytest.raises(DataError, match=r"question '\[\[.*\.\.\..*' has no golden answer") as refused:
        read_questions(tmp_path / "questions.jsonl")
    assert len(str(refused.value)) < 500
    (tmp_path / "recipe.yaml").write_text(f"{'9' * 400}: 1\n")
    with pytest.raises(ConfigError, match=r"the key 9+\.\.\.9+ is no text"):
        read_yaml(tmp_path / "recipe.yaml")
