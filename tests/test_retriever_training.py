"""Trees train the retriever: which rows they give, and an encoder that learns from them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.console.terminal import guarded
from steprag.records.jsonl import write_records
from steprag.tree import Node, Tree
from steprag.types import Found, Passage, Question, Usage
from tests.training_parts import lines

GOLD, BRIDGE = "Prices in Albania are quoted in the lek.", "Tirana is the capital of Albania."
CORPUS = (
    Passage("0", "Tirana", BRIDGE), Passage("1", "Albania", GOLD), Passage("2", "Lima", "Lima is the capital of Peru."),
    Passage("3", "Albania", "The flag of Albania shows an eagle."),  # the gold passage's title
    Passage("4", "Currencies", f"{GOLD} It is so."), Passage("5", "Money of the Balkans", "Albania has the lek."),
    Passage("6", "Peru", "The sol is spent in Peru."), Passage("7", "Rome", "Rome is the capital of Italy."),
)  # fmt: skip
BOTH = {"supporting_ids": ["0", "1"]}


def tree(name: str, *queries: tuple[int, str, str], golden: str = "lek", **metadata: Any) -> Tree:
    """A tree of searches: the parent's id, the query, and the ids of what it found."""
    nodes = [Node(0, None, 0)]
    titles = {p.id: p.title for p in CORPUS}
    for number, (parent, content, found) in enumerate(queries, 1):
        passages = tuple(Found(one, titles.get(one, "?"), 0.5) for one in found)
        nodes.append(Node(number, parent, nodes[parent].depth + 1, "query", f"<query> {content} </query>", content,
                          passages=passages))  # fmt: skip
    asked = Question(name, f"{name}: which currency?", (golden,), metadata)
    return Tree(1, asked, "budget", Usage(), tuple(nodes))


def exported(folder: Path, *trees: Tree) -> dict[str, dict[str, Any]]:
    """The rows by query."""
    write_records(folder / "trees.jsonl", trees)
    write_records(folder / "corpus.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in CORPUS])
    argv = ["pairs", "export", "--format", "embedding", "--trees", str(folder / "trees.jsonl"), "--corpus",
            str(folder / "corpus.jsonl"), "--out", str(folder / "out")]  # fmt: skip
    assert guarded(main, argv) == 0
    made = [row for split in ("train", "val") for row in lines(folder / "out" / "embedding" / f"{split}.jsonl")]
    return {row["query"]: row for row in made}


def titles(texts: list[str]) -> list[str]:
    return [text.split("\n")[0] for text in texts]


def test_rows_of_trees(tmp_path: Path) -> None:
    first = tree("q1", (0, "capital Tirana", "02"), (0, "Lima", "273456"), (1, "its money", "26"), (1, "flag", "3"),
                 **BOTH)  # fmt: skip
    rows = exported(tmp_path, first, tree("q2", (0, "capital  TIRANA", "70"), supporting_ids=["7"]))
    assert titles(rows["q1: which currency?"]["pos"]) == ["Tirana", "Albania"]
    hard = titles(rows["q1: which currency?"]["neg"])
    assert hard[0] == "Lima", "what most searches found in place of gold comes first"
    assert {*hard} == {"Lima", "Rome", "Peru"}, "no second name of gold, no passage with the answer"
    assert rows["its money"]["pos"] == [f"Albania\n{GOLD}"], "the one gold passage that the episode lacked"
    assert rows["its money"]["neg"] == ["Lima\nLima is the capital of Peru.", "Peru\nThe sol is spent in Peru."]
    assert titles(rows["capital Tirana"]["pos"]) == ["Tirana", "Rome"], "one wording, gold in two trees"
    assert "Rome" not in titles(rows["capital Tirana"]["neg"])
    assert "Lima" not in rows, "two gold passages are wanted, and which one it meant nobody knows"
    triplets = lines(tmp_path / "out/embedding/triplets.train.jsonl") + lines(
        tmp_path / "out/embedding/triplets.val.jsonl"
    )
    mine = [row for row in triplets if row["anchor"] == "q1: which currency?"]
    assert {row["positive"] for row in mine} == {*rows["q1: which currency?"]["pos"]}
    assert {row["negative"] for row in mine} == {*rows["q1: which currency?"]["neg"]}


@pytest.mark.parametrize(("metadata", "golden", "pos"), [
    ({}, "lek", {"Albania", "Currencies", "Money of the Balkans"}),  # unmarked: what holds the answer
    ({"supporting_titles": ["Albania"]}, "lek", {"Albania"}),  # of two passages of a title the one that was found
    ({"supporting_ids": ["1", "0"], "dataset": "popqa"}, "lek", {"Albania"}),  # any is enough
])  # fmt: skip
def test_gold_by_other_marks(metadata: dict[str, Any], golden: str, pos: set[str], tmp_path: Path) -> None:
    row = exported(tmp_path, tree("q1", (0, "money", "1452"), (0, "more", "6"), golden=golden, **metadata))["money"]
    assert ({*titles(row["pos"])}, {*titles(row["neg"])}) == (pos, {"Peru", "Lima"})
    assert not any("eagle" in text for text in row["pos"])


def test_what_gives_no_row_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_records(tmp_path / "corpus.jsonl", [{"id": "x", "title": "", "text": "another corpus"}])
    write_records(tmp_path / "whole.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in CORPUS])
    write_records(tmp_path / "t.jsonl", [tree("q1", (0, "money", "12"), golden="yes")])
    corpus, whole, trees = str(tmp_path / "corpus.jsonl"), str(tmp_path / "whole.jsonl"), str(tmp_path / "t.jsonl")
    for argv, said in (
        (["--trees", trees, "--corpus", corpus], "holds none of the passages"),
        (["--trees", trees, "--corpus", whole], "no query of the trees has a gold passage"),
        (["--trees", trees], "--format embedding is made of --trees RUN and --corpus FILE"),
        (["--pairs", str(tmp_path)], "--format embedding is made of"), ([], "give --pairs DIR, or else"),
    ):  # fmt: skip
        assert guarded(main, ["pairs", "export", "--format", "embedding", *argv, "--out", str(tmp_path / "o")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def rows_file(folder: Path, count: int = 24) -> Path:
    """Triplets that a model can learn: a query names its passage's letter."""
    letters = [chr(97 + n) * 5 for n in range(count)]
    rows = [{"anchor": f"find {one}", "positive": f"{one}\nit is {one}", "negative": f"{letters[n - 1]}\nit is not"}
            for n, one in enumerate(letters)]  # fmt: skip
    write_records(folder / "triplets.train.jsonl", rows)
    write_records(folder / "triplets.val.jsonl", rows[:4])
    return folder


def train(folder: Path, out: Path, encoder: Path, *more: str) -> int:
    return guarded(main, ["train", "--stage", "retriever", "--pairs", str(folder), "--out", str(out), "--model",
                          str(encoder), "--threads", "1", "--warmup", "0", "--batch_size", "8", *more])  # fmt: skip


def test_an_encoder_learns_and_a_cut_run_goes_on(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformerTrainer

    from indexes.encoding.encoders import Overrides, read_spec

    rows, fast = rows_file(tmp_path), ["--epochs", "4", "--learning_rate", "0.01", "--save_steps", "5"]
    assert train(rows, tmp_path / "whole", encoder, *fast, "--encoder.passage_prefix", "p: ") == 0
    manifest = json.loads((tmp_path / "whole/manifest.json").read_text())
    assert manifest["loss_last"] < manifest["loss_first"]
    assert "library_name: sentence-transformers\n" in (tmp_path / "whole/README.md").read_text(encoding="utf-8")
    assert (manifest["rows"], manifest["steps"], "eval_loss" in manifest["held_out"]) == (24, 12, True)
    spec = read_spec("x", tmp_path / "whole", Overrides())
    assert (spec.query_prefix, spec.passage_prefix, spec.dimension) == ("find: ", "p: ", 16)
    before = SentenceTransformerTrainer.training_step
    steps = iter(range(7))

    def cut(self: Any, *given: Any, **named: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return before(self, *given, **named)

    monkeypatch.setattr(SentenceTransformerTrainer, "training_step", cut)
    assert train(rows, tmp_path / "cut", encoder, *fast, "--encoder.passage_prefix", "p: ") != 0
    monkeypatch.undo()
    assert train(rows, tmp_path / "cut", encoder, *fast, "--encoder.passage_prefix", "p: ") == 0
    assert any(row.get("resumed_from") == "checkpoint-5" for row in lines(tmp_path / "cut/metrics.jsonl"))
    weights = [load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    capsys.readouterr()
    assert train(rows, tmp_path / "cut", encoder, *fast, "--encoder.passage_prefix", "p: ") == 0
    assert "is trained already" in capsys.readouterr().err


def test_no_passage_of_a_batch_answers_the_query_of_another_row() -> None:
    from training.trl.retriever import ApartSampler

    draw = random.Random(1)
    drawn = {"anchor": ("q", 0, 9), "positive": ("p", 0, 20), "negative": ("p", 20, 29)}
    rows = {name: [f"{kind}{draw.randrange(*ends)}" for _ in range(60)] for name, (kind, *ends) in drawn.items()}
    golden = {(a, p) for a, p in zip(rows["anchor"], rows["positive"], strict=True)}

    class Columns(dict[str, list[str]]):
        def __len__(self) -> int:
            return 60

    sampler = ApartSampler(Columns(rows), batch_size=4, seed=3)
    batches = list(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(60))
    assert len(batches) == len(sampler)
    for batch in batches:
        assert len({rows["anchor"][row] for row in batch}) == len(batch)
        shown = [
            (one, rows[kind][two]) for one in batch for two in batch if one != two for kind in drawn if kind != "anchor"
        ]
        assert not any((rows["anchor"][one], passage) in golden for one, passage in shown)
    sampler.set_epoch(1)
    assert list(sampler) != batches


def test_what_an_encoder_cannot_learn_from_is_refused(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shutil import copytree

    rows = rows_file(tmp_path)
    plain = Path(copytree(encoder, tmp_path / "plain"))
    (plain / "modules.json").unlink()
    foreign = Path(copytree(encoder, tmp_path / "foreign"))
    (foreign / "modules.json").write_text('[{"path": "", "type": "custom.Module"}]')
    write_records(tmp_path / "short" / "triplets.train.jsonl", [{"anchor": "q", "positive": "p"}])
    for folder, model, more, said in (
        (rows, plain, (), "does not say how it pools"), (rows, foreign, (), "code of its own ('custom.Module')"),
        (rows, encoder, ("--finetuning", "lora"), "finetuning: stage retriever does not read it"),
        (tmp_path / "short", encoder, (), "Triplet: negative"), (plain, encoder, (), "is missing or empty"),
        (rows, Path("nothing"), (), "encoder 'nothing' not found"),
    ):  # fmt: skip
        assert train(folder, tmp_path / "out", model, *more) == 2, said
        assert said in capsys.readouterr().err
    assert guarded(main, ["plan", "train", "--stage", "retriever", "--pairs", str(rows), "--device", "4090"]) == 2
    assert "which steprag plan train does not compute" in capsys.readouterr().err
