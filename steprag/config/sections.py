"""Sections of the configuration that several commands share: a section means one thing in all of them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from steprag.errors import quoted
from steprag.net.hosts import checked_url
from steprag.records.jsonl import read_json

Positive = Annotated[int, Field(ge=1)]


def names_in(said: Any) -> Any:
    """Names in a text, or in the texts of a list, with commas between; anything else as it is, for its type's check."""
    several = [said] if isinstance(said, str) else said
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        return said
    return [name for one in several for part in one.split(",") if (name := part.strip())]


Names = Annotated[tuple[str, ...], BeforeValidator(names_in)]
EXTRACTIVE = "extractive"
"""The engine, and the model, that is none: answers in the documents' own sentences (`steprag.agent.reader`)."""
REMOTE = ("openai", "sglang", EXTRACTIVE)
"""Engines that are never started here, only asked."""
OPENAI_S_OWN = re.compile(r"(chat)?gpt-\d[\w.-]*|o\d(-[\w.-]+)?")
"""How OpenAI's models are called; its open weights have other names."""
ON_HUB = re.compile(r"(?!runs/)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # runs/ is where ours lie
EMBEDDED = "smollm2-135m-instruct"
VLLM_ARGS = frozenset({
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel",
    "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "dtype", "quantization", "kv-cache-dtype",
    "cpu-offload-gb", "enforce-eager", "block-size", "seed",
})  # fmt: skip
"""Flags of `vllm serve` that a recipe may set: none runs a model's code, opens a door or renames what is served."""

DECIDED = {field: way for way, fields in {
    "the keys of that name": ("model", "seed", "temperature", "top_p", "max_tokens", "chat_template_kwargs"),
    "policy.rename": ("max_completion_tokens", "max_new_tokens", "max_output_tokens"),
    "the prompt": ("messages", "prompt", "input", "continue_final_message", "add_generation_prompt"),
    "the stage": ("n", "best_of", "stop", "stream", "stream_options", "response_format", "cache_prompt",
                  "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice"),
}.items() for field in fields}  # fmt: skip
"""Request fields that `extra` may not hold, and what decides them."""
SAMPLED = ("top_k", "min_p", "repeat_penalty", "repetition_penalty", "grammar", "regex")
"""Such fields too, of engines whose dialect has them."""


GONE = ("replica_header", "cache", "uncertainty")
"""Keys of earlier versions that were none by default."""


class Section(BaseModel):
    """A group of keys; unknown ones are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_runs(cls, given: Any) -> Any:
        """Drops keys that are gone and were not set: manifests of earlier versions name them."""
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None or key not in GONE}

    @property
    def key_variable(self) -> str | None:
        """The environment variable that holds the key for the section's `base_url`; None where it has none."""
        return None


class PriceConfig(Section):
    """Dollars a million tokens."""

    prompt: float | None = Field(
        default=None, ge=0, description="dollars a million prompt tokens; none where completion has none: unknown"
    )
    cached: float | None = Field(default=None, ge=0, description="the same, for cached prompt tokens; none: as prompt")
    completion: float | None = Field(default=None, ge=0, description="dollars a million completion tokens")

    @property
    def known(self) -> bool:
        """Whether a price is given, be it 0."""
        return self.prompt is not None or self.completion is not None


class RateConfig(Section):
    """How fast requests may leave; more wait."""

    requests: Positive | None = Field(default=None, description="requests a minute at most")
    tokens: Positive | None = Field(default=None, description="prompt and completion tokens a minute at most")


def strange_flag(args: Iterable[str]) -> str | None:
    """What is wrong with the first of these flags of vLLM that is none of `VLLM_ARGS`."""
    strangers = sorted(name for name in args if name.replace("_", "-") not in VLLM_ARGS)
    known = ", ".join(sorted(VLLM_ARGS))
    return f"{quoted(strangers[0])} is no flag that may be set here; known: {known}" if strangers else None


def engine_of(model: str) -> str | None:
    """What serves a model of that name where nobody says it: OpenAI its own; vLLM, or transformers where there is no
    vLLM, a Hugging Face folder or hub id, whose weights llama.cpp does not read. None: the default.
    """
    folder = Path(model)
    here = os.path.exists(model)  # a name may be too long for a path
    if here and (folder / "adapter_config.json").is_file():
        base = Path(str(read_json(folder / "adapter_config.json").get("base_model_name_or_path") or ""))
        own = base.name.lower() in ("", EMBEDDED) or os.path.isfile(base / "adapter_config.json")
        return None if own else engine_of(str(base))
    if not here and (model == EXTRACTIVE or OPENAI_S_OWN.fullmatch(model)):
        return EXTRACTIVE if model == EXTRACTIVE else "openai"
    if (folder / "config.json").is_file() if here else ON_HUB.fullmatch(model):
        given = os.environ.get("STEPRAG_VLLM")  # as `steprag.engines.launch.vllm_program` looks
        places = (given,) if given else (shutil.which("vllm"), Path(__file__).parents[2] / ".venv-vllm/bin/vllm")
        return "vllm" if any(place and Path(place).is_file() for place in places) else "transformers"
    return None


class PolicyConfig(Section):
    """The model that writes steps: what serves it, how it samples, what it costs."""

    engine: Literal["openai", "vllm", "sglang", "llamacpp", "transformers", "extractive"] = Field(
        default="llamacpp",
        description="what serves the model, unless its name says it; openai stands for any compatible endpoint, "
        "extractive for no model: the documents' own sentences",
    )
    model: str = Field(default=EMBEDDED, description="embedded name, path, hub id, or the served name")
    adapter: str | None = Field(
        default=None,
        description="LoRA adapter on a model that is started here: a folder, a hub id, or a shipped one",
    )
    base_url: str | None = Field(
        default=None, description="endpoint that runs already; without it the engine is started"
    )
    api_key_env: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the key")
    engine_args: dict[str, str | int | float | bool] = Field(
        default={},
        description="flags of a vllm that is started here: {tensor-parallel-size: 2}; true: one without a value",
    )
    devices: str | None = Field(
        default=None,
        pattern=r"^[\w,-]+$",
        description="GPUs of an engine that StepRAG starts, as in CUDA_VISIBLE_DEVICES (0,1); none: all",
    )
    concurrency: Positive = Field(
        default=4, description="requests in flight at once (slots, where the engine is started)"
    )
    context: Positive = Field(
        default=2048,
        description="tokens a request may have, answer included, where llamacpp or vllm is started; vllm: as many as "
        "the longest episode needs, unless it is set",
    )
    temperature: float = Field(default=0.8, ge=0, le=5, description="sampling temperature; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling's share of probability")
    top_k: int = Field(default=0, ge=0, description="tokens that may be sampled, the likeliest ones; 0: all")
    min_p: float = Field(
        default=0.0, ge=0, lt=1, description="probability a sampled token needs, as a share of the likeliest's; 0: any"
    )
    max_tokens: Positive = Field(default=128, description="longest completion, in tokens")
    constrained: bool = Field(default=True, description="have the engine force the step grammar, where it can")
    timeout: float = Field(default=300.0, gt=0, description="seconds until a request counts as lost")
    retries: int = Field(default=4, ge=0, description="tries again after 429, 5xx and lost connections")
    session_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="header that carries the question's id, so that a router sends its requests to one replica",
    )
    omit: tuple[str, ...] = Field(
        default=(), description="request fields that the endpoint does not take: [temperature, seed]"
    )
    rename: dict[str, str] = Field(
        default={}, description="request fields under other names: {max_tokens: max_completion_tokens}"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="options of the model's chat template, sent as they are: {enable_thinking: false}"
    )
    extra: dict[str, Any] = Field(
        default={}, description="further request fields, sent as they are: {reasoning_effort: low, top_k: 20}"
    )
    rate: RateConfig = Field(default_factory=RateConfig)
    price: PriceConfig = Field(default_factory=PriceConfig)

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_model(cls, given: Any) -> Any:
        """Where a model is named and no engine, endpoint or GGUF file, its name says what can serve it."""
        if not isinstance(given, dict) or not isinstance(given.get("model"), str) or {"engine", "base_url"} & {*given}:
            return given
        return given | ({"engine": found} if (found := engine_of(given["model"])) else {})

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if (self.top_k or self.min_p) and self.engine in ("openai", "transformers"):
            raise ValueError(f"top_k and min_p are for llamacpp, vllm and sglang; engine {self.engine} takes neither")
        if self.adapter is not None and self.remote:  # it would be left out, and the base scored in its name
            raise ValueError(
                f"adapter {quoted(self.adapter)} cannot be put on a model behind an endpoint (base_url, or engine "
                "openai or sglang); serve it there, give its served name as model, and adapter none"
            )
        if self.engine_args and (self.remote or self.engine != "vllm"):
            raise ValueError("engine_args are for a vllm that is started here; give them to the one that runs already")
        if complaint := strange_flag(self.engine_args):
            raise ValueError(f"engine_args: {complaint}")
        for field in self.extra:
            own = "the engine's dialect" if field in SAMPLED and self.engine not in ("openai", "transformers") else None
            if decided := DECIDED.get(field, own) or ("policy.rename" if field in self.rename.values() else None):
                raise ValueError(f"extra: {quoted(field)} is decided by {decided}; leave it out of extra")
        if self.engine == EXTRACTIVE and (self.base_url is not None or self.model != EXTRACTIVE):
            raise ValueError("engine extractive is no model: leave out model, adapter and base_url, or the engine")
        if self.base_url is not None:
            checked_url(self.base_url, "base_url")
        if self.engine == "sglang" and self.base_url is None:  # its requests would go to OpenAI
            raise ValueError("engine sglang is not started here; give the base_url of one that runs")
        return self

    @property
    def key_variable(self) -> str | None:
        return self.api_key_env

    @property
    def remote(self) -> bool:
        """Whether an endpoint that runs already serves the model; `model` is then a name there, and no file here."""
        return self.base_url is not None or self.engine in REMOTE

    @property
    def cost(self) -> PriceConfig:
        """What its calls cost: the price that is given; nothing where the engine is started here; else not known."""
        asked = self.remote and self.engine != EXTRACTIVE
        return self.price if asked or self.price.known else PriceConfig(prompt=0)


class JudgeConfig(PolicyConfig):
    """The judge is a policy of its own; its replies are short and not sampled."""

    temperature: float = Field(default=0.0, ge=0, le=5, description="sampling temperature; 0 is greedy")
    max_tokens: Positive = Field(default=16, description="longest reply, in tokens")
    prompt: str | None = Field(default=None, description="YAML file of yours, or a name in configs/judge: its prompt")


class EpisodeConfig(Section):
    """The bounds of every episode: in a search, in inference, in a conversation, in training."""

    depth: Positive = Field(default=7, description="steps in an episode at most; the last can only be an answer")
    top_k: Positive = Field(default=3, description="passages a query brings")
    chars: Positive | None = Field(
        default=None, description="characters of a prompt beyond which a step may only sum up or answer; none: no bound"
    )
    screen: bool = Field(
        default=False, description="take passages without the sentences that read as instructions to a model"
    )

    @property
    def identity(self) -> dict[str, Any]:
        """The keys that decide an episode. Unset ones are left out, so that runs older than a key can resume."""
        return self.model_dump(exclude_none=True, exclude=set() if self.screen else {"screen"})


class RetrieverConfig(Section):
    """How passages are found in an index, or asked for at a service."""

    mode: Literal["auto", "dense", "sparse", "hybrid"] = Field(
        default="auto", description="how passages are ranked; auto: hybrid where the index has both, else the one"
    )
    fusion: Literal["scores", "rrf"] = Field(
        default="scores", description="how hybrid fuses: weighted scores, or reciprocal ranks"
    )
    dense_weight: float = Field(
        default=0.4, ge=0, le=1, description="what the vectors count in hybrid; the sparse ranking the rest"
    )
    links: float = Field(
        default=0.0, ge=0, description="what a passage gains whose title the best ones mention; 0: nothing, 0.6 is good"
    )
    reranker: str | None = Field(default=None, description="cross-encoder that reorders passages: a folder or a hub id")
    candidates: Positive = Field(default=50, description="passages that the cross-encoder reads for a query")
    preload: bool = Field(default=True, description="load the weights at opening; false: at the first search")
    timeout: float = Field(default=30.0, gt=0, description="seconds until a request to a service counts as lost")
    retries: int = Field(default=4, ge=0, description="tries again after 429, 5xx and lost connections")
    token_env: str = Field(
        default="STEPRAG_RETRIEVER_TOKEN", description="environment variable that holds a service's token"
    )
    fields: tuple[str, ...] = Field(
        default=("title", "text"), description="of elastic://: fields that are searched; title^2 counts twice"
    )


class JournalConfig(Section):
    """How much of a run's journal a power failure may lose. A process that dies loses nothing."""

    sync_seconds: float = Field(
        default=0.0,
        ge=0,
        description="seconds between two writes through to the disk: what a failure of power may lose (0.5 is cheap); "
        "0: when the system does, often 30",
    )


class PromptConfig(Section):
    """The prompt profile and its worked examples."""

    profile: str = Field(default="transcript", description="prompt profile: a name in configs/prompts or a YAML file")
    examples: int = Field(default=0, ge=0, description="worked examples in the system prompt")
    unchecked: bool = Field(default=False, description="use a checkpoint with prompts that it was not trained on")
