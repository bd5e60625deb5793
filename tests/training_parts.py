"""What the training tests share: rows, a tiny chat model, and the command with fast settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steprag.cli import guarded
from training.train import main

FAST = ["--threads", "1", "--learning_rate", "0.01", "--batch_size", "4", "--warmup", "0", "--lora.rank", "4"]

QWEN2_5 = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    "<|im_end|>\n' }}{%- endif %}{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) "
    "or (message.role == 'assistant') %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Qwen2.5-Instruct's published template, without its branches for tools."""

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2-Instruct's published template."""


def messages(number: int) -> list[dict[str, str]]:
    question = (
        f"Question: which town number {number} lies on the river{' of the north' * (number % 3)}?\nSearch or answer."
    )
    return [{"role": "system", "content": "Answer in small steps."}, {"role": "user", "content": question}]


def reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def step_row(number: int) -> dict[str, Any]:
    text = f"I need the town. So the next query is <query> town number {number} </query>"
    where = {"question_id": str(number), "action": "query", "depth": 1, "source": "test"}
    return {"prompt": messages(number), "completion": reply(text), **where}


def pair_row(number: int) -> dict[str, Any]:
    good = f"I need the town. So the next query is <query> town number {number} </query>"
    bad = "So the answer is <answer> nothing </answer>"
    return {
        **{"prompt": messages(number), "chosen": reply(good), "rejected": reply(bad), "question_id": str(number)},
        **{"tree": "0" * 16, "chosen_node": 1, "rejected_node": 2, "action": "query", "rejected_action": "answer"},
        **{"depth": 1, "chosen_reward": 1.0, "rejected_reward": 0.0, "margin": 1.0},
        **{"chosen_visits": 3, "rejected_visits": 2, "source": "test"},
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_tokenizer(folder: Path, texts: Sequence[str], template: str) -> Any:
    """A byte-level BPE tokenizer of 400 words with the ChatML control tokens, saved in `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )
    fast.save_pretrained(folder)
    # What transformers 5 saves names a class that version 4 does not know; published models name one that both do.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return fast


def make_qwen2(folder: Path) -> Path:
    """A random Qwen2 of two blocks with grouped key-value heads, tied embeddings and Qwen2.5's template."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    tokenizer = make_tokenizer(folder, [json.dumps(pair_row(n)) for n in range(20)], QWEN2_5)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(
        vocab_size=len(tokenizer), **shape, **heads, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def train(tiny: Path, pairs: Path, out: Path, stage: str, *options: str) -> int:
    base = ["--stage", stage, "--model", str(tiny), "--pairs", str(pairs), "--out", str(out)]
    return guarded(main, [*base, *FAST, *options])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path / "adapter_model.safetensors")
