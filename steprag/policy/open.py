"""Opens the models that a configuration names, and names them in a run's identity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steprag.config.sections import EXTRACTIVE, PolicyConfig
from steprag.engines.launch import EngineSpec
from steprag.engines.models import configuration_hash, resolve_model, sha256_of, weights_hash
from steprag.engines.server import serving_us
from steprag.errors import ConfigError
from steprag.policy.gate import Gate
from steprag.policy.protocols import Policy
from steprag.policy.requests import OutputFormat

if TYPE_CHECKING:
    from steprag.policy.client import OpenAIPolicy


@asynccontextmanager
async def open_policy(
    config: PolicyConfig, grammar: OutputFormat, more: tuple[str, ...] = ()
) -> AsyncIterator[OpenAIPolicy]:
    """The policy that `config` describes, checked and ready; an engine that is not running yet is started for the
    block, with `more` adapters to switch to. Raises ConfigError where it is no model.
    """
    if config.engine == EXTRACTIVE:
        raise ConfigError("extractive answers questions and writes nothing else; name a model here")
    with ExitStack() as stack:
        base_url, model, key, switch = config.base_url, config.model, None, None
        if not config.remote:
            spec = EngineSpec(
                config.engine, config.model, config.adapter, parallel=config.concurrency, context=config.context,
                args=config.engine_args, devices=config.devices, more=more,
                steady=config.temperature == 0,
            )  # fmt: skip
            endpoint = stack.enter_context(serving_us(spec))
            base_url, model, key = endpoint.base_url, endpoint.model, endpoint.key or "none"
            switch = endpoint.switch
        from steprag.policy.client import OpenAIPolicy  # an HTTP library, which no help needs

        async with OpenAIPolicy(config, base_url, model, grammar, key, switch) as policy:
            await policy.check()
            yield policy


@dataclass(frozen=True)
class Model:
    """A model behind an endpoint, and the gate through which that endpoint is asked."""

    policy: Policy
    gate: Gate


@asynccontextmanager
async def open_model(config: PolicyConfig, grammar: OutputFormat, more: tuple[str, ...] = ()) -> AsyncIterator[Model]:
    """`open_policy` with a gate of its own."""
    async with open_policy(config, grammar, more) as policy:
        yield Model(policy, Gate(config))


def model_identity(config: PolicyConfig) -> dict[str, Any]:
    """What names the policy's weights in a run's identity: the model, the adapter, and hashes of local files. Beside
    them, where they are set: the fields that it is not sent, further ones, and the options of its template.
    """
    keys = ("omit", "chat_template_kwargs", "extra")
    set_ = {key: list(value) if key == "omit" else value for key in keys if (value := getattr(config, key))}
    if config.remote:
        return {"model": config.model, **set_}
    files = resolve_model(config.model, config.adapter)
    identity = {"model": files.name, **set_}
    if files.hf or (files.gguf and not files.embedded):  # a folder's name says little: many are called "merged"
        identity["weights"] = weights_hash(files)[:16]
    if files.adapter is not None:
        weights = files.adapter if files.adapter.is_file() else files.adapter / "adapter_model.safetensors"
        identity["adapter"] = sha256_of(weights)[:16]
    if configuration := configuration_hash(files):
        identity["configuration"] = configuration[:16]
    return identity
