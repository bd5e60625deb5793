"""A loaded encoder: text to vectors.

sentence-transformers loads the model and does the pooling. Texts take a way of our own through it: tokens are made
ahead, texts of like length go together, and a batch holds so many tokens rather than so many texts, which leaves
little padding and keeps a batch within the caches (`benchmarks/peers/encode.py` compares it with `encode`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from indexes.encoding.encoders import EncoderSpec
from indexes.encoding.model_files import keep_promises, modules_of
from indexes.encoding.runtimes import (
    QueryBackend,
    check_backend,
    device_here,
    drop_weights,
    give_over,
    give_over_if_alike,
)
from steprag.console.progress import say
from steprag.engines.pretrained import TO_COMPARE, check_complete, loading
from steprag.engines.tensors import check_finite, unwrapped
from steprag.engines.threads import one_load, return_freed_memory, spin_briefly
from steprag.errors import ConfigError, RetrieverError

Dtype = Literal["float32", "float16", "bfloat16", "int8"]
CPU_TOKENS = 512
"""For each thread: two long passages, whose activations stay in a core's cache."""
GPU_TOKENS = 65536
TOKENISED = 256
"""Texts that are tokenised at once: what the tokenizer notes of a token takes a hundred bytes."""
GREATEST = 65504.0
"""The greatest number that an index's vectors, in fp16, can hold."""


@dataclass(frozen=True)
class Tokens:
    """The token ids of each text, as far as it is read; None where the model wants the text itself. `cut`: how many of
    the texts are longer.
    """

    ids: list[np.ndarray] | None
    cut: int = 0


class Encoder:
    """A loaded model. Not for several threads at once, but for `tokenise`; give it a thread of its own."""

    def __init__(
        self, folder: Path, spec: EncoderSpec, *, device: str = "cpu", dtype: Dtype = "float32",
        threads: int | None = None, backend: QueryBackend = "torch",
    ) -> None:  # fmt: skip
        """`device`: cpu, cuda, cuda:1, … or auto. `dtype` int8: the linear layers in dynamic int8, on a
        CPU only. `backend`: what runs the transformer, on a CPU only unless it is torch or auto. `threads` holds for
        the thread that calls, as OpenMP counts them. Raises ConfigError for what does not go together.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == 1 else "true")
        spin_briefly()
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        device = device_here(device) if device == "auto" else device
        self._gpu = device.startswith("cuda")
        _check_pair(backend, dtype, self._gpu)
        device_here(device, dtype)
        self._tokens = GPU_TOKENS if self._gpu else CPU_TOKENS * torch.get_num_threads()
        weights = "float32" if dtype == "int8" else dtype
        self.spec, self.device, self._told = spec, device, True
        with loading(folder):
            with one_load():
                kwargs = {**TO_COMPARE, "dtype": getattr(torch, weights)}
                self._model = _loaded(unwrapped(folder), spec, device, kwargs)
            check_complete(self._model[0].model, folder, self._model.tokenizer, unread="pooler")
            check_finite(folder, self._model.named_parameters())
            _check_length(self._model[0].model, spec)
            self._model.max_seq_length = spec.max_length
            tokenizer: Any = self._model.tokenizer
            # before a text it would move the places in models that count them; pooling finds the last token anyway
            tokenizer.padding_side = "right"
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # behind the mask any token will do
            keep_promises(tokenizer, modules_of(folder)[0][1])
            if dtype == "int8":
                _to_int8(self._model)
            if backend not in ("auto", "torch"):
                give_over(self._model[0], backend, torch.get_num_threads(), spec.weight_hash)
                drop_weights(self._model[0])
            self._by_tokens = {prompt: _takes_tokens(self._model, prompt)
                               for prompt in (spec.passage_prefix, spec.query_prefix)}  # fmt: skip
            self.encode_passages(["?"])  # a damaged folder may load and fall over its first text
            if backend == "auto" and device == "cpu" and dtype == "float32":
                give_over_if_alike(self._model[0], self.encode_queries, torch.get_num_threads(), spec.weight_hash)
        self._told = False  # of the texts above nobody is told
        return_freed_memory()

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dimension) float32, rows of length 1 where the spec says so."""
        tokens = self._ids(texts, self.spec.query_prefix)
        if tokens.cut and not self._told:
            self._told = True
            say(f"index: a query is longer than the {self.spec.max_length} tokens that encoder {self.spec.name} reads;"
                " the rest of such queries is not searched by vectors")  # fmt: skip
        if tokens.ids is not None:
            return self.encode_tokens(texts, tokens)
        how = self._model.encode_query
        return self._encode(how, texts, self.spec.query_prefix, batch_size=256 if self._gpu else 16)

    def encode_passages(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> np.ndarray:
        """(len(texts), dimension) float32 in the order of `texts`, rows of length 1 where the spec says so.

        `batch_tokens`: tokens in a batch, padding counted. The same texts in the same order give the same bytes on the
        same machine.
        """
        return self.encode_tokens(texts, self.tokenise(texts), batch_tokens=batch_tokens)

    def tokenise(self, texts: Sequence[str]) -> Tokens:
        """Tokens of passages, cut at the spec's length. Thread-safe."""
        return self._ids(texts, self.spec.passage_prefix)

    def _ids(self, texts: Sequence[str], prompt: str) -> Tokens:
        blocks = (texts[start : start + TOKENISED] for start in range(0, len(texts), TOKENISED))
        parts = [self._block([prompt + text for text in block]) for block in blocks]
        ids = [row for part, _ in parts for row in part]
        return Tokens(ids if self._by_tokens[prompt] else None, sum(cut for _, cut in parts))

    def _block(self, prefixed: list[str]) -> tuple[list[np.ndarray], int]:
        """The token ids of each text, and how many of the texts are cut."""
        tokenizer: Any = self._model.tokenizer
        how: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "padding": False}
        found = tokenizer(prefixed, truncation=True, max_length=self.spec.max_length, **how)
        full = [row for row, ids in enumerate(found["input_ids"]) if len(ids) >= self.spec.max_length]
        if tokenizer.is_fast:
            cut = sum(bool(found.encodings[row].overflowing) for row in full)
        else:
            cut = sum(len(tokenizer(prefixed[row], verbose=False)["input_ids"]) > self.spec.max_length for row in full)
        return [np.array(ids, dtype=np.int32) for ids in found["input_ids"]], cut

    def encode_tokens(
        self, texts: Sequence[str], tokens: Tokens, *, batch_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """As `encode_passages`, for texts whose tokens are there already. `progress` is told how many more are done."""
        vectors = np.empty((len(texts), self.spec.dimension), dtype=np.float32)
        most = batch_tokens or self._tokens
        ids = tokens.ids
        lengths = [len(text) // 3 + 1 for text in texts] if ids is None else [*map(len, ids)]
        for rows in batches(lengths, most):
            if ids is None:
                asked = [texts[row] for row in rows]
                vectors[rows] = self._encode(self._model.encode_document, asked, self.spec.passage_prefix, len(rows))
            else:
                vectors[rows] = self._forward([ids[row].tolist() for row in rows])
            if progress:
                progress(len(rows))
        return vectors

    def _forward(self, tokens: list[list[int]]) -> np.ndarray:
        import torch

        tokenizer: Any = self._model.tokenizer
        with torch.inference_mode(), self._within():
            batch = tokenizer.pad({"input_ids": tokens}, padding=True, return_tensors="pt")
            features = {key: values.to(self.device, non_blocking=True) for key, values in batch.items()}
            found = self._model(features)["sentence_embedding"].float()[:, : self._model.truncate_dim]
            if self.spec.normalise:
                found = torch.nn.functional.normalize(found, dim=1)
            return self._checked(found.cpu().numpy())

    def _encode(self, how: Callable[..., Any], texts: Sequence[str], prefix: str, batch_size: int) -> np.ndarray:
        with self._within():
            vectors = how(
                list(texts),
                prompt=prefix,
                batch_size=batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
                normalize_embeddings=self.spec.normalise,
            )
        return np.ascontiguousarray(self._checked(vectors), dtype=np.float32)

    @contextmanager
    def _within(self) -> Iterator[None]:
        """A block in which the model reads tokens. Raises ConfigError for one that its weights have no row for."""
        try:
            yield
        except IndexError as error:
            problem = f"its tokenizer gives a token or a place that its weights lack ({error})"
            raise ConfigError(f"encoder {self.spec.name}: {problem}; restore its folder") from None

    def _checked(self, vectors: np.ndarray) -> np.ndarray:
        if vectors.shape[1] != self.spec.dimension:
            raise RetrieverError(
                f"encoder {self.spec.name} gives {vectors.shape[1]} dimensions, not {self.spec.dimension}"
            )
        if not (np.abs(vectors) <= GREATEST).all():  # NaN is not either
            problem = f"gives a vector that holds NaN, infinity or a number beyond {GREATEST:,.0f}"
            raise ConfigError(f"encoder {self.spec.name} {problem}; give --dtype float32 or --normalise true, or mend"
                              " its weights")  # fmt: skip
        return vectors


_PLACES = ("position_embeddings", "embed_positions", "wpe")
"""What architectures call the table of a text's places; others compute them, for texts of any length."""


def _check_length(model: Any, spec: EncoderSpec) -> None:
    """Raises ConfigError where a text of the spec's length has more tokens than the model's table has places. Those up
    to the padding token's are never used.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _PLACES and hasattr(module, "weight"):
            unused = getattr(module, "padding_idx", None)
            places = module.weight.shape[0] - (0 if unused is None else unused + 1)
            if spec.max_length > places:
                raise ConfigError(f"encoder {spec.name} has places for {places} tokens, and is to read"
                                  f" {spec.max_length}; give --max_length {places}, or less")  # fmt: skip


def _check_pair(backend: QueryBackend, dtype: Dtype, gpu: bool) -> None:
    if dtype == "int8" and gpu:
        raise ConfigError("int8 encodes on a CPU; give --dtype bfloat16 for a GPU")
    check_backend(backend)
    if backend not in ("auto", "torch") and (gpu or dtype != "float32"):
        raise ConfigError(f"--backend {backend} encodes on a CPU in float32; leave --dtype out and give --device cpu")


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows in batches of at most `most` tokens once padded to their longest; a longer text goes alone.

    Longest first, so that memory that does not suffice shows at once.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


TEXT_ALONE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
"""A plain folder's texts are read as they are, also where its tokenizer has a chat template."""


def _loaded(folder: Path, spec: EncoderSpec, device: str, model_kwargs: dict[str, Any]) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modes: Any = tuple(spec.pooling.split("+"))
    if not (folder / "modules.json").is_file():  # a plain transformers folder: the spec says how to pool
        transformer = Transformer(
            str(folder), model_kwargs={**model_kwargs, "local_files_only": True},
            modality_config=TEXT_ALONE, module_output_name="token_embeddings",  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        pooling: Any = Pooling(spec.dimension // len(modes), modes)
        return SentenceTransformer(modules=[transformer, pooling], device=device)
    model = SentenceTransformer(
        str(folder), device=device, trust_remote_code=False, local_files_only=True, model_kwargs=model_kwargs
    )
    pooling = next(module for module in model if isinstance(module, Pooling))
    pooling.pooling_mode = modes
    if not spec.normalise:
        for place in [place for place, module in enumerate(model) if isinstance(module, Normalize)][::-1]:
            del model[place]
    return model


def _to_int8(model: Any) -> None:
    """Linear layers in int8, a scale for each output: one for all costs twice as much of the cosine."""
    import torch
    from torch.ao.quantization import quantize_dynamic
    from torch.ao.quantization.qconfig import per_channel_dynamic_qconfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says at every call that torchao will replace this
        quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig}, inplace=True)  # pyright: ignore


_OF_ITS_OWN = ("do_lower_case", "processing_kwargs", "query_length", "document_length", "query_expansion")
"""What a folder may ask of its Transformer module beyond tokens."""


def _takes_tokens(model: Any, prefix: str) -> bool:
    """Whether token ids are all that the model wants; else `encode` of sentence-transformers does the work."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    if not isinstance(model[0], Transformer) or any(getattr(model[0], name, None) for name in _OF_ITS_OWN):
        return False
    if "message" in model[0].modalities:
        return False
    pooling = next((module for module in model if isinstance(module, Pooling)), None)
    return pooling is not None and (pooling.include_prompt or not prefix)
