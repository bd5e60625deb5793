"""The cross-encoder: reads query and passage together and scores the pair.

sentence-transformers runs it: encoders with a classification head (ms-marco-MiniLM, bge-reranker), and language models
whose folder says how they rank (`modules.json`) or whose family does (`TEMPLATES`). Weights are safetensors only and no
code of a model is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexes.encoding.encoders import find_encoder
from indexes.encoding.families import is_called, model_names
from indexes.encoding.model_files import (
    NO_LIMIT,
    config_hash,
    keep_promises,
    longest_text,
    model_config,
    modules_of,
    weight_files,
)
from indexes.encoding.runtimes import device_here
from indexes.ranking.rankings import named
from steprag.console.progress import say
from steprag.engines.pretrained import TO_COMPARE, check_complete, loading
from steprag.engines.tensors import unwrapped
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import files_hash, read_json

_MESSAGE = "{{ (messages | selectattr('role', 'eq', '%s') | first).content }}"
TEMPLATES = {
    r"qwen3-reranker": (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
        ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {_MESSAGE % 'query'}\n<Document>: {_MESSAGE % 'document'}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>{{ '\n\n' }}"  # as text, Jinja would drop the last one
    )
}
"""Of language models that answer yes or no: the prompt of a pair, as the model's card has it, as a chat template. The
score is the logit of "yes" less that of "no", which a classification head may give at once.
"""
_RIGHT = {"relevant", "yes", "true", "positive"}
"""What a label calls a passage that answers the query; without such a word it is the second of two."""


class CrossEncoder:
    """A sentence-transformers cross-encoder with one output, or with two labels."""

    def __init__(self, name: str, *, device: str = "cpu") -> None:
        """Finds the model. Raises ConfigError where it is not there, holds no safetensors or is no reranker."""
        self._folder, self._device = find_encoder(name), device
        files = weight_files(self._folder)
        self._template, self._labels = _asked(name, self._folder)
        self.hash = named(files_hash(files), config_hash(self._folder), self._template)

    def load(self) -> None:
        """Loads safetensors weights from this machine alone; no code of the model's is run."""
        with one_load(), loading(self._folder):
            import torch
            from sentence_transformers import CrossEncoder as Model

            device = device_here(self._device)
            on_gpu = device != "cpu"
            self._model = Model(
                str(unwrapped(self._folder)),
                num_labels=len(self._labels) or 1,
                device=device,
                activation_fn=torch.nn.Identity(),  # a sigmoid would make ties of good passages
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={**TO_COMPARE, "dtype": "auto" if on_gpu else torch.float32},
                processor_kwargs={"chat_template": self._template} if self._template else None,
            )
            check_complete(self._model.model, self._folder, self._model.tokenizer)
            if on_gpu:
                score_in_float32(self._model.model)
            longest, theirs = longest_text(self._folder, model_config(self._folder)), self._model.max_seq_length
            if longest and (theirs is None or theirs > longest):
                self._model.max_seq_length = longest
            self._longest = self._model.max_seq_length or NO_LIMIT
            keep_promises(self._model.tokenizer, modules_of(self._folder)[0][1])
            self._told = False
            self.score("?", ["?"])  # one whose prompt has no place for a pair falls over its first

    def score(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) logits, not squeezed to 0…1; greater is better. Of two labels it is the right one's less the
        other's.
        """
        pairs = [(query, text) for text in texts]
        tokens = [] if self._told else self._model.tokenizer(*max(pairs, key=_letters), verbose=False)["input_ids"]
        if len(tokens) > self._longest:
            self._told = True
            say(f"index: a passage with its query is longer than the {self._longest} tokens that the reranker reads;"
                " the rest of such passages is not judged")  # fmt: skip
        logits = np.asarray(self._model.predict(pairs, show_progress_bar=False, convert_to_numpy=True))
        if len(self._labels) < 2:
            return logits
        right = 0 if self._labels[0] in _RIGHT else 1
        return logits[:, right] - logits[:, 1 - right]


def _letters(pair: tuple[str, str]) -> int:
    return len(pair[1])


def score_in_float32(model: Any) -> None:
    """Has the last linear layer give float32: bfloat16 has 128 numbers from 4 to 8, which makes ties."""
    from torch import nn

    head: Any = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]

    def forward(hidden: Any) -> Any:
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(hidden.float(), head.weight.float(), bias)

    head.forward = forward


def _asked(name: str, folder: Path) -> tuple[str | None, list[str]]:
    """The prompt of a language model that ranks (None where the folder says all), and its classification head's labels
    in lower case (none without a head). Raises ConfigError for a model whose scores would be noise: without a head and
    of no known family, or with more labels than two.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no reranker: it has no config.json")
    config = model_config(folder)
    kind = str((config.get("architectures") or ["no architecture"])[0])
    head = kind.endswith("ForSequenceClassification")
    labels = _labels(config, folder) if head else []
    own = folder / "config_sentence_transformers.json"
    if own.is_file() and read_json(own).get("model_type") == "CrossEncoder":
        return None, labels
    for known_as in model_names(name, str(folder)) if head or kind.endswith("ForCausalLM") else ():
        for pattern, template in TEMPLATES.items():
            if is_called(pattern, known_as):
                return template, labels
    if head:
        return None, labels
    raise ConfigError(f"{folder} ({quoted(kind)}) is no reranker: it has no classification head, and does not say"
                      " how it scores a pair; give a cross-encoder, such as BAAI/bge-reranker-v2-m3")  # fmt: skip


def _labels(config: dict[str, Any], folder: Path) -> list[str]:
    """Names of the labels by place, in lower case; transformers leaves out of a file that there are two."""
    given, count = config.get("id2label"), config.get("num_labels")
    given = given if isinstance(given, dict) and given else dict.fromkeys(range(count if isinstance(count, int) else 2))
    names = [str(label).lower() for _, label in sorted(given.items(), key=lambda one: str(one[0]).zfill(9))]
    if len(names) > 2:
        raise ConfigError(f"{folder} has {len(names)} labels ({', '.join(map(quoted, names[:3]))}, …), and does not say"
                          " which one ranks; give a reranker of one label or two")  # fmt: skip
    return names
