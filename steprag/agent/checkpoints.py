"""Compares a run's use of a checkpoint with the checkpoint's manifest.

A model is best with the prompts and the base that it was trained on. `steprag train` notes both. Folders of other
programs, GGUF files and models behind an endpoint have no such manifest and are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from steprag.agent.inert import surviving
from steprag.agent.profiles import PromptProfile, load_profile
from steprag.config.recipes import PUBLISHED
from steprag.config.sections import PolicyConfig, PromptConfig
from steprag.console.progress import say
from steprag.engines.headers import gguf_values
from steprag.engines.models import ModelFiles, resolve_model, weights_hash
from steprag.errors import ConfigError, DataError
from steprag.policy.requests import STEPS_FORCED
from steprag.records.jsonl import read_json

PUBLISHED_PROFILE, PUBLISHED_DATA = "reasonrag", "RAG_ProGuide"
CARD_CHARS = 20_000
"""Characters of a model card that are looked through for the name of its model."""
_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_CONTROL = 3
"""llama.cpp's type of a control token."""


def checked_profile(prompt: PromptConfig, policy: PolicyConfig) -> PromptProfile:
    """The profile of a run, checked against its policy. Raises ConfigError for a critic, and for a checkpoint that was
    trained with other prompts (unless `prompt.unchecked`); warns about another base.
    """
    if policy.remote:
        _warn_of_published(prompt.profile, policy)
        return load_profile(prompt.profile, prompt.examples)
    files = resolve_model(policy.model, policy.adapter)
    folder, manifest = training_manifest(files)
    if not manifest:
        _warn_of_published(prompt.profile, policy, folder if folder.name else None)
    if not prompt.unchecked:
        _check_told(folder, manifest, policy)
    return profile_for(prompt, files)


def _warn_of_published(profile: str, policy: PolicyConfig, folder: Path | None = None) -> None:
    """Warns where ReasonRAG's checkpoint or adapter would see other prompts than its own: by its name, or by what the
    `folder` of its weights says that it is.
    """
    if profile == PUBLISHED_PROFILE:
        return
    named = [name for name in (policy.adapter, policy.model) if name and PUBLISHED.search(name)]
    if named or (folder and _says_published(folder)):
        say(
            f"warning: {(named or [str(folder)])[0][-200:]} is ReasonRAG's, trained on the prompts of profile "
            f"{PUBLISHED_PROFILE}, not of {profile}; give --prompt.profile {PUBLISHED_PROFILE}"
        )


def _says_published(folder: Path) -> bool:
    """Whether a folder's path, the `_name_or_path` of its configuration, or its model card names them or their data."""
    config, card = folder / "config.json", folder / "README.md"
    said = [str(folder.resolve()), str(read_json(config).get("_name_or_path")) if config.is_file() else ""]
    if any(map(PUBLISHED.search, said)):
        return True
    if not card.is_file():
        return False
    with card.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(CARD_CHARS)
    return PUBLISHED_DATA in text or PUBLISHED.search(text) is not None


def _check_told(folder: Path, manifest: dict[str, Any], policy: PolicyConfig) -> None:
    """Raises ConfigError where the chat template would be told something else than in training, or a step would be
    forced into the thought that it was trained to close first.
    """
    trained, asked = _section(_section(manifest, "config"), "chat_template_kwargs"), policy.chat_template_kwargs
    if manifest and trained != asked:
        raise ConfigError(
            f"{folder} was trained with chat_template_kwargs {json.dumps(trained)}, not {json.dumps(asked)}; give "
            "--policy.chat_template_kwargs the same, or --prompt.unchecked true"
        )
    if manifest.get("thought") and policy.constrained and policy.engine in STEPS_FORCED:
        raise ConfigError(
            f"{folder} closes the {manifest['thought']} of its prompts before a step, which constrained output forbids;"
            " give --policy.constrained false, or --prompt.unchecked true"
        )


def profile_for(prompt: PromptConfig, files: ModelFiles) -> PromptProfile:
    """The profile that `files` will see, checked as in `checked_profile`. Raises ConfigError."""
    profile = load_profile(prompt.profile, prompt.examples)
    folder, manifest = training_manifest(files)
    if stage_of(manifest) == "critic":
        raise ConfigError(f"{folder} is a critic and writes no steps; give it with --critic")
    check_use(folder, manifest, files, profile, unchecked=prompt.unchecked)
    return replace(profile, reserved=surviving(special_tokens(files)))


def training_manifest(files: ModelFiles) -> tuple[Path, dict[str, Any]]:
    """The folder that `steprag train` made `files` in, and its manifest; an empty one where there is none."""
    folder = files.adapter or files.hf or Path()
    if folder.name == "merged" and not (folder / "manifest.json").is_file():
        folder = folder.parent
    if not (folder / "manifest.json").is_file():
        return folder, {}
    manifest = read_json(folder / "manifest.json")  # it may be another program's, which says nothing of prompts
    return folder, manifest if manifest.get("stage") == "train" else {}


def stage_of(manifest: dict[str, Any]) -> str | None:
    """The training stage that a manifest of `steprag train` is of: sft, dpo, critic, ..."""
    return _section(manifest, "config").get("stage")


def check_use(
    folder: Path, manifest: dict[str, Any], files: ModelFiles, profile: PromptProfile, *, unchecked: bool
) -> None:
    """Raises ConfigError if the prompts differ from those of training; warns if the base of an adapter differs."""
    trained = _section(manifest, "prompt")
    if not unchecked and trained.get("hash") not in (None, profile.hash):
        name = trained.get("profile")
        raise ConfigError(
            f"{folder} was trained on prompts of profile {name} (hash {trained['hash']}) and would see those of "
            f"{profile.name} (hash {profile.hash}); give --prompt.profile {name} (its YAML file where it is not in "
            "configs/prompts) with the prompt.examples of the trees, or --prompt.unchecked true to do so anyway"
        )
    base = _section(manifest, "base")
    if files.adapter is None or not base.get("sha256"):
        return
    expected, found = str(base["sha256"]), weights_hash(files)
    comparable = ("/" in expected) == ("/" in found)  # a hub's id cannot be compared with a hash of files
    if comparable and expected != found:
        say(
            f"warning: {folder} was trained on {base.get('name')} ({expected[:16]}) and is put on {files.name} "
            f"({found[:16]}): other weights, or the same in another precision"
        )


def _section(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, dict) else {}


def special_tokens(files: ModelFiles) -> frozenset[str]:
    """What the tokenizer reads as control. None for a hub id, whose files are elsewhere, and for the embedded model,
    all of whose special tokens begin with "<" and a letter or a bar.

    Raises DataError where a file of the tokenizer is damaged.
    """
    if files.hf is not None:
        return frozenset(_of_folder(files.hf))
    if files.gguf is not None and not files.embedded:
        return frozenset(_of_gguf(files.gguf))
    return frozenset()


def _of_folder(folder: Path) -> Iterator[str]:
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        if (folder / name).is_file():
            listed = read_json(folder / name).get(key) or ()
            if not isinstance(listed, dict | list | tuple):
                raise DataError(folder / name, f"{key} is no list", remedy="fetch or save the model again")
            for token in listed.values() if isinstance(listed, dict) else listed:
                if isinstance(token, dict) and token.get("special") and isinstance(token.get("content"), str):
                    yield token["content"]


def _of_gguf(path: Path) -> Iterator[str]:
    found = gguf_values(path, (_TOKENS, _KINDS).__contains__)
    tokens, kinds = found.get(_TOKENS), found.get(_KINDS)
    if isinstance(tokens, list) and isinstance(kinds, list):
        yield from (str(token) for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL)
