"""The step critic: says what a step is worth in the state where it was sampled, and chooses among several.

`steprag train --stage critic` makes one. It reads the prompt and the step as a policy writes it, and its score is read
at the step's last token.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steprag.agent.checkpoints import check_use, stage_of, training_manifest
from steprag.agent.profiles import PromptProfile
from steprag.engines.models import ModelFiles, adapter_hash, resolve_model, weights_hash
from steprag.engines.pretrained import adapted, from_pretrained
from steprag.engines.threads import one_load, spin_briefly
from steprag.engines.tokens import prompt_tokens, reply_tokens
from steprag.engines.weights import base_weights, load_tokenizer
from steprag.errors import ConfigError
from steprag.types import Message, Step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class CriticFiles:
    """A critic's checkpoint. `bf16`: it was trained in bfloat16; `kwargs`: what its chat template was given."""

    files: ModelFiles
    bf16: bool
    kwargs: dict[str, Any]

    @property
    def hash(self) -> str:
        """A hash of its weights."""
        return (adapter_hash(self.files.adapter) or weights_hash(self.files))[:16]


def find_critic(path: str, profile: PromptProfile, *, unchecked: bool) -> CriticFiles:
    """The checkpoint at `path`. Raises ConfigError where it is no critic, or was trained on prompts of another profile
    (unless `unchecked`).
    """
    files = resolve_model(path)
    folder, manifest = training_manifest(files)
    if stage_of(manifest) != "critic":
        raise ConfigError(f"{path} is no critic; steprag train --stage critic makes one")
    check_use(folder, manifest, files, profile, unchecked=unchecked)
    recipe = manifest["config"]
    if (recipe.get("critic") or {}).get("loss") == "mse":
        raise ConfigError(f"{path} was trained with critic.loss mse, which critics no longer have; train it again")
    bf16, kwargs = recipe["bf16"] and recipe["finetuning"] == "lora", recipe.get("chat_template_kwargs", {})
    return CriticFiles(files, bf16, kwargs)


def step_ids(prompt: list[int], reply: list[int]) -> list[int]:
    """What a critic reads: the step without the token that ends the turn, behind its prompt."""
    return prompt + reply[:-1]


def pad_with(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Has tokenizer and model agree on the token that fills batches; the model reads its score before it."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


class Critic:
    """A critic in this process, loaded. The steps of one call make one batch, so the same call gives the same values
    whatever else runs.
    """

    def __init__(self, checkpoint: CriticFiles) -> None:
        spin_briefly()
        import torch

        self._turn = threading.Lock()
        self._tokenizer = load_tokenizer(checkpoint.files, checkpoint.kwargs)
        self._device: Any = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        self._model = _loaded(checkpoint).to(self._device).eval()
        pad_with(self._tokenizer, self._model)

    def values(self, messages: tuple[Message, ...], texts: list[str]) -> list[float]:
        """The value of each step after the prompt `messages`, on the scale of the labels: 1 is best, 0 worst."""
        import torch

        replies = [Message(role="assistant", content=text) for text in texts]
        with self._turn, torch.no_grad():  # tokenizers are not for two threads at once
            prompt = prompt_tokens(messages, self._tokenizer)
            rows = [step_ids(prompt, reply_tokens(messages, reply, self._tokenizer)) for reply in replies]
            batch = self._tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self._device)
            return self._model(**batch).logits[:, 0].float().sigmoid().tolist()

    def score(self, messages: tuple[Message, ...], text: str) -> float:
        """What one step is worth."""
        return self.values(messages, [text])[0]

    async def choose(self, messages: tuple[Message, ...], steps: tuple[Step, ...]) -> int:
        """Place of the step that is worth most; of equals, of the first. Scored in a thread."""
        values = await asyncio.to_thread(self.values, messages, [step.text for step in steps])
        return max(range(len(values)), key=values.__getitem__)


def _loaded(checkpoint: CriticFiles) -> Any:
    with one_load():
        import torch
        from transformers import AutoModelForSequenceClassification

        files, dtype = checkpoint.files, torch.bfloat16 if checkpoint.bf16 else torch.float32
        model: Any = from_pretrained(AutoModelForSequenceClassification, base_weights(files), dtype=dtype, num_labels=1,
                                     fresh="score." if files.adapter else None)  # fmt: skip
        return adapted(model, files.adapter) if files.adapter else model
