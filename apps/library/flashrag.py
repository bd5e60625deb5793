"""Inside FlashRAG (flashrag-dev 0.3.0.dev20260919): the agent as one of its pipelines, an index as its retriever.

    pipeline = StepRAGPipeline(config, out="runs/infer-nq", policy__base_url="http://127.0.0.1:8000/v1")
    dataset = pipeline.run(get_dataset(config)["test"])
    IRCOTPipeline(config, retriever=StepRAGRetriever(config)).run(dataset)

`config` is FlashRAG's `Config`; its `index_path` names what `open_retriever` opens: an index folder, a service's URL, …
"""

from __future__ import annotations

import asyncio
import importlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.library.background import run
from apps.library.index import Index, dotted
from inference.config import InferConfig, config_of
from inference.inference import infer
from inference.interop.flashrag import outputs
from inference.predictions import read_predictions
from steprag.batch.worklist import FAILED
from steprag.config.load import OPTION
from steprag.errors import RequestError
from steprag.records.inputs import as_document, read_questions
from steprag.records.jsonl import write_records
from steprag.types import Passage

_pipelines: Any = importlib.import_module("flashrag.pipeline.pipeline")
_retrievers: Any = importlib.import_module("flashrag.retriever.retriever")


class StepRAGRetriever(_retrievers.BaseTextRetriever):
    """FlashRAG's retriever over an index of ours. Its cache and its rerankers (`use_reranker`) work as usual."""

    def __init__(self, config: Any, index: str | Path | None = None, **keys: Any) -> None:
        """`index` stands in for `index_path`; `keys` are those of the section `retriever`, such as `mode="dense"`.

        Raises ConfigError and DataError at once where there is nothing to search.
        """
        super().__init__(config)
        self.index = Index.open(index or config["index_path"], **keys)

    def _search(self, query: str, num: int | None = None, return_score: bool = False) -> Any:
        found, scores = self._batch_search([query], num, return_score=True)
        return (found[0], scores[0]) if return_score else found[0]

    def _batch_search(self, query: str | Sequence[str], num: int | None = None, return_score: bool = False) -> Any:
        """Rows with `id`, `title`, `text` and `contents`, best first; none for a query without words, which FlashRAG's
        methods may ask. Raises RetrieverError.
        """
        queries, most = [query] if isinstance(query, str) else list(query), num or self.topk
        passages = run(self._searched(queries, most))
        found = [[as_document(passage) for passage in row] for row in passages]
        return (found, [[passage.score for passage in row] for row in passages]) if return_score else found

    async def _searched(self, queries: Sequence[str], most: int) -> list[tuple[Passage, ...]]:
        retriever = self.index.retriever()
        answered = iter(await asyncio.gather(*(retriever.search(one, most) for one in queries if one.strip())))
        return [next(answered) if one.strip() else () for one in queries]


class StepRAGPipeline(_pipelines.BasicPipeline):
    """The agent over a data set of FlashRAG, as `steprag infer` plays it: journalled, and resumed where it was cut."""

    def __init__(
        self, config: Any, out: str | Path, index: str | Path | None = None, recipe: str | Path | None = None,
        **keys: Any,
    ) -> None:  # fmt: skip
        """`out`: the run folder. `recipe`: a file as `steprag infer --config` takes it. `keys`: its keys, sections
        parted by two underscores (`policy__model="…"`). Raises ConfigError for an unknown one.
        """
        super().__init__(config, prompt_template=self)  # the agent has prompts of its own
        self.save_retrieval_cache = False  # the journal is the cache
        self._out, self._index = Path(out), str(index or config["index_path"])
        given = {f"{OPTION}{key}": value for key, value in dotted(keys).items()}
        self._settings = config_of(InferConfig, Namespace(config=str(recipe) if recipe else None, **given))

    def run(self, dataset: Any, do_eval: bool = True, pred_process_fun: Any = None) -> Any:
        """The data set with `pred`, `retrieval_result`, `steps` and `finish`, scored by FlashRAG's evaluator.

        Raises RequestError where questions failed: their score would be no zero. What is answered stays in the run.
        """
        file, name = self._out.with_name(f"{self._out.name}-questions.jsonl"), dataset.dataset_name
        rows = [{**item.data, "id": item.id or str(place)} for place, item in enumerate(dataset.data)]
        write_records(file, [{key: row[key] for key in row if key != "output"} for row in rows])
        _, failed = run(infer(self._settings, file, self._index, self._out, name))
        if failed:
            raise RequestError(f"{failed} of {len(rows)} questions failed: {self._out / FAILED} says why; run again to"
                               " ask only these")  # fmt: skip
        predictions = {one.id: one for one in read_predictions(self._out)}
        ordered = [predictions[question.id] for question in read_questions(file, name)]
        for item, output in zip(dataset.data, outputs(self._out, ordered), strict=True):
            for key, value in output.items():
                item.update_output(key, value)
        return self.evaluate(dataset, do_eval, pred_process_fun)
