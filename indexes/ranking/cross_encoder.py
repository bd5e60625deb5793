"""The cross-encoder: reads query and passage together and scores the pair.

sentence-transformers runs it: encoders with a classification head (ms-marco-MiniLM, bge-reranker), and language models
whose folder says how they rank (`modules.json`) or whose family does (`TEMPLATES`). Weights are safetensors only and no
code of a model is run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexes.encoding.encoders import find_encoder, model_config
from indexes.encoding.families import model_names
from steprag.engines.pretrained import check_complete, loading
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import file_hash, read_json

_MESSAGE = "{{ (messages | selectattr('role', 'eq', '%s') | first).content }}"
TEMPLATES = {
    r"qwen3-reranker": (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
        ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {_MESSAGE % 'query'}\n<Document>: {_MESSAGE % 'document'}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
}
"""Of language models that answer yes or no: the prompt of a pair, as the model's card has it, as a chat template. The
score is the logit of "yes" less that of "no".
"""


class CrossEncoder:
    """A sentence-transformers cross-encoder with one output."""

    def __init__(self, name: str, *, device: str = "cpu") -> None:
        """Finds the model. Raises ConfigError where it is not there, holds no safetensors or is no reranker."""
        self._folder, self._device = find_encoder(name), device
        files = sorted(self._folder.rglob("*.safetensors"))
        if not files:
            raise ConfigError(f"{self._folder} holds no safetensors weights; pickled weights are never loaded")
        self._template = _template(name, self._folder)
        self.hash = hashlib.sha256("".join(file_hash(file) for file in files).encode()).hexdigest()

    def load(self) -> None:
        """Loads safetensors weights from this machine alone; no code of the model's is run."""
        with one_load(), loading(self._folder):
            import torch
            from sentence_transformers import CrossEncoder as Model

            self._model = Model(
                str(self._folder),
                num_labels=1,
                device=None if self._device == "auto" else self._device,
                activation_fn=torch.nn.Identity(),  # a sigmoid would make ties of good passages
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
                processor_kwargs={"chat_template": self._template} if self._template else None,
            )
            check_complete(self._model.model, self._folder)
            self.score("?", ["?"])  # one whose prompt has no place for a pair falls over its first

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) logits, not squeezed to 0…1; greater is better."""
        pairs = [(query, text) for text in texts]
        return np.asarray(self._model.predict(pairs, show_progress_bar=False, convert_to_numpy=True))


def _template(name: str, folder: Path) -> str | None:
    """The prompt of a language model that ranks; None where the folder says all. Raises ConfigError for any other model
    without a classification head: its scores would be noise.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no reranker: it has no config.json")
    kinds = model_config(folder).get("architectures") or ["no architecture"]
    own = folder / "config_sentence_transformers.json"
    if own.is_file() and read_json(own).get("model_type") == "CrossEncoder":
        return None
    if str(kinds[0]).endswith("ForSequenceClassification"):
        return None
    for known_as in model_names(name, str(folder)) if str(kinds[0]).endswith("ForCausalLM") else ():
        for pattern, template in TEMPLATES.items():
            if re.search(rf"(^|-){pattern}(-|$)", known_as):
                return template
    raise ConfigError(f"{folder} ({quoted(kinds[0])}) is no reranker: it has no classification head, and does not say"
                      " how it scores a pair; give a cross-encoder, such as BAAI/bge-reranker-v2-m3")  # fmt: skip
