"""Weights in the format that an engine or a trainer reads.

llama.cpp reads the embedded model as a GGUF file of 8-bit blocks (`eight_bit_gguf`); trainers and
`transformers serve` need a Hugging Face folder. The folder made here holds the very numbers of that file, written out
as float32, so that what is trained and what is served start from one model.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.adapters import written_gguf
from steprag.engines.cache import cache_dir, made_once
from steprag.engines.headers import gguf_values
from steprag.engines.models import (
    EMBEDDED,
    GGUF_SHA256,
    ModelFiles,
    adapter_hash,
    beside_weights,
    embedded_gguf,
    hub_revision,
    resolve_model,
    weights_hash,
)
from steprag.engines.pretrained import (
    MODEL_FILES,
    TOKENIZER_FILES,
    adapted,
    copy_tokenizer,
    fetched,
    from_pretrained,
    loading,
    tied_names,
)
from steprag.engines.templates import KWARGS
from steprag.engines.tensors import check_stored, unwrapped
from steprag.engines.threads import fast_dtype, one_load
from steprag.engines.tokens import write_stops
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter
    from transformers import PreTrainedTokenizerBase

_FORMAT = 2  # raise it when the folder's content changes
_GGUF_FORMAT = 1  # part of the file's name; raise it when its content changes
_MERGED_FORMAT = "2"  # as above, of merged folders
_MANIFEST = "steprag.json"


def hf_weights(model: str | Path, out: Path | None = None) -> Path:
    """A Hugging Face folder (config, safetensors, tokenizer with chat template) of `model`.

    The embedded model is written out once, 540 MB, to `out` or the cache; a folder is returned as it is. Its name ends
    in the embedded name, which is how an adapter trained on it is recognised anywhere.
    """
    files = resolve_model(model)
    if files.hf:
        return files.hf
    if not files.embedded:
        raise ConfigError(f"{model} has no Hugging Face folder here; give a local folder, or {EMBEDDED}")
    target = out or cache_dir() / "weights" / EMBEDDED
    if out is not None and target.exists() and not _is_current(target):
        raise ConfigError(f"{target} exists and is not the folder this would write; give another --out")
    return made_once(target, lambda folder: _write_hf(eight_bit_gguf(), folder), current=_is_current)


def base_weights(files: ModelFiles) -> str:
    """What vLLM or transformers load as the base: a folder, or a hub id that they fetch."""
    if files.hub:
        return files.hub
    return str(unwrapped(hf_weights(EMBEDDED if files.embedded else str(files.hf or files.gguf))))


def tokenizer_folder(files: ModelFiles) -> Path:
    """The folder of the base's tokenizer and of the files that say where its replies end; fetched for a hub id."""
    if files.hub:
        return fetched(files.hub, (*TOKENIZER_FILES, "config.json", "generation_config.json"), "model")
    return Path(base_weights(files))


def load_tokenizer(files: ModelFiles, kwargs: Mapping[str, Any] | None = None) -> PreTrainedTokenizerBase:
    """The base's tokenizer, from a folder that `name_or_path` names; `kwargs`: values for every
    chat's template.

    ConfigError where it has no chat template.
    """
    folder = tokenizer_folder(files)  # which may have to be made first, and that is a load of its own
    with one_load():
        from transformers import AutoTokenizer

        tokenizer = from_pretrained(AutoTokenizer, str(folder))
    if not tokenizer.chat_template:
        raise no_template(files.name, folder)
    setattr(tokenizer, KWARGS, dict(kwargs or {}))
    return tokenizer


def no_template(name: str, folder: Path) -> ConfigError:
    """The error for a model whose tokenizer has no chat template; of older vision-language models the processor has."""
    remedy = "train an instruct model"
    if (folder / "chat_template.json").is_file():
        remedy = "write the text in its chat_template.json into a chat_template.jinja, which tokenizers read"
    return ConfigError(f"{name} has no chat template; {remedy}")


def transformers_folder(files: ModelFiles) -> str:
    """What `transformers serve` loads: the base, or a folder in the cache that joins base and adapter.

    An adapter folder alone has no `config.json`, which that server reads first; with one beside the adapter it wants
    the base's weights there too. What follows an @ in a path it takes for a revision, so such a folder is joined, too.
    """
    if files.adapter and files.adapter.suffix == ".gguf":
        raise ConfigError(f"transformers needs a PEFT adapter; {files.adapter} is a GGUF one")
    check_weights(files)
    if files.adapter is None and "@" not in (given := base_weights(files)):
        return given
    base, adapter = _base_folder(files), files.adapter
    # Named by both paths: two runs may each hold a "checkpoint-100".
    key = hashlib.sha256(f"{base}\n{adapter}".encode()).hexdigest()[:16]
    target = cache_dir() / "joined" / f"{files.label}-{key}".replace("@", "-")
    links = _links(base, adapter)
    return str(made_once(target, lambda folder: _join(links, folder), current=lambda folder: links == _joined(folder)))


def merged_folder(files: ModelFiles) -> str:
    """Base and adapter as one model, a folder in the cache, in the numbers in which this processor is fast.

    Raises ConfigError for an adapter that is not PEFT's.
    """
    if files.adapter is None:
        check_weights(files)
        return base_weights(files)
    if files.adapter.suffix == ".gguf":
        raise ConfigError(f"{files.adapter} cannot be merged here; give the PEFT folder that it was made from")
    base, adapter, dtype = _base_folder(files), files.adapter, fast_dtype()
    # Named by what is in it: a later run may leave other weights in the same folder, and a hub id gets new commits.
    which = [_MERGED_FORMAT, dtype, weights_hash(files), hub_revision(files), adapter_hash(adapter)]
    parts = [*which, *beside_weights(base), *beside_weights(adapter)]
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    target = cache_dir() / "merged" / f"{files.label}-{key}"
    return str(made_once(target, lambda folder: _merge(base, adapter, dtype, folder), current=Path.is_dir))


def check_weights(files: ModelFiles, *more: Path) -> None:
    """For engines and trainers that load by themselves: raises ConfigError where the base's tensors are not those of
    its config.json, or an adapter's (that of `files`, and `more`) not those of the base.

    A base that is fetched or quantised is left to them: its files, or its packages, may be theirs alone.
    """
    base = base_weights(files)
    if files.hub or "quantization_config" in read_json(Path(base, "config.json")):
        return
    with one_load():
        from transformers import AutoModelForCausalLM

        model = from_pretrained(AutoModelForCausalLM, base, device_map="meta")
        tied = tied_names(model)
        for adapter in filter(None, (files.adapter, *more)):
            policy = adapted(model, adapter, low_cpu_mem_usage=True)
            model = getattr(policy, "unload", policy.get_base_model)()  # one of prompts alone has nothing to unload
    check_stored(Path(base), tied)


def _base_folder(files: ModelFiles) -> Path:
    """The base in a folder; fetched for a hub id, unless it is in the cache."""
    return fetched(files.hub, MODEL_FILES, "model") if files.hub else Path(base_weights(files))


def _merge(base: Path, adapter: Path, dtype: str, folder: Path) -> None:
    """Summed in float32, rounded once at the end."""
    with one_load():
        import torch
        from transformers import AutoModelForCausalLM

        model = from_pretrained(AutoModelForCausalLM, str(base), dtype=torch.float32)
        merged: Any = adapted(model, adapter).merge_and_unload()
        merged.to(getattr(torch, dtype)).save_pretrained(folder)
    copy_tokenizer(base, folder)
    _write_ends(base, adapter, folder)


def _write_ends(base: Path, adapter: Path, folder: Path) -> None:
    """Where the merged model's replies end: as the adapter says, which training wrote; without its word, as the base's
    generation config and chat template say. A base without such a template is served as it is.
    """
    told = adapter / "generation_config.json"
    if told.is_file():
        shutil.copyfile(told, folder / told.name)
        return
    with contextlib.suppress(ConfigError):
        write_stops(load_tokenizer(ModelFiles(base.name, hf=base)), folder)


def _links(base: Path, adapter: Path | None) -> dict[str, Path]:
    """What a joined folder's names point to; links, not copies, for weights are large."""
    files = {
        source.name: source.resolve()
        for source in base.iterdir()
        if source.name == "additional_chat_templates" or (source.is_file() and source.name != _MANIFEST)
    }
    own = ("adapter_config.json", "adapter_model.safetensors")
    return files | ({name: adapter / name for name in own} if adapter else {})


def _join(links: dict[str, Path], folder: Path) -> None:
    for name, source in links.items():
        (folder / name).symlink_to(source)


def _joined(folder: Path) -> dict[str, Path]:
    return {link.name: link.readlink() for link in folder.iterdir()} if folder.is_dir() else {}


def _is_current(folder: Path) -> bool:
    manifest = folder / _MANIFEST
    return manifest.is_file() and read_json(manifest) == _manifest()


def _manifest() -> dict[str, Any]:
    return {"format": _FORMAT, "model": EMBEDDED, "gguf_sha256": GGUF_SHA256}


def _write_hf(gguf: Path, folder: Path) -> None:
    from gguf import GGUFReader

    gguf_values(gguf, lambda key: False)  # the packages would read on beyond a damaged header
    with one_load():
        import torch
        from transformers import AutoModelForCausalLM

        with contextlib.redirect_stderr(io.StringIO()):  # a bar that nothing turns off
            model = from_pretrained(AutoModelForCausalLM, str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    model.config.rms_norm_eps = round(model.config.rms_norm_eps, 12)  # GGUF has it as float32
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(model.config, name))
    model.hf_quantizer = None  # its numbers are float32 by now, and can be saved as such
    del model.config.quantization_config
    model.save_pretrained(folder)
    with loading(gguf):
        reader = GGUFReader(gguf)
    _write_tokenizer(reader, folder, model.config.max_position_embeddings)
    write_json(folder / _MANIFEST, _manifest())


def _write_tokenizer(reader: GGUFReader, folder: Path, max_length: int) -> None:
    """`tokenizer.json` and its configuration, from vocabulary and merges in the GGUF header.

    Made by hand, because transformers' own reading of this header splits blanks otherwise than llama.cpp. The
    pre-tokeniser is that of SmolLM2 (digits one by one, then GPT-2's byte level), which the header names "smollm"
    without describing it.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: int(reader.fields[f"tokenizer.ggml.{key}_token_id"].contents()) for name, key in keys.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": reader.fields["tokenizer.chat_template"].contents(),
    }
    write_json(folder / "tokenizer_config.json", {**settings, **{name: tokens[i] for name, i in ids.items()}})


def eight_bit_gguf() -> Path:
    """The embedded model as Q8_0 in the cache, made from the package's file where it is missing.

    The package ships 4-bit blocks (Q4_1) to be small. On a CPU llama.cpp reads prompts from them at little more than
    half the speed of 8-bit blocks (Q8_0), and prompts are what a search spends its time on. Written out once, 145 MB;
    8 bits lose next to nothing of numbers that came from 4 (less than 0.4 % of a block's greatest).
    """
    source = embedded_gguf()
    target = cache_dir() / "weights" / f"{EMBEDDED}-q8_0-{GGUF_SHA256[:12]}-{_GGUF_FORMAT}.gguf"
    if not target.is_file():
        with written_gguf(target, "llama") as writer:  # two processes may race: both write the same bytes
            _copy_in_eight_bits(source, writer)
    return target


def _copy_in_eight_bits(source: Path, writer: GGUFWriter) -> None:
    """Copies the header, and every tensor with its matrices in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFReader, dequantize, quantize

    reader = GGUFReader(source)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(7)  # llama.cpp's MOSTLY_Q8_0
    for tensor in reader.tensors:
        matrix = tensor.tensor_type in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
        values = dequantize(tensor.data, tensor.tensor_type)
        if matrix:
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, values)
