"""FlashRAG both ways: result files without its package; pipeline and retriever in it, where it is installed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.commands import main
from inference.interop.flashrag import DATA
from inference.scoring.runs_compared import read_run
from steprag.console.terminal import guarded
from steprag.errors import RequestError
from steprag.records.jsonl import write_records
from steprag.types import Passage
from tests.fakes import QUESTION, WORLD, answer, by_turn, chat_reply, evidence, options, query, serve
from tests.indexing import words_index

ROWS: list[dict[str, Any]] = [
    {"id": "test_0", "question": QUESTION, "golden_answers": ["lek"], "metadata": {"supporting_ids": ["1"]}},
    {"id": "test_1", "question": "What is the currency of Peru?", "golden_answers": ["the Peruvian sol", "sol"]},
    {"id": "test_2", "question": "Which is the capital of Peru?", "golden_answers": ["Lima"], "metadata": {}},
]
POLICY = by_turn(
    lambda prompt, _: answer("the lek") if "lek" in prompt else query("currency of Albania"),
    evidence("Prices in Albania are quoted in the lek."), answer("sol"),
)  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_index(tmp_path_factory.mktemp("index"), (*WORLD, Passage("4", "", "A passage without a title.")))


@pytest.fixture
def played(index: Path, tmp_path: Path) -> Path:
    """A run of `steprag infer` over FlashRAG's layout."""
    write_records(tmp_path / "nq" / "test.jsonl", ROWS)
    with serve(chat_reply(POLICY)) as endpoint:
        assert main(["infer", *options(endpoint, tmp_path / "nq/test.jsonl", index, tmp_path / "run")]) == 0
    return tmp_path / "run"


def scores_of(run: Path) -> dict[str, tuple[float, float, float]]:
    return {key: (one.em, one.f1, one.cover) for key, one in read_run(run, "one").scores.items()}


def test_a_run_goes_out_as_its_files_and_comes_back_with_equal_scores(
    played: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "theirs"
    assert main(["score", "export", str(played), "--out", str(out)]) == 0
    items = json.loads((out / DATA).read_text())
    assert sorted(item["id"] for item in items) == ["test_0", "test_1", "test_2"]
    first = next(item for item in items if item["id"] == "test_0")
    assert (first["output"]["pred"], first["metadata"]) == ("the lek", {"supporting_ids": ["1"]})
    found = first["output"]["retrieval_result"]
    assert found[0]["contents"] == '"Albania"\nAlbania is a country in Europe. Prices in Albania are quoted in the lek.'
    (out / "config.yaml").write_text(f"dataset_name: nq\nindex_path: {index}\n")
    assert scores_of(out) == scores_of(played)
    back = read_run(out, "theirs")
    assert back.scores["nq/test_0"].gold == read_run(played, "ours").scores["nq/test_0"].gold == 1.0
    assert "steps" not in back.figures
    assert "tokens" not in back.figures
    (out / "config.yaml").write_text("dataset_name: nq\nindex_path: e5_Flat.index\n")
    assert main(["index", "export", str(index), "--out", str(tmp_path / "corpus.jsonl")]) == 0
    corpus = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert [row["id"] for row in corpus] == ["0", "1", "2", "3", "4"]
    assert corpus[2]["contents"] == '"Lima"\nLima is the capital of Peru.'
    assert guarded(main, ["compare", str(played), str(out)]) == 2
    assert "differ in index" in capsys.readouterr().err
    assert main(["compare", str(played), str(out), "--force"]) == 0
    assert "| theirs | 3 |" in capsys.readouterr().out


def test_its_files_as_its_pipelines_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = [[{"id": "7", "contents": '"Lima"\nLima is the capital of Peru.'}], [{"id": "9", "contents": "no title"}]]
    output = {"prompt": "…", "finish_flag": True, "pred": "Lima", "retrieved_times": 2,
              "retrieval_results": {str(at): {"query": "q", "docs": one} for at, one in enumerate(docs)},
              "metric_score": {"em": 1.0}}  # fmt: skip
    rows = [
        {**ROWS[2], "choices": ["Tirana", "Lima"], "golden_answers": [1], "output": output},
        {**ROWS[1], "output": {"pred": ""}},
    ]
    (tmp_path / DATA).write_text(json.dumps(rows, indent=4))
    (tmp_path / "config.yaml").write_text("dataset_name: nq\nmetric_setting: {retrieval_recall_topk: 5}\n")
    run = read_run(tmp_path, "r1")
    assert {key: (one.em, one.searches, one.answered) for key, one in run.scores.items()} == {
        "nq/test_2": (1.0, 2, True), "nq/test_1": (0.0, 0, False)
    }  # fmt: skip
    for broken, said in (
        ([*rows, {**ROWS[0], "output": {}}], "1 questions have no pred"), ([rows[0], rows[0]], "two questions"),
        ({"data": rows}, "is not as it was written"), ([{"id": "x", "output": {}}], "a question needs"),
        ([{**ROWS[1], "output": {"pred": "x", "retrieval_results": {"a": 1}}}], "is not as it was written"),
    ):  # fmt: skip
        (tmp_path / DATA).write_text(json.dumps(broken))
        assert guarded(main, ["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 2, said
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) <= 2


def its_config(folder: Path, index: Path, **values: Any) -> Any:
    config: Any = pytest.importorskip("flashrag.config", reason="flashrag-dev is not installed")
    given = {"data_dir": str(folder), "dataset_name": "nq", "save_dir": str(folder / "out"), "index_path": str(index),
             "metrics": ["em", "f1", "acc", "precision", "recall"], "framework": "openai", "gpu_id": None,
             "retrieval_topk": 2, **values}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return config.Config(config_dict=given)


def its_data(config: Any) -> Any:
    from flashrag.utils import get_dataset  # pyright: ignore[reportMissingImports]

    return get_dataset(config)["test"]


@pytest.mark.slow
def test_the_agent_as_its_pipeline(played: Path, index: Path, tmp_path: Path) -> None:
    config = its_config(tmp_path, index)
    from apps.library.flashrag import StepRAGPipeline

    asked = {"policy__model": "double", "policy__engine": "openai", "policy__retries": 0}
    with serve(chat_reply(POLICY)) as endpoint:
        pipeline = StepRAGPipeline(config, tmp_path / "again", policy__base_url=endpoint.url, **asked)
        data = pipeline.run(its_data(config))
        assert pipeline.run(its_data(config)).pred == data.pred
        sent = len(endpoint.requests)
        StepRAGPipeline(config, tmp_path / "again", policy__base_url=endpoint.url, **asked).run(its_data(config))
        assert len(endpoint.requests) == sent, "what is answered is not asked again"
    told = {key: {f"nq/{item.id}": item.metric_score[key] for item in data} for key in ("em", "f1", "acc")}
    assert scores_of(played) == {key: tuple(told[name][key] for name in told) for key in told["em"]}
    kept = Path(config["save_dir"])
    assert scores_of(kept) == scores_of(played) == scores_of(tmp_path / "again")
    assert data.data[0].retrieval_result[0]["id"] == "1"
    with serve(lambda _: (400, {"error": {"message": "no"}})) as endpoint:
        pipeline = StepRAGPipeline(config, tmp_path / "fails", policy__base_url=endpoint.url, **asked)
        with pytest.raises(RequestError, match="3 of 3 questions failed: .*failures.jsonl says why; run again"):
            pipeline.run(its_data(config))


@pytest.mark.slow
def test_an_index_as_its_retriever(index: Path, tmp_path: Path) -> None:
    config = its_config(tmp_path, index)
    write_records(tmp_path / "nq" / "test.jsonl", ROWS[:2])
    from flashrag.pipeline import (  # pyright: ignore[reportMissingImports]
        FLAREPipeline,
        IRCOTPipeline,
        SearchR1Pipeline,
        SequentialPipeline,
    )
    from flashrag.prompt import PromptTemplate  # pyright: ignore[reportMissingImports]

    from apps.library.flashrag import StepRAGRetriever

    class Prompt(PromptTemplate):
        def truncate_prompt(self, prompt: Any) -> Any:
            return prompt  # theirs fetches a tokenizer

    retriever = StepRAGRetriever(config)
    (documents, none), scores = retriever.batch_search(["Peru", "  "], num=2, return_score=True)
    assert [one["id"] for one in documents] == ["3", "2"]
    assert documents[1]["contents"] == '"Lima"\nLima is the capital of Peru.'
    assert (none, len(scores[0])) == ([], 2)
    assert retriever.search("title", num=5)[0]["contents"] == "\nA passage without a title."

    def writing(text: str) -> Any:
        def generate(prompts: Any, return_scores: bool = False, **_: Any) -> Any:
            several = isinstance(prompts, list) and not (prompts and isinstance(prompts[0], dict))
            texts = [text] * (len(prompts) if several else 1)
            return (texts, [[0.1, 0.9] for _ in texts]) if return_scores else texts

        words = SimpleNamespace(encode=lambda text, **_: text.split()[:2], decode=" ".join)
        return SimpleNamespace(generate=generate, tokenizer=words)

    for pipeline, text, said in (
        (SequentialPipeline, "lek", "lek"), (FLAREPipeline, "Peru Albania.", "Peru Albania."),
        (IRCOTPipeline, "So the answer is: lek.", "lek"),
        (SearchR1Pipeline, "<search> Peru </search>", "No valid answer found"),
        (SearchR1Pipeline, "<answer> lek </answer>", "lek"),
    ):  # fmt: skip
        data = its_data(config)
        chat = pipeline is not SearchR1Pipeline
        prompt = Prompt(config) if chat else SimpleNamespace(get_string=lambda question, **_: question)
        pipeline(config, prompt_template=prompt, retriever=retriever, generator=writing(text)).run(data)
        assert said in data.pred[0], (pipeline, data.pred)
        assert set(read_run(Path(config["save_dir"]), "theirs").scores) == {"nq/test_0", "nq/test_1"}
    cached = its_config(tmp_path, index, save_retrieval_cache=True)
    StepRAGRetriever(cached).batch_search(["Peru"])
