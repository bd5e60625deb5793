"""A PEFT LoRA adapter becomes the GGUF adapter that llama.cpp loads.

The format is that of llama.cpp's convert_lora_to_gguf.py: `lora_a` (rank, in) and `lora_b` (out, rank) for each weight,
applied as W + scale · alpha / rank · B·A. Architectures llama and qwen2, linear layers of the blocks. What the
format cannot say (DoRA, biases, trained embeddings, ranks that differ) is refused, never dropped.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steprag.engines.cache import cache_dir
from steprag.engines.headers import gguf_values
from steprag.engines.models import ATLAS, ModelFiles, adapter_base, adapter_config, resolve_model
from steprag.engines.pretrained import adapted, loading
from steprag.engines.threads import one_load
from steprag.errors import ConfigError, DataError
from steprag.records.jsonl import read_json, shaped

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFWriter

_FORMAT = "3"  # part of the cache key; raise it when the output changes
_ARCHITECTURES = ("llama", "qwen2")
_ROTARY = ("self_attn.q_proj", "self_attn.k_proj")
_MOST_BLOCKS = 1000  # the deepest models have some 130
_MOST = 1e6  # no adapter's alpha; what GGUF keeps it in ends at 3.4e38
_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.([\w.]+?)\.lora_([AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class BaseShape:
    """What the conversion must know of the base model: `heads` and `kv_heads` order the rows of q and k. `inner`: the
    width of a block's linear layers between; `head`: that of a head, None where it is hidden / heads.
    """

    architecture: str
    heads: int
    kv_heads: int
    hidden: int
    inner: int
    blocks: int
    head: int | None = None


_EMBEDDED_SHAPE = BaseShape("llama", 9, 3, 576, 1536, 30)  # the file is pinned; reading its header takes seconds


def gguf_adapter(folder: Path, base: ModelFiles | None = None) -> Path:
    """The GGUF form of a PEFT LoRA folder, made once and kept under `cache_dir()/adapters`.

    A file that ends in `.gguf` is returned as it is. `base` defaults to the model that the adapter names. The cached
    file's name is a hash of tensors, configuration and base shape, so a retrained adapter is converted again.
    """
    if folder.suffix == ".gguf":
        return folder
    config = adapter_config(folder)
    _refuse_what_gguf_cannot_say(folder, config)
    shape = base_shape(base or resolve_model(adapter_base(folder)))
    target = cache_dir() / "adapters" / f"{folder.name}-{_key(folder, shape)}.gguf"
    if not target.is_file():
        _write(target, folder, config, shape)
    return target


def _check_on(shape: BaseShape, folder: Path) -> None:
    """Raises ConfigError where the adapter's tensors are not those of a base of this shape, made without numbers."""
    if not 0 < shape.blocks <= _MOST_BLOCKS:
        raise ConfigError(f"{folder}: its base says that it has {shape.blocks} blocks; fetch or convert the base again")
    with one_load(), loading(folder):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes = {"hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_hidden_layers": shape.blocks}
        heads = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads}
        own = {"head_dim": shape.head} if shape.head else {}
        config = AutoConfig.for_model(shape.architecture, vocab_size=8, **sizes, **heads, **own)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        adapted(model, folder, low_cpu_mem_usage=True)


def lora_rank(folder: Path) -> int:
    """The rank of a PEFT adapter. Raises DataError."""
    rank = adapter_config(folder).get("r")
    if not isinstance(rank, int) or not 0 < rank < 1 << 20:
        raise DataError(folder / "adapter_config.json", "r is no rank", remedy="save the adapter again")
    return rank


def base_shape(base: ModelFiles) -> BaseShape:
    """Architecture and head counts from a GGUF header or a `config.json`."""
    if base.embedded:
        return _EMBEDDED_SHAPE
    if base.gguf:
        shape = _gguf_shape(base.gguf)
    elif base.hf:
        with shaped(base.hf / "config.json", remedy="fetch or save the model again"):
            shape = _hf_shape(read_json(base.hf / "config.json"))
    else:
        raise ConfigError(f"the shape of {base.name} is not known here; give a local folder or GGUF file as the base")
    if shape.architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(f"no GGUF adapters for architecture {shape.architecture} (only {known}); use another engine")
    return shape


def permute_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face's row order of a q or k projection → llama.cpp's, for its rotary embedding of adjacent pairs."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _gguf_shape(path: Path) -> BaseShape:
    fields = gguf_values(path, lambda key: not key.startswith("tokenizer."))
    with shaped(path, remedy="fetch or convert it again"):
        architecture = str(fields["general.architecture"])
        names = ("attention.head_count", "attention.head_count_kv", "embedding_length", "feed_forward_length",
                 "block_count")  # fmt: skip
        heads, kv_heads, width, inner, blocks = (int(fields[f"{architecture}.{name}"]) for name in names)
        head = fields.get(f"{architecture}.attention.key_length")
        return BaseShape(architecture, heads, kv_heads, width, inner, blocks, head)


def _hf_shape(config: dict[str, Any]) -> BaseShape:
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    width, inner, blocks = (int(config[name]) for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    return BaseShape(str(config["model_type"]), heads, kv_heads, width, inner, blocks, config.get("head_dim"))


def _refuse_what_gguf_cannot_say(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    reasons = {
        f"its type is {kind}, not LORA": kind != "LORA",
        "it uses DoRA": bool(config.get("use_dora")),
        "it trained biases": config.get("bias", "none") != "none" or bool(config.get("lora_bias")),
        "it trained whole modules (modules_to_save)": bool(config.get("modules_to_save")),
        "it trained token embeddings": bool(config.get("trainable_token_indices")),
        "its ranks or alphas differ by module": bool(config.get("rank_pattern") or config.get("alpha_pattern")),
        "it begins at tokens of its own (aLoRA)": bool(config.get("alora_invocation_tokens")),
        "it replicates layers": bool(config.get("layer_replication")),
        "its initialisation changed the base weights": config.get("init_lora_weights", True)
        not in (True, False, "gaussian", "orthogonal", "eva"),
    }
    if wrong := [reason for reason, holds in reasons.items() if holds]:
        raise ConfigError(f"{folder} cannot become a GGUF adapter: {'; '.join(wrong)}. Serve it with another engine")


def _key(folder: Path, shape: BaseShape) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {shape}".encode())
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _write(target: Path, folder: Path, config: dict[str, Any], shape: BaseShape) -> None:
    tensors, alpha = _converted(folder, shape), _alpha(folder, config)
    if folder.parent != ATLAS:  # those are known, and PEFT takes seconds to import
        _check_on(shape, folder)
    with written_gguf(target, shape.architecture) as writer:
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", alpha)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)


@contextmanager
def written_gguf(target: Path, architecture: str) -> Iterator[GGUFWriter]:
    """A writer whose file appears at `target` when the block ends well, and not at all when it does not."""
    from gguf import GGUFWriter

    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".gguf", dir=target.parent)
    os.close(handle)
    try:
        writer = GGUFWriter(temporary, architecture)
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _alpha(folder: Path, config: dict[str, Any]) -> float:
    """llama.cpp scales by alpha / rank, here of the rank as written; rank-stabilised LoRA scales by alpha / √rank."""
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or not -_MOST < alpha < _MOST:
        raise DataError(folder / "adapter_config.json", "lora_alpha is no number", remedy="save the adapter again")
    rank = lora_rank(folder)
    return alpha * (rank | 1) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _converted(folder: Path, shape: BaseShape) -> dict[str, np.ndarray]:
    """GGUF name → tensor. float32, as trained: fp16 saves a few MB and would round what was trained."""
    import numpy as np
    from safetensors.torch import load_file

    converted: dict[str, np.ndarray] = {}
    with loading(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or match[2] not in _MODULES:
            raise ConfigError(f"{folder} cannot become a GGUF adapter: {name} is no linear layer of a block")
        layer, module, side = match.groups()
        rows = tensor.float().numpy()
        heads = shape.heads if module.endswith("q_proj") else shape.kv_heads
        if rows.ndim != 2 or (side == "B" and module in _ROTARY and rows.shape[0] % (2 * heads)):
            raise ConfigError(f"{folder} cannot become a GGUF adapter: {name} has the shape {tuple(rows.shape)}")
        if side == "B" and shape.architecture == "llama" and module in _ROTARY:
            rows = permute_rows(rows, heads)
        # Ranks are made odd by zeros: where 4 divides one, llama.cpp adds one token's products in another order than
        # those of several, so a greedy step would depend on what is cached and on what is computed beside it.
        axis = 0 if side == "A" else 1
        odd = [(0, (1 - size % 2) * (place == axis)) for place, size in enumerate(rows.shape)]
        converted[f"blk.{layer}.{_MODULES[module]}.weight.lora_{side.lower()}"] = np.pad(rows, odd)
    return converted
