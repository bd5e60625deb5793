"""The model card of a checkpoint: README.md in the form of the Hugging Face hub, of what its manifest says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from steprag.config.sections import EMBEDDED, ON_HUB
from steprag.records.jsonl import written_whole
from steprag.runs.run import Run

ON_THE_HUB = {EMBEDDED: "HuggingFaceTB/SmolLM2-135M-Instruct", "minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""Models of packages, by their names on the hub."""
KINDS = {"retriever": ("sentence-transformers", "sentence-similarity"), "critic": ("transformers", None)}
"""By stage, library and task on the hub, where they are not those of a language model."""
USES = {
    "retriever": "It encodes queries and passages for `steprag index build --encoder DIR`. It writes no text.",
    "critic": "It scores steps (`steprag infer --critic DIR`). It writes no text.",
}
WRITES = """\
It writes the steps of an agent over an index: `steprag infer --model DIR --index INDEX`.

It is not a chat model, and not for questions that the index does not answer: what it says without evidence is a guess.
Other prompts than those below make it worse. It is not for decisions about health, law, money or safety: read an answer
together with its sources."""
HASHES = ("model", "adapter", "weights", "configuration", "data")


def write_card(run: Run, argv: Sequence[str]) -> None:
    """Writes the card of a finished checkpoint, and of `merged` beside it. `argv`: the options that made them."""
    for folder in (run.path, run.path / "merged"):
        if folder.is_dir():
            with written_whole(folder / "README.md") as stream:
                adapter = (folder / "adapter_config.json").is_file()
                stream.write(card(run.manifest, run.path.resolve().name, argv, adapter=adapter))


def card(manifest: dict[str, Any], name: str, argv: Sequence[str], *, adapter: bool) -> str:
    """The text. What the manifest does not say is called unknown."""
    config, base, prompt = manifest["config"], manifest.get("base") or {}, manifest.get("prompt")
    recipe = {key: value for key, value in manifest["identity"].items() if key not in HASHES}
    figures = {key: value for key, value in manifest.items() if key.endswith(("_first", "_last"))}
    figures |= {key: manifest.get(key) for key in ("steps", "seconds", "stopped_by", "trained_parameters")}
    told = {
        "Base": _listed({**base, "started from": (manifest.get("starting_adapter") or {}).get("sha256")}),
        "Data": _listed({key: manifest.get(key) for key in ("rows", "rows_left_out", "questions") if key in manifest}),
        "Files, by SHA-256": _listed(manifest.get("data") or {}),
        "Prompts": _listed(prompt) if isinstance(prompt, dict) else "unknown",
        "Training": _listed(figures),
        "Held out": _listed(manifest.get("held_out") or {}),
        "Quality of the answers": "not measured here",
        "Made with": f"StepRAG {manifest.get('version', 'unknown')}; {_listed(manifest.get('packages') or {})}",
    }
    lines = "\n".join(f"- {title}: {text}" for title, text in told.items())
    fences = "\n\n".join([f"```bash\n{shlex.join(['steprag', 'train', *argv])}\n```", f"```yaml\n{_yaml(recipe)}```"])
    front, use = _yaml(_front(config, adapter)), USES.get(config["stage"], WRITES)
    return f"---\n{front}---\n\n# {name}\n\n{use}\n\n{lines}\n\n## How it was made\n\n{fences}\n"


def _front(config: dict[str, Any], adapter: bool) -> dict[str, Any]:
    stage, model = config["stage"], str(config["model"])
    known = ON_THE_HUB.get(model, model if ON_HUB.fullmatch(model) else None)
    library, task = KINDS.get(stage, ("transformers", "text-generation"))
    fields = {"base_model": known, "library_name": "peft" if adapter else library, "pipeline_tag": task}
    fields["license"] = config.get("license", "unknown")
    tags = ["steprag", "agentic-rag", stage, *(["lora"] if adapter else [])]
    return {**{key: value for key, value in fields.items() if value}, "tags": tags}


def _listed(values: dict[str, Any]) -> str:
    said = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in values.items()}
    return ", ".join(f"{key} {value}" for key, value in said.items() if value is not None) or "unknown"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
