"""What RAGAS's own package says of fixed verdicts, for `tests/test_grpo_rewards.py`. To make `ragas_golden.json` anew:

python -m venv ragas && ragas/bin/pip install ragas==0.4.3 "langchain-community<0.4"
ragas/bin/python -m tests.ragas_golden
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("ragas_golden.json")
CASES = 40


def made() -> dict[str, list[dict[str, Any]]]:
    """Verdicts drawn by a fixed seed, and the score of each set; None where RAGAS has no number."""
    from ragas.metrics._answer_relevance import ResponseRelevanceOutput, ResponseRelevancy
    from ragas.metrics._context_precision import LLMContextPrecisionWithReference, Verification
    from ragas.metrics._faithfulness import Faithfulness, NLIStatementOutput, StatementFaithfulnessAnswer

    rng = random.Random(0)
    found: dict[str, list[dict[str, Any]]] = {"context_precision": [], "faithfulness": [], "answer_relevancy": []}
    for case in range(CASES):
        verdicts = [rng.random() < 0.5 for _ in range(case % 8)]
        useful = [Verification(reason="", verdict=int(one)) for one in verdicts]
        precision = LLMContextPrecisionWithReference()._calculate_average_precision(useful)
        found["context_precision"].append({"verdicts": verdicts, "score": _number(precision)})
        claims = [StatementFaithfulnessAnswer(statement="", reason="", verdict=int(one)) for one in verdicts]
        faithful = Faithfulness()._compute_score(NLIStatementOutput(statements=claims))
        found["faithfulness"].append({"verdicts": verdicts, "score": _number(faithful)})
        vectors = [[rng.gauss(0.4, 1.0) for _ in range(4)] for _ in range(1 + case % 3 + 1)]
        evasive = [rng.random() < 0.5 for _ in vectors[1:]]
        back = [ResponseRelevanceOutput(question=str(at), noncommittal=int(one)) for at, one in enumerate(evasive, 1)]
        relevancy = ResponseRelevancy(embeddings=_Fixed(vectors))._calculate_score(back, {"user_input": "0"})  # type: ignore[arg-type]
        found["answer_relevancy"].append({"vectors": vectors, "noncommittal": evasive, "score": _number(relevancy)})
    return found


class _Fixed:
    """Embeddings that are given, by the number that a text is."""

    def __init__(self, vectors: list[list[float]]) -> None:
        self._vectors = vectors

    def embed_query(self, text: str) -> list[float]:
        return self._vectors[int(text)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._vectors[int(text)] for text in texts]


def _number(score: float) -> float | None:
    return None if math.isnan(score) else float(score)


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), separators=(",", ":")).replace("},{", "},\n{") + "\n")
