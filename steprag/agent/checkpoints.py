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

PUBLISHED_DATA, ITS_PROFILES = "RAG_ProGuide", ("reasonrag", "rag_proguide")
"""ReasonRAG's data set, and the profiles of its prompts: the shipped one, and that of its import."""
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
        _warn_of_published(prompt, policy.model)
        return load_profile(prompt.profile, prompt.examples)
    files = resolve_model(policy.model, policy.adapter)
    if not prompt.unchecked:
        folder, manifest = training_manifest(files)
        _check_told(folder, manifest, policy)
    return profile_for(prompt, files)


def _warn_of_published(prompt: PromptConfig, name: str, folder: Path = Path()) -> None:
    """Warns where ReasonRAG's checkpoint or adapter would see other prompts than its own. It is known by its name, or
    by the path, configuration or model card of the `folder` that holds it.
    """
    told = [name, str(folder.resolve()) if folder.name else ""]
    if folder.name and (folder / "config.json").is_file():
        told.append(str(read_json(folder / "config.json").get("_name_or_path")))
    if folder.name and (folder / "README.md").is_file():
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as card:
            told.append(card.read(CARD_CHARS))
    named = PUBLISHED.search("/".join(told)) or PUBLISHED_DATA in told[-1]
    if named and Path(prompt.profile).stem not in ITS_PROFILES and not prompt.unchecked:
        say(
            f"warning: {name[-200:]} is ReasonRAG's, trained on the prompts of profile reasonrag, not of "
            f"{prompt.profile}; give --prompt.profile reasonrag"
        )


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
    if not manifest:
        _warn_of_published(prompt, files.label, folder)
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
