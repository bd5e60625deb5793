"""Models and tokenizers of others, fetched and loaded: no code of theirs is run, and weights are safetensors."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import struct
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from steprag.engines.tensors import check_finite, check_taken, untied
from steprag.engines.threads import one_load
from steprag.engines.tokenizer_probe import problem_of
from steprag.engines.vocabulary import check_rows
from steprag.errors import NO_ROOM, ConfigError, StepragError, quoted
from steprag.records.jsonl import read_json

VOCABULARY = re.compile(r"embed|wte|lm_head")
"""In the names of tensors with a row for each token."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER_FILES = (
    "tokenizer*.json", "tekken.json", "special_tokens_map.json", "added_tokens.json", "normalizer.json", "vocab.*",
    "merges.txt", "bpe.codes", "dict.txt", "*.model", "*.model.v*", "*.spm", "*.tiktoken", "chat_template.*",
    "additional_chat_templates/*.jinja", "*processor_config.json",
)  # fmt: skip
"""What tokenizers of any make are read from, as patterns in a model's folder."""
_TWICE = ("original/*", "metal/*", "consolidated*.safetensors")
"""Weights that repositories hold a second time, for other programs (gpt-oss, Mistral): transformers reads none."""
HUB_SECONDS = 10
"""Until the hub counts as out of reach."""
_HEARD_SECONDS = 300.0
_heard: dict[str, tuple[float, str]] = {}
"""By address: when the hub was asked whether it answers, and what `_silence` said; a command asks at several doors."""
MODEL_FILES = ("*.json", "*.safetensors", *TOKENIZER_FILES)
"""What a language model's folder is read from: no code and no pickle."""


TO_COMPARE = {"use_safetensors": True, "ignore_mismatched_sizes": True}
"""What transformers is asked, by way of another library too: a shape that does not fit is for `check_taken` to name."""


def from_pretrained(auto: Any, source: str, *, fresh: str | None = None, **options: Any) -> Any:
    """`auto.from_pretrained(source)` for one of transformers' Auto classes, with `trust_remote_code=False`.

    Said outright: left open, transformers asks on standard input whether it may run the folder's Python files. Model
    classes also get `use_safetensors=True`, and their weights are compared (`check_taken`, `check_finite`), but for
    those whose names have `fresh` in them. Raises ConfigError, with the source's name, for what cannot be loaded so.
    """
    if auto.__name__.endswith(("Tokenizer", "Config")):
        file = Path(source) / "tokenizer.json"
        if auto.__name__.endswith("Tokenizer") and file.is_file() and (problem := problem_of(file)):
            raise ConfigError(f"{source} cannot be loaded: its tokenizer.json {problem}; give another model")
        with loading(source):
            return auto.from_pretrained(source, trust_remote_code=False, **options)
    options = {**TO_COMPARE, "output_loading_info": True, **options}
    with loading(source), _unreported():
        model, info = auto.from_pretrained(source, trust_remote_code=False, **options)
    _check_loaded(model, info, source, fresh)
    return model


@contextmanager
def _unreported() -> Iterator[None]:
    """A block whose library says nothing of the weights that it loads: what is amiss is compared here."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def adapted(model: Any, folder: Path, **options: Any) -> Any:
    """The model under PEFT's adapter in `folder`, compared as in `from_pretrained`. Raises ConfigError."""
    from peft import PeftModel

    with loading(folder), _unreported():
        policy = PeftModel.from_pretrained(model, str(folder), ignore_mismatched_sizes=True, **options)
    check_adapted(policy, folder)
    return policy


def check_adapted(policy: Any, folder: Path, fresh: str | None = None) -> None:
    """Raises ConfigError where the tensors in `folder` are not those of the PEFT model's adapter."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    with loading(folder):
        found = load_file(folder / "adapter_model.safetensors")
    wanted = get_peft_model_state_dict(policy, save_embedding_layers=False)
    there = {**policy.state_dict(), **wanted}
    shapes = [(name, one.shape, there[name].shape) for name, one in found.items()
              if name in there and there[name].shape != one.shape]  # fmt: skip
    named = policy.peft_config["default"].base_model_name_or_path
    remedy = f"give the base that it was made for ({named}), or save the adapter again"
    if shapes and all(VOCABULARY.search(name) for name, *_ in shapes):
        remedy = "its vocabulary is another one: merge it into its base, resized (PEFT's merge_and_unload); give that"
    what = f"{type(policy.get_base_model()).__name__} under its adapter_config.json"
    missing = [name for name in wanted if name not in found]
    check_taken(folder, what, missing=missing, unread=found.keys() - there.keys(), shapes=shapes, fresh=fresh,
                remedy=remedy)  # fmt: skip
    check_finite(folder, found.items())


def _check_loaded(model: Any, info: Any, source: object, fresh: str | None) -> None:
    """Compares what was loaded with what the model has (`steprag.engines.tensors`). Raises ConfigError."""
    parts = {name for name, _ in model.named_children()} | {model.base_model_prefix}
    packed = getattr(getattr(model, "hf_quantizer", None), "pre_quantized", False)  # the quantiser's own tensors
    order = {name: place for place, name in enumerate(model.state_dict())}
    missing = sorted(info["missing_keys"], key=lambda name: order.get(name, len(order)))
    check_taken(source, type(model).__name__, missing=missing, shapes=info["mismatched_keys"],
                unread=() if packed else info["unexpected_keys"], parts=parts, fresh=fresh)  # fmt: skip
    _check_numbers(model, source)


def _check_numbers(model: Any, source: object) -> None:
    """Raises ConfigError for NaN and infinity, and for a head that differs from the embeddings that are to be it."""
    head = model.get_output_embeddings() if _ties(model) else None
    if head is not None and not head.weight.is_meta and head.weight is not model.get_input_embeddings().weight:
        raise untied(source)
    check_finite(source, model.named_parameters())


def _ties(model: Any) -> bool:
    """Whether config.json says, for all of the model and for its text part, that the head is the embeddings."""
    return all(getattr(one, "tie_word_embeddings", False) for one in (model.config, model.config.get_text_config()))


def tied_names(model: Any) -> set[str]:
    """Names of the embeddings and the head of a model whose config.json ties them; no name of other models."""
    if not _ties(model):
        return set()
    same = [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
    return {f"{name}.weight" for name, module in model.named_modules() if module in same}


class loading(AbstractContextManager[None]):
    """A block in which a library loads a model of others. Raises ConfigError, with the source's name, for what it
    cannot load; a missing package stays one, and so does every error that no loader is known to raise.

    A folder may also name a module or a class that its library lacks.
    """

    def __init__(self, source: object) -> None:
        self._source = source

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if kind is None or issubclass(kind, StepragError):
            return
        if kind is not Exception and not issubclass(kind, _told_by_loaders()):  # the bare one: tokenizers'
            return
        if isinstance(error, ModuleNotFoundError) and _is_missing(error.name or ""):
            return
        told = _shortened(f"{kind.__name__}: {error}")
        if "trust_remote_code" in str(error):
            told = "it needs Python code of its own, and StepRAG runs no code that comes with a model"
        raise ConfigError(f"{self._source} cannot be loaded: {told}") from None


_LOADERS_RAISE = (
    OSError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError, ArithmeticError,
    AssertionError, EOFError, struct.error,
)  # fmt: skip
"""What transformers, PEFT, sentence-transformers, torch and gguf raise for files that they cannot read. RuntimeError
stands for NotImplementedError and RecursionError too, LookupError for KeyError and IndexError."""
_LIBRARIES_RAISE = (
    ("safetensors", "SafetensorError"), ("huggingface_hub.errors", "StrictDataclassError"),
    ("huggingface_hub.errors", "HTTPError"), ("jinja2", "TemplateError"),
)  # fmt: skip
"""Errors of a library's own, below none of those."""


def _told_by_loaders() -> tuple[type[BaseException], ...]:
    """The errors with which a loader says that it cannot load. A library that is not imported raised none."""
    own = [getattr(sys.modules[module], name) for module, name in _LIBRARIES_RAISE if module in sys.modules]
    return (*_LOADERS_RAISE, *own)


def _is_missing(module: str) -> bool:
    """Whether the package that holds the module is not installed."""
    package = module.split(".")[0]
    return package != "" and importlib.util.find_spec(package) is None


def check_complete(model: Any, source: object, tokenizer: Any, unread: str | None = None) -> None:
    """Raises ConfigError where the weights of a model that another library loaded are not those of its files, or not
    those of its tokenizer. `unread`: a part of the names of weights that nobody reads.
    """
    place, kind = Path(model.name_or_path), model.config.model_type
    below = (file.parent for file in sorted(place.glob("*/config.json")) if read_json(file).get("model_type") == kind)
    if place.is_dir() and not any(place.glob("*.safetensors")):  # sentence-transformers may have it in a folder below
        place = next(below, place)
    if getattr(model, "hf_quantizer", None) is None:  # its quantiser knows names of its own
        with one_load():
            from_pretrained(type(model), str(place), fresh=unread, config=model.config, device_map="meta")
    _check_numbers(model, source)
    check_rows(tokenizer, getattr(model.config.get_text_config(), "vocab_size", None), source)


def check_pulled(files: Iterable[Path]) -> None:
    """Raises ConfigError for a file of weights of which a clone without Git LFS has the pointer alone."""
    for file in files:
        if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs"):
            raise ConfigError(f"{file} is a pointer of Git LFS, not the weights: run git lfs pull in its folder")


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copies the tokenizer's files as they are: what transformers 5 saves names a class that version 4 lacks."""
    for path in (path for pattern in TOKENIZER_FILES for path in base.glob(pattern)):
        target = folder / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


@contextmanager
def asking_the_hub(what: str, remedy: str) -> Iterator[None]:
    """Turns an error of the hub's client into a ConfigError of one line about `what`. Where the hub does not answer,
    the block finds what is on this machine, and waits for nothing.
    """
    from huggingface_hub import constants

    # The root of whichever HTTP library the hub's client uses.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    offline, silent = constants.HF_HUB_OFFLINE, ""
    try:
        silent = "" if offline else _silence(constants.ENDPOINT)
        constants.HF_HUB_OFFLINE = offline or bool(silent)
        yield
    # ValueError: a malformed id. RuntimeError: its store of large files (Xet) is out of reach.
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        raise ConfigError(f"{what}: {silent or _shortened(str(error) or type(error).__name__)} ({remedy})") from None
    finally:
        constants.HF_HUB_OFFLINE = offline


def _silence(url: str) -> str:
    """Why nothing answers at the hub, asked once as its client asks (which would ask six times, minutes long), and not
    again for five minutes; empty where something does.
    """
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]
    from huggingface_hub.utils import get_session

    asked, said = _heard.get(url, (0.0, ""))
    if not asked or time.monotonic() - asked > _HEARD_SECONDS:
        said = ""
        try:
            get_session().head(url, timeout=HUB_SECONDS)
        except HTTPError as error:
            said = f"{url} does not answer ({_shortened(str(error) or type(error).__name__)})"
        _heard[url] = time.monotonic(), said
    return said


def _shortened(text: str, most: int = 300) -> str:
    """A library's message on one line: its first whole sentences, of `most` characters; where the first is longer, its
    first words.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    sentences, stop, _ = line[:most].rpartition(". ")
    return f"{sentences}." if stop else f"{line[:most].rpartition(' ')[0]} …"


def fetched(hub: str, files: Sequence[str], what: str, kind: str = "model") -> Path:
    """The folder of `files` (patterns) of `hub`, fetched unless it is on this machine; its name is the commit. `kind`
    of the repository: model or dataset.

    Raises ConfigError, which names `what`, if it is neither here nor on the hub.
    """
    from huggingface_hub import snapshot_download

    problem = f"{what} {quoted(hub)}: not on this machine and not fetched"
    with asking_the_hub(problem, "download it elsewhere and give its folder"):
        return Path(snapshot_download(hub, repo_type=kind, allow_patterns=list(files), ignore_patterns=list(_TWICE)))
