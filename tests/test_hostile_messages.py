"""What a stranger wrote never makes a message more than a line: what is quoted is short, whatever was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from indexes import open_retriever
from steprag.errors import LONGEST, ConfigError, DataError, StepragError, quoted, shortened
from steprag.records.inputs import read_questions
from steprag.records.yaml_files import read_yaml

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
    {"results": LONG}, {"backends": [LONG], "provider": "ddgs"}, {"snapshot": LONG}, {"params": {"a": [LONG] * 9}},
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
