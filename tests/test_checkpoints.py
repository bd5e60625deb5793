"""Checkpoints are used as their manifests say they were trained: prompts, base, stage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from steprag.agent.checkpoints import checked_profile
from steprag.agent.profiles import PROFILES, load_profile
from steprag.config.load import load_config
from steprag.config.sections import PolicyConfig, PromptConfig
from steprag.engines.models import hub_revision, resolve_model
from steprag.engines.pretrained import from_pretrained
from steprag.engines.weights import load_tokenizer, transformers_folder
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, write_json
from steprag.runs.run import read_manifest
from tests.fakes import chat_reply, options, serve
from tests.models import edited
from tests.training_parts import train
from training.config import LoraSection, TrainConfig
from training.model import check_adapter, check_tokenizer, save_policy

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def with_prompt(checkpoint: Path, into: Path, prompt: object, **changes: object) -> Path:
    """A copy of a checkpoint whose manifest names other prompts, or says other things too."""
    shutil.copytree(checkpoint, into)
    write_json(into / "manifest.json", {**read_manifest(checkpoint), "prompt": prompt, **changes})
    return into


Refused = Callable[..., str]


@pytest.fixture
def refused(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command with these options, which it refuses before it makes a folder; gives what it says."""

    def refused(command: str, *options: str) -> str:
        out = tmp_path / "out"
        source = ["Which town?"] if command == "ask" else ["--questions", str(questions), "--out", str(out)]
        assert main([command, *source, "--index", str(tmp_path / "none"), *options]) == 2
        assert not out.exists()
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(("file", "text", "warned"), [
    ("config.json", '{"_name_or_path": "/data/Qwen2.5-7B-Instruct-ReasonRAG"}', True),
    ("README.md", "Fine-tuned on the RAG_ProGuide dataset.", True), ("README.md", "Fine-tuned on Alpaca.", False),
])  # fmt: skip
def test_a_folder_that_is_the_published_checkpoint_is_named(
    file: str, text: str, warned: bool, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it would see other prompts than its own; never where the prompts are its own."""
    folder = shutil.copytree(tiny, tmp_path / "theirs")
    told = {**read_json(folder / file), **json.loads(text)} if file == "config.json" else None
    (folder / file).write_text(json.dumps(told) if told else text)
    for profile in ("reasonrag", "transcript"):
        checked_profile(PromptConfig(profile=profile), PolicyConfig(model=str(folder)))
        said = capsys.readouterr().err
        assert ("give --prompt.profile reasonrag" in said) == (warned and profile == "transcript")


@pytest.mark.parametrize("command", ["infer", "generate", "ask"])
def test_other_prompts_than_in_training_are_refused(warm: Path, command: str, refused: Refused) -> None:
    error = refused(command, "--policy.model", str(warm))
    for words in ("(hash abc)", f"(hash {load_profile('transcript').hash})", "--prompt.profile transcript"):
        assert words in error


def test_the_prompts_of_training_pass_and_others_may_be_forced(warm: Path, tmp_path: Path) -> None:
    mine = {"profile": "transcript", "hash": load_profile("transcript", 2).hash}
    policy = PolicyConfig(model=str(with_prompt(warm, tmp_path / "same", mine)))
    assert checked_profile(PromptConfig(examples=2), policy).hash == mine["hash"]
    with pytest.raises(ConfigError, match="examples of the trees"):
        checked_profile(PromptConfig(), policy)
    assert checked_profile(PromptConfig(unchecked=True), policy).examples == 0


def test_the_chat_template_is_told_what_it_was_told_in_training(warm: Path, tmp_path: Path) -> None:
    config = {**read_manifest(warm)["config"], "chat_template_kwargs": {"enable_thinking": False}}
    policy = PolicyConfig(model=str(with_prompt(warm, tmp_path / "told", None, config=config)))
    with pytest.raises(ConfigError, match=r'with chat_template_kwargs {"enable_thinking": false}, not {}; give --pol'):
        checked_profile(PromptConfig(), policy)
    assert checked_profile(PromptConfig(unchecked=True), policy)


def test_no_step_is_forced_into_a_thought_that_training_closed(warm: Path, tmp_path: Path) -> None:
    policy = PolicyConfig(model=str(with_prompt(warm, tmp_path / "thinks", None, thought="<think>")), engine="vllm")
    with pytest.raises(ConfigError, match="closes the <think> of its prompts .*--policy.constrained false"):
        checked_profile(PromptConfig(), policy)
    for free in ({"constrained": False}, {"engine": "transformers"}):
        assert checked_profile(PromptConfig(), policy.model_copy(update=free))


@pytest.mark.parametrize("prompt", [None, "transcript", {}])
def test_a_manifest_that_names_no_prompts_is_not_held_against_any(warm: Path, tmp_path: Path, prompt: object) -> None:
    assert checked_profile(PromptConfig(), PolicyConfig(model=str(with_prompt(warm, tmp_path / "out", prompt))))


def test_the_embedded_adapter_is_for_the_prompts_without_examples() -> None:
    policy = PolicyConfig(adapter="atlas-warmstart")
    assert checked_profile(PromptConfig(), policy).name == "transcript"
    with pytest.raises(ConfigError, match="9ec55d7674646021"):
        checked_profile(PromptConfig(examples=1), policy)


def test_endpoints_and_bare_models_are_not_checked(tiny: Path, warm: Path) -> None:
    checked_profile(PromptConfig(), PolicyConfig(model=str(warm), base_url="http://127.0.0.1:1/v1"))
    checked_profile(PromptConfig(), PolicyConfig(model=str(tiny)))


REFUSED = "cannot be put on a model behind an endpoint"


@pytest.mark.parametrize("where", [
    ("--policy.base_url", "http://127.0.0.1:1/v1"), ("--policy.engine", "openai"), ("--policy.engine", "sglang")
])  # fmt: skip
@pytest.mark.parametrize("command", ["infer", "generate", "ask"])
def test_an_adapter_is_not_dropped_where_an_endpoint_serves_the_model(
    command: str, where: tuple[str, str], refused: Refused
) -> None:
    error = refused(command, *where, "--policy.adapter", "runs/DPO")
    assert f"policy: adapter 'runs/DPO' {REFUSED}" in error
    assert error.endswith("serve it there, give its served name as model, and adapter none\n")
    assert error.count("\n") == 1


def test_a_judges_adapter_is_not_dropped_either_and_none_takes_back_a_recipes() -> None:
    recipe, url = str(PROFILES.parent / "generation/atlas.yaml"), "http://127.0.0.1:1/v1"
    with pytest.raises(ConfigError, match=f"judge: adapter 'runs/judge' {REFUSED}"):
        load_config(GenerateConfig, None, {"judge.engine": "openai", "judge.adapter": "runs/judge"})
    with pytest.raises(ConfigError, match=f"policy: adapter 'atlas-warmstart' {REFUSED}"):
        load_config(GenerateConfig, recipe, {"policy.base_url": url})
    assert load_config(GenerateConfig, recipe, {"policy.base_url": url, "policy.adapter": "none"}).policy.remote


def test_a_folder_as_model_is_not_taken_for_what_an_endpoint_serves(
    warm: Path, world_index: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with serve(chat_reply()) as endpoint:
        command = options(endpoint, questions, world_index, out, "--policy.model", str(warm))
        assert main(["infer", *command]) == 2
    assert f"serves double, not '{warm}'" in capsys.readouterr().err
    assert not endpoint.requests


def test_another_base_is_warned_of(tiny: Path, warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += torch.ones(())
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    prompt = PromptConfig(unchecked=True)
    checked_profile(prompt, PolicyConfig(model=str(tiny), adapter=str(warm)))
    assert capsys.readouterr().err == ""
    checked_profile(prompt, PolicyConfig(model=str(other), adapter=str(warm)))
    assert f"warning: {warm} was trained on {tiny.name}" in capsys.readouterr().err


def in_hub_cache(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the model's folder where the hub's client keeps some/model; the client asks no hub."""
    repository = cache / "models--some--model"
    snapshot = Path(shutil.copytree(model, repository / "snapshots" / COMMIT))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


def test_the_commit_of_a_base_from_the_hub_is_noted(
    tiny: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_hub_cache(tiny, tmp_path, monkeypatch)
    assert hub_revision(resolve_model("some/model")) == COMMIT
    assert hub_revision(resolve_model("some/other")) is None
    assert hub_revision(resolve_model(str(tiny))) is None
    out = tmp_path / "out"
    assert train(snapshot, pairs, out, "sft", "--max_steps", "1") == 0
    assert read_manifest(out)["base"]["revision"] == COMMIT


def old_files(base: Path) -> None:
    """The tokenizer as Qwen2 was published at first: vocabulary and merges, no tokenizer.json; templates by name."""
    core = json.loads((base / "tokenizer.json").read_text())
    merges = [" ".join(pair) for pair in core["model"]["merges"]]
    (base / "vocab.json").write_text(json.dumps(core["model"]["vocab"]))
    (base / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    settings = json.loads((base / "tokenizer_config.json").read_text())
    special = {str(token.pop("id")): token for token in core["added_tokens"]}
    settings |= {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": special}
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    (base / "additional_chat_templates").mkdir()
    shutil.copy(base / "chat_template.jinja", base / "additional_chat_templates" / "rag.jinja")
    (base / "tokenizer.json").unlink()


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_checkpoint_encodes_as_its_base(
    where: str, qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever files that takes, as they were published: by a folder or by a hub id."""
    from transformers import AutoTokenizer

    base = in_hub_cache(qwen2, tmp_path / "hub", monkeypatch)
    old_files(base)
    files = resolve_model("some/model" if where == "hub" else base)
    tokenizer, out = load_tokenizer(files), tmp_path / "out"
    check_tokenizer(tokenizer)
    out.mkdir()
    model = SimpleNamespace(save_pretrained=lambda made: shutil.copy(base / "config.json", made))
    save_policy(model, tokenizer, files, out)
    again = from_pretrained(AutoTokenizer, str(out))
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template
    assert again.encode("which town lies on the river?") == tokenizer.encode("which town lies on the river?")
    copied = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    assert all((base / name).read_bytes() == (out / name).read_bytes() for name in copied)
    assert {"vocab.json", "merges.txt", "additional_chat_templates/rag.jinja"} <= set(map(str, copied))
    assert "tokenizer.json" not in set(map(str, copied))


def test_a_tokenizer_that_a_checkpoint_could_not_hold_is_refused(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(resolve_model(qwen2))
    monkeypatch.setattr("steprag.engines.pretrained.TOKENIZER_FILES", ("tokenizer_config.json",))
    with pytest.raises(ConfigError, match="its tokenizer needs other files than|cannot be loaded"):
        check_tokenizer(tokenizer)


@pytest.mark.parametrize("base", ["/home/them/models/qwen", "C:\\\\models\\\\qwen", "../models/a b/qwen", None])
def test_an_adapter_that_names_a_base_of_another_machine_is_used_with_ours(
    base: str | None, tiny: Path, warm: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_hub_cache(tiny, tmp_path / "hub", monkeypatch)
    adapter = edited(warm, tmp_path / "my adapter", base_model_name_or_path=base)
    (adapter / "manifest.json").unlink()
    told = "names no base model; give the base with --model" if base is None else "which is not on this machine; give "
    with pytest.raises(ConfigError, match=told):
        resolve_model(adapter)
    for ours in (str(snapshot), "some/model"):
        files = resolve_model(ours, adapter)
        check_adapter(files, TrainConfig(lora=LoraSection(rank=read_json(adapter / "adapter_config.json")["r"])))
    theirs = f"/home/them/hub/models--some--model/snapshots/{COMMIT}"
    assert resolve_model(edited(adapter, tmp_path / "theirs", base_model_name_or_path=theirs)).hub == "some/model"
    out = tmp_path / "o u t"
    assert train(snapshot, pairs, out, "dpo", "--max_steps", "1", "--adapter", str(tmp_path / "theirs")) == 0
    assert read_json(out / "adapter_config.json")["base_model_name_or_path"] == str(snapshot)


def test_an_adapter_finds_its_base_in_the_hubs_cache(
    tiny: Path, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = in_hub_cache(tiny, tmp_path / "hub", monkeypatch)
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path / "cache"))
    adapter = edited(warm, tmp_path / "adapter", base_model_name_or_path="some/model")
    (adapter / "manifest.json").unlink()
    joined = Path(transformers_folder(resolve_model(adapter)))
    assert {"adapter_model.safetensors", *(path.name for path in base.iterdir())} <= {p.name for p in joined.iterdir()}
    assert (joined / "model.safetensors").resolve() == (base / "model.safetensors").resolve()
