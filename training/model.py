"""The model that is trained, and how it is saved: base weights with a LoRA adapter, fresh or continued. A critic is the
same with one number a token in place of words.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from steprag.console.progress import say
from steprag.engines.headers import tensor_heads
from steprag.engines.models import ModelFiles, adapter_config, text_config
from steprag.engines.pretrained import (
    HUB_ID,
    TOKENIZER_FILES,
    VOCABULARY,
    adapted,
    check_adapted,
    copy_tokenizer,
    from_pretrained,
    loading,
)
from steprag.engines.templates import KWARGS
from steprag.engines.threads import one_load
from steprag.engines.tokens import write_stops
from steprag.engines.vocabulary import check_rows
from steprag.engines.weights import base_weights
from steprag.errors import ConfigError, quoted
from steprag.records.jsonl import read_json, write_json
from training.config import LoraSection, TrainConfig

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROBLEM = "multi_label_classification"
"""What transformers calls a critic's loss: of one label, the cross-entropy of its odds."""
_BLOCK = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
"""A block's place in a module's name; GPT-2 and its kin call their blocks h."""
_WEIGHT_FILES = ("adapter_config.json", "config.json", "model.safetensors.index.json")


def check_adapter(files: ModelFiles, config: TrainConfig) -> None:
    """Refuses starts that the trainer cannot make, before anything is loaded."""
    if files.adapter is None:
        return
    if config.finetuning == "full":
        raise ConfigError("finetuning full starts from full weights, not from an adapter; leave adapter out")
    if files.adapter.suffix == ".gguf":
        raise ConfigError(f"{files.adapter} is a GGUF adapter; training starts from the PEFT folder it was made of")
    settings = adapter_config(files.adapter)
    named = str(settings.get("base_model_name_or_path"))
    if files.hub and HUB_ID.fullmatch(named) and not Path(named).exists() and named.lower() != files.hub.lower():
        raise ConfigError(f"{files.adapter} was made for {named}, not for {files.hub}; give that base with --model")
    if settings.get("task_type") == "SEQ_CLS" and config.stage != "critic":
        raise ConfigError(f"{files.adapter} is a critic; stage {config.stage} starts from a policy's adapter")
    for key, name in (("r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
        asked = getattr(config.lora, name)
        if (has := settings.get(key)) != asked:
            raise ConfigError(f"{files.adapter} has {name} {has} and lora.{name} is {asked}; set --lora.{name} {has}")


def load_policy(files: ModelFiles, config: TrainConfig) -> Any:
    """The model to train, on the CPU: a PeftModel, or the bare model for full fine-tuning. The trainer moves it."""
    import torch
    from peft import prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationConfig, set_seed

    dtype = torch.bfloat16 if config.bf16 and config.finetuning == "lora" else torch.float32
    options = _few_bits(config.quantization, dtype) if config.quantization else {}
    critic = config.stage == "critic"
    auto: Any = AutoModelForSequenceClassification if critic else AutoModelForCausalLM
    if critic:
        options |= {"num_labels": 1, "problem_type": PROBLEM}
    with one_load():
        model = from_pretrained(auto, base_weights(files), dtype=dtype, fresh="score." if critic else None, **options)
    if not critic:  # some publish values that go together with no other, which transformers saves no more
        theirs = model.generation_config
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        model.generation_config = GenerationConfig(**{name: getattr(theirs, name) for name in names})
    if critic and not getattr(model.score.weight, "_is_hf_initialized", False):
        torch.nn.init.zeros_(model.score.weight)  # a random head's scores would first have to be unlearnt
    if config.finetuning == "full":
        _freeze_beside(model)
        return model
    if config.quantization:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=config.gradient_checkpointing)
    set_seed(config.seed)  # the first values of a fresh adapter are random
    if files.adapter:
        policy = _continued(model, files.adapter, critic=critic)
    else:
        policy = _fresh(model, config.lora, "SEQ_CLS" if critic else "CAUSAL_LM")
    freeze_below(policy, config.lora.layers)
    return policy


def _few_bits(kind: str, dtype: torch.dtype) -> dict[str, Any]:
    """QLoRA's base (arXiv 2305.14314): nf4 with doubly quantised scales, computed in `dtype`; or int8 (2208.07339)."""
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4)}


def _continued(model: Any, adapter: Path, *, critic: bool) -> Any:
    """The starting adapter. A critic that starts from a policy takes its matrices, and has a head of its own."""
    from peft import PeftConfig, get_peft_model
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    if not critic:
        return adapted(model, adapter, is_trainable=True)
    head = {"base_model.model.score.weight": model.score.weight.detach().clone()}
    with loading(adapter):
        config = PeftConfig.from_pretrained(str(adapter))
        config.task_type, config.inference_mode, config.modules_to_save = "SEQ_CLS", False, None  # pyright: ignore
        policy = get_peft_model(model, config)
        weights = head | load_peft_weights(str(adapter), device="cpu")
        set_peft_model_state_dict(policy, weights, ignore_mismatched_sizes=True)
    check_adapted(policy, adapter, fresh="score.")
    return policy


def _fresh(model: PreTrainedModel, section: LoraSection, task: str) -> Any:
    """A new adapter on the model. Raises ConfigError for layers that the model lacks, or that PEFT does not adapt."""
    from peft import LoraConfig, get_peft_model

    blocks = int(model.config.get_text_config().num_hidden_layers)
    layers = None if section.layers is None else list(range(max(0, blocks - section.layers), blocks))
    known, beside = _linear_names(model)
    names = known if section.target == "all-linear" else section.target.split(",")
    if not known:
        raise ConfigError(f"LoRA finds no linear layer in the blocks of {type(model).__name__}; set --finetuning full")
    if strangers := sorted(set(names) - set(known)):
        raise ConfigError(f"lora.target: the model has no layer {quoted(strangers[0])}; it has {', '.join(known)}")
    shape: dict[str, Any] = {"r": section.rank, "lora_alpha": section.alpha, "lora_dropout": section.dropout}
    where = {"target_modules": names, "exclude_modules": beside, "layers_to_transform": layers}
    try:
        return get_peft_model(model, LoraConfig(**shape, **where, task_type=task))
    except ValueError as error:  # Mamba's last projection
        raise ConfigError(f"lora.target: {error}; set it to some of {','.join(known)}") from None


def _linear_names(model: PreTrainedModel) -> tuple[list[str], str | None]:
    """Names of the linear layers within blocks of the text decoder, sorted; and a pattern of all modules beside it,
    where these have such layers too. PEFT's own "all-linear" cannot be limited to some blocks.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    decoder = model.get_decoder()
    inside = next(name for name, module in model.named_modules() if module is decoder)
    linear = (nn.Linear, Conv1D)
    found = [name for name, module in model.named_modules() if isinstance(module, linear) and _BLOCK.search(name)]
    below = [name for name in found if name.startswith(f"{inside}.")]
    beside = rf"(?!{re.escape(inside)}\.).*" if len(below) < len(found) else None
    return sorted({name.rsplit(".", 1)[1] for name in below}), beside


def _freeze_beside(model: PreTrainedModel) -> None:
    """Freezes what lies beside the text decoder: no text reaches it, so processes would wait for its gradient."""
    decoder = model.get_decoder()
    for part in model.base_model.children() if model.base_model is not decoder else ():
        if decoder not in set(part.modules()):
            part.requires_grad_(False)


def freeze_below(policy: nn.Module, layers: int | None) -> None:
    """Leaves LoRA trainable in the top `layers` blocks only (None: in all), so that backward ends there."""
    if layers is None or not hasattr(policy, "peft_config"):
        return
    adapted = (name for name, _ in policy.named_parameters() if "lora_" in name)  # a vision tower has blocks too
    blocks = {name: int(found[1]) for name in adapted if (found := _BLOCK.search(name))}
    first = max(blocks.values()) + 1 - layers
    for name, parameter in policy.named_parameters():
        if name in blocks and blocks[name] < first:
            parameter.requires_grad_(False)


SAVING = ".saving-"
"""Begins the name of the folder, in a run's, that weights are written to before they are moved to their place."""


def save_policy(policy: Any, tokenizer: PreTrainedTokenizerBase, files: ModelFiles, folder: Path) -> None:
    """Adapter or full model with the tokenizer, into an existing run folder; what names the files comes last."""
    is_lora, brought = hasattr(policy, "peft_config"), _brings_embeddings(files.adapter)
    lora = {"selected_adapters": ["default"], "save_embedding_layers": brought} if is_lora else {}
    with TemporaryDirectory(dir=folder, prefix=SAVING, ignore_cleanup_errors=True) as made:
        policy.save_pretrained(made, **lora)
        adopt(Path(made), tokenizer, files, folder)


def _brings_embeddings(adapter: Path | None) -> bool:
    """Whether the starting adapter holds embeddings beside its matrices, which the base has otherwise."""
    names = tensor_heads(adapter / "adapter_model.safetensors") if adapter else ()
    return any(VOCABULARY.search(name) and "lora_" not in name for name in names)


def save_merged(policy: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Base and adapter as one model, at `folder/merged`, whole or not at all. `policy` is used up."""
    with TemporaryDirectory(dir=folder, prefix=SAVING, ignore_cleanup_errors=True) as private:
        made = Path(private, "merged")  # as the umask leaves it, unlike the folder around it
        policy.merge_and_unload().save_pretrained(made)
        _save_tokenizer(tokenizer, made)
        _as_the_umask_leaves_them(made)
        shutil.rmtree(folder / "merged", ignore_errors=True)  # of a run that was cut off
        os.replace(made, folder / "merged")


def adopt(made: Path, tokenizer: PreTrainedTokenizerBase, files: ModelFiles, folder: Path) -> None:
    """Moves the weights that a trainer left in `made` to `folder`, with the base's tokenizer beside them."""
    weights = [path for path in made.iterdir() if path.suffix == ".safetensors" or path.name in _WEIGHT_FILES]
    adapter = made / "adapter_config.json"
    if adapter.is_file():
        # the path of a cache is another one elsewhere
        base = files.name if files.embedded or files.hf is None else str(files.hf)
        write_json(adapter, {**read_json(adapter), "base_model_name_or_path": base})
    _save_tokenizer(tokenizer, folder)
    _as_the_umask_leaves_them(made)
    for path in sorted(weights, key=lambda path: path.name in ("adapter_config.json", "config.json")):
        os.replace(path, folder / path.name)


def _as_the_umask_leaves_them(made: Path) -> None:
    """safetensors makes its files private; they get the permissions of the configuration beside them."""
    for path in made.glob("*.safetensors"):
        shutil.copymode(next(made.glob("*config.json")), path)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The base's own files, and at which tokens its replies end."""
    copy_tokenizer(Path(tokenizer.name_or_path), folder)
    write_stops(tokenizer, folder)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError where the files that a checkpoint will hold do not make the base's tokenizer again, or where
    the model has no row for a token. Says where its template makes other prompts every day.
    """
    from transformers import AutoTokenizer

    if "strftime_now" in str(tokenizer.chat_template) and not getattr(tokenizer, KWARGS):
        say("train: the chat template writes the day's date; chat_template_kwargs may fix it (Llama's: date_string)")
    base = Path(tokenizer.name_or_path)
    check_rows(tokenizer, text_config(read_json(base / "config.json")).get("vocab_size"), base)
    with TemporaryDirectory() as folder:
        copy_tokenizer(base, Path(folder))
        shutil.copyfile(base / "config.json", Path(folder) / "config.json")  # may name the tokenizer's class
        again = from_pretrained(AutoTokenizer, folder)
    if (again.get_vocab(), again.chat_template) != (tokenizer.get_vocab(), tokenizer.chat_template):
        raise ConfigError(
            f"{base}: its tokenizer needs other files than {', '.join(TOKENIZER_FILES)}, so a checkpoint would not "
            "encode as it does; save it with transformers' save_pretrained first"
        )
