"""What to run for an engine: the command line, its environment, and the name that requests must give."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steprag.engines.models import ModelFiles, resolve_model, with_adapter
from steprag.engines.threads import fast_dtype, spin_briefly
from steprag.errors import ConfigError, quoted
from steprag.extras import need, set_up

ENGINES = ("llamacpp", "transformers", "vllm")
ENGINE_KEY = "STEPRAG_ENGINE_KEY"  # gives an engine of ours its key: other users read command lines, not environments
_CHECKOUT_VLLM = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "vllm"  # what scripts/setup_vllm.sh makes
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the only values that --max-lora-rank takes


@dataclass(frozen=True)
class EngineSpec:
    """What to serve and how. `context` is in tokens a request; `port` 0 takes a free one; `threads` None means all.

    `args`: more flags of vLLM by name; True stands for one without a value, False for none. `devices`: the GPUs that
    the engine sees, as CUDA_VISIBLE_DEVICES has them; None: all.

    `parallel` is the requests that will be there at once: llama.cpp's slots, and a quarter of the completions that vLLM
    works on at once at most, since a request may ask for several.

    `api_key_env` names the environment variable that holds the key which clients must send; `key` is the key itself.

    `steady`: on a processor, greedy completions of llama.cpp do not depend on what is served before or beside them.

    `more`: further adapters of the same base, for requests that ask for one of them (`EngineCommand.switch`).

    `lora_rank`: vLLM serves the base alone, and adapters of up to this rank are loaded by request while it runs.
    """

    engine: str = "llamacpp"
    model: str = "smollm2-135m-instruct"
    adapter: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    parallel: int = 4
    context: int = 2048
    threads: int | None = None
    args: Mapping[str, object] = field(default_factory=dict)
    devices: str | None = None
    api_key_env: str | None = None
    key: str | None = field(default=None, repr=False)
    more: tuple[str, ...] = ()
    steady: bool = False
    lora_rank: int | None = None


Switch = Mapping[str | None, Mapping[str, Any]]
"""By the adapter as it was given, None for the base alone: the fields of a request that it is to answer."""


@dataclass(frozen=True)
class EngineCommand:
    """`argv` to run with `env` added; `url` is None where the child announces it itself. `switch`: empty where every
    request is answered alike.
    """

    argv: list[str]
    model: str
    url: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    switch: Switch = field(default_factory=dict)


def command(spec: EngineSpec) -> EngineCommand:
    """The command for `spec`; converts weights or adapter if this engine needs another format of them."""
    builders: dict[str, Callable[[EngineSpec, ModelFiles, dict[str, Path]], EngineCommand]] = {
        "llamacpp": _llamacpp,
        "transformers": _transformers,
        "vllm": _vllm,
    }
    if spec.engine not in builders:
        raise ConfigError(f"unknown policy engine {quoted(spec.engine)}; choose one of {', '.join(ENGINES)}")
    files = resolve_model(spec.model, spec.adapter)
    more = {name: adapter for name in spec.more if (adapter := with_adapter(files, name).adapter)}
    built = builders[spec.engine](spec, files, more)
    if spec.adapter:
        built = replace(built, switch={spec.adapter: {"model": built.model}, **built.switch})
    return replace(built, env=built.env | {"CUDA_VISIBLE_DEVICES": spec.devices}) if spec.devices else built


def _llamacpp(spec: EngineSpec, files: ModelFiles, more: dict[str, Path]) -> EngineCommand:
    from steprag.engines.adapters import gguf_adapter
    from steprag.engines.weights import eight_bit_gguf

    need("xllamacpp")
    if files.gguf is None:
        raise ConfigError(f"llama.cpp reads GGUF files and {files.name} is none; use --engine transformers or vllm")
    gguf = eight_bit_gguf() if files.embedded else files.gguf
    argv = [sys.executable, "-m", "steprag.engines.llamacpp", "--model", str(gguf), "--alias", files.label]
    argv += ["--host", spec.host, "--port", str(spec.port)]
    argv += ["--parallel", str(spec.parallel), "--context", str(spec.context)]
    if files.adapter:
        argv += ["--adapter", str(gguf_adapter(files.adapter, files))]
    for adapter in more.values():
        argv += ["--beside", str(gguf_adapter(adapter, files))]
    loaded = [*([spec.adapter or files.label] if files.adapter else []), *more]
    # an empty list, or none, means the scales at the start: to have the base alone, one is set to 0
    switch = {name: {"lora": [{"id": id, "scale": 1.0}]} for id, name in enumerate(loaded)}
    base = {None: {"lora": [{"id": 0, "scale": 0.0}]}} if loaded else {}
    argv += ["--steady"] * spec.steady
    if spec.threads:
        argv += ["--threads", str(spec.threads)]
    env = {ENGINE_KEY: spec.key} if spec.key else {}
    if variable := ENGINE_KEY if spec.key else spec.api_key_env:
        argv += ["--api_key_env", variable]
    spin_briefly()
    return EngineCommand(argv, files.label, env=env, switch={**switch, **base})


def _transformers(spec: EngineSpec, files: ModelFiles, more: dict[str, Path]) -> EngineCommand:
    """transformers' own OpenAI-compatible server, with a route for scores; CPU, CUDA or Metal, whatever torch finds.

    Slower than llama.cpp on a CPU by an order of magnitude, but serves any checkpoint in its own precision.
    It serves a model under the very string that was given at start.
    """
    from steprag.engines import weights

    if more:
        raise ConfigError(f"engine transformers serves one adapter, not also {', '.join(more)}; use llamacpp or vllm")
    need("transformers")
    from huggingface_hub.constants import HF_HUB_CACHE

    Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)  # it lists the models there, and fails where it is not
    model = weights.transformers_folder(files)
    port = spec.port or free_port(spec.host)
    argv = [*_guarded(), sys.executable, "-m", "steprag.engines.transformers_serve", "serve", str(model)]
    argv += ["--host", spec.host, "--port", str(port), "--no-trust-remote-code"]
    key = spec.key or (os.environ[spec.api_key_env] if spec.api_key_env else None)
    env = {"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {}
    return EngineCommand(argv, str(model), _url(spec.host, port), env | ({ENGINE_KEY: key} if key else {}))


def _vllm(spec: EngineSpec, files: ModelFiles, more: dict[str, Path]) -> EngineCommand:
    """vLLM from its own environment, on a GPU or, where its build is for CPUs, on those."""
    program = vllm_program()
    port = spec.port or free_port(spec.host)
    on_cpu = _is_cpu_build(program)
    joined = on_cpu and not more and not spec.lora_rank
    files = replace(files, adapter=None) if spec.lora_rank else files
    model, options = _vllm_cpu_model(files) if joined else _vllm_model(files, more)
    if spec.lora_rank:
        options += ["--enable-lora", "--max-lora-rank", str(_vllm_rank(spec.lora_rank))]
    argv = [*_guarded(), str(program), "serve", model, "--host", spec.host, "--port", str(port), *options]
    argv += ["--dtype", fast_dtype(), *_VLLM_CPU_OPTIONS] if on_cpu else []
    argv += ["--max-model-len", str(spec.context), "--max-num-seqs", str(max(256, 4 * spec.parallel))]
    # Without its details usage does not say how many prompt tokens were cached.
    argv += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    for name, value in spec.args.items():
        flag = f"--{name.replace('_', '-')}"
        argv += [flag] if value is True else [] if value is False else [flag, str(value)]
    key = spec.key or (os.environ[spec.api_key_env] if spec.api_key_env else None)
    env = {"VLLM_API_KEY": key} if key else {}
    env |= _vllm_cpu_settings(spec) if on_cpu else {}
    env |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if spec.lora_rank else {}
    switch = {} if joined else {None: {"model": files.name}, **{name: {"model": name} for name in more}}
    return EngineCommand(argv, files.label, _url(spec.host, port), env, switch)


def _vllm_model(files: ModelFiles, more: Mapping[str, Path]) -> tuple[str, list[str]]:
    """The base, and the options that name it and its adapters."""
    from steprag.engines.adapters import lora_rank
    from steprag.engines.weights import base_weights, check_weights

    options = ["--served-model-name", files.name]
    adapters = {**({files.label: files.adapter} if files.adapter else {}), **more}
    if adapters:
        if gguf := next((one for one in adapters.values() if one.suffix == ".gguf"), None):
            raise ConfigError(f"vLLM loads no GGUF adapter; give the PEFT folder that {gguf} was made of")
        rank = _vllm_rank(max(map(lora_rank, adapters.values())))
        # as JSON: NAME=PATH is split at = and commas
        named = [json.dumps({"name": name, "path": str(path)}) for name, path in adapters.items()]
        options += ["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", *named]
        options += ["--max-loras", str(len(named))] if more else []  # of one batch; vLLM's own default is 1
        # where replies end; the base may not know
        if files.adapter and (files.adapter / "generation_config.json").is_file():
            options += ["--generation-config", str(files.adapter)]
    check_weights(files, *more.values())
    return base_weights(files), options


def _vllm_rank(most: int) -> int:
    return next((rank for rank in _VLLM_RANKS if rank >= most), _VLLM_RANKS[-1])


def _vllm_cpu_model(files: ModelFiles) -> tuple[str, list[str]]:
    """Base and adapter in one: an adapter beside its base makes vLLM several times as slow here (docs/engines.md)."""
    from steprag.engines import weights

    return weights.merged_folder(files), ["--served-model-name", files.label]


def vllm_program() -> Path:
    """$STEPRAG_VLLM, else `vllm` on the PATH, else that of `.venv-vllm` in this checkout. Raises ConfigError."""
    given = os.environ.get("STEPRAG_VLLM")
    for place in (given,) if given else (shutil.which("vllm"), _CHECKOUT_VLLM):
        if place and Path(place).is_file():
            return Path(place)
    where = f" at {given} (STEPRAG_VLLM)" if given else ""
    raise ConfigError(f"no vllm program{where}; run: {set_up('vllm')}, or set STEPRAG_VLLM=…/bin/vllm")


def vllm_is_for_cpus() -> bool:
    """Whether the vLLM that would be started computes on the CPU. Raises ConfigError where there is none."""
    return _is_cpu_build(vllm_program())


def _is_cpu_build(program: Path) -> bool:
    """Whether the environment around a vllm program has package `vllm-cpu`, or a `+cpu` version of vllm itself."""
    packages = program.resolve().parent.parent
    names = ("vllm_cpu-*.dist-info", "vllm-*+cpu*.dist-info")
    return any(True for name in names for _ in packages.glob(f"lib/python*/site-packages/{name}"))


# On a CPU: no compilation, which takes minutes and gains little; cache blocks of the least size that its attention
# takes, for a prompt is reused in whole blocks (128 tokens by default); whole prompts, for a request with a seed whose
# prompt is computed in parts ends vLLM 0.32 ("CPU Generator does not use offset").
_VLLM_CPU_OPTIONS = ["--enforce-eager", "--block-size", "32", "--no-enable-chunked-prefill"]


def _vllm_cpu_settings(spec: EngineSpec) -> dict[str, str]:
    """Environment of a CPU build; what the user has set stays.

    vLLM would have 92 % of all memory and not start where another program uses it, and bind a thread to each core but
    one, whoever else works there. Its engine would wait for a worker process by turning, on a core that computes; with
    V1's multiprocessing off it computes itself.
    """
    chosen = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads go where they may
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    settings = {name: os.environ.get(name, value) for name, value in chosen.items()}
    return settings | ({"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {})


def _guarded() -> list[str]:
    """The prefix that makes a foreign program end with us (see `child`)."""
    return [sys.executable, "-m", "steprag.engines.outlive_guard"]


def free_port(host: str) -> int:
    """A port that was free a moment ago, for engines that cannot announce the one they got."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        return listener.getsockname()[1]


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
