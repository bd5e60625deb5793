"""Chat templates of published models: short ones of our own that render the same strings, with the models' control
tokens and what their generation_config.json names as ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models import CHATML, make_tokenizer
from tests.training_parts import QWEN2_5, messages, pair_row


@dataclass(frozen=True)
class Published:
    """`ends`: eos_token_id of generation_config.json. `closes`: what ends a turn; `opens`: what the model writes before
    a reply's text and engines do not show. `system`: whether the template takes a system message; `parts`: whether it
    wants contents as lists of parts.
    """

    template: str
    special: tuple[str, ...]
    eos: str
    ends: tuple[str, ...]
    closes: str
    opens: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    system: bool = True
    parts: bool = False

    def tokenizer(self, folder: Path) -> Any:
        """The tokenizer as `load_tokenizer` gives it, its folder with the generation config."""
        from transformers import AutoTokenizer

        texts = [json.dumps(pair_row(n)) for n in range(20)]
        made = make_tokenizer(folder, texts, self.template, self.special, eos_token=self.eos)
        ends = made.convert_tokens_to_ids(list(self.ends))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "temperature": 0.6}))
        loaded = AutoTokenizer.from_pretrained(folder)
        loaded.chat_template_kwargs = self.kwargs
        return loaded

    def prompt(self, number: int) -> list[dict[str, str]]:
        """A prompt that the template takes."""
        return messages(number)[0 if self.system else 1 :]


_THINK = "<think>\n\n</think>\n\n"
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% if loop.last %}" + _THINK + "{% endif %}{{ said }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}" + _THINK + "{% endif %}{% endif %}"
)
LLAMA3 = (
    "{% set day = date_string or strftime_now('%d %b %Y') %}<|begin_of_text|>{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{% if loop.first %}{{ 'Today Date: ' + day + '\n' }}"
    "{% endif %}{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content | trim }}{{ '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA2 = (
    "<bos>{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + _GEMMA
)
GEMMA3 = (
    "<bos>{% set first = '' %}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}" + _GEMMA
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI4 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set told, messages = messages[0].content + '\n\n', messages[1:] %}"
    "{% endif %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + (told if told and loop.last else '') + m.content + '[/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
)
GLM4 = (
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GPT_OSS = (
    "{{ '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role.replace('system', 'developer') + '<|message|>' + m.content + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SMOLLM3 = (
    "{{ '<|im_start|>system\n## Metadata\n\nReasoning Mode: ' }}{{ '/think' if enable_thinking else '/no_think' }}"
    "{% if messages[0].role == 'system' %}{{ '\n\n' + messages[0].content }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% if not enable_thinking %}{{ '"
    + _THINK[:-1]
    + "' }}"
    "{% endif %}{{ m.content.lstrip('\n') + '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% if not enable_thinking %}{{ '" + _THINK[:-1] + "' }}{% endif %}{% endif %}"
)
COMMAND_R7B = (
    "<BOS_TOKEN>{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + m.role.upper() + '_TOKEN|>' }}"
    "{% if m.role == 'assistant' %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% else %}{{ m.content }}"
    "{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|ASSISTANT_TOKEN|>{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
QWEN3_THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ "
    "('<think>\n\n</think>\n\n' if m.role == 'assistant' and loop.last else '') + "
    "(m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content) }}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
SMOLVLM = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize + ': ' }}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
STARLING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'GPT4 Correct User: ' + m.content + eos_token }}"
    "{% elif m.role == 'assistant' %}{{ 'GPT4 Correct Assistant: ' + m.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}"
)
_LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|end_of_text|>",
                 "<|eot_id|>")  # fmt: skip
_GEMMA_TOKENS = ("<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>")
_PHI_TOKENS = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_GLM_TOKENS = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>", "<|user|>")
_OSS_TOKENS = ("<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_COHERE_TOKENS = ("<PAD>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>",
                  "<|ASSISTANT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>")  # fmt: skip
_CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
_GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")

GALLERY = {
    "Qwen2.5": Published(QWEN2_5, CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>"),
    "Qwen2.5 base": Published(QWEN2_5, CHATML, "<|endoftext|>", ("<|endoftext|>",), "<|im_end|>"),
    "Qwen3": Published(QWEN3, CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>"),
    "Qwen3, special marks": Published(QWEN3, ("<think>", "</think>", *CHATML), "<|im_end|>", _CHATML_ENDS,
                                      "<|im_end|>"),
    "Qwen3, not thinking": Published(QWEN3, CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>",
                                     kwargs={"enable_thinking": False}),
    "Llama 3.2": Published(LLAMA3, _LLAMA_TOKENS, "<|eot_id|>", _LLAMA_TOKENS[-3:], "<|eot_id|>",
                           kwargs={"date_string": "26 Jul 2024"}),
    "Llama 3 base": Published(LLAMA3, _LLAMA_TOKENS, "<|end_of_text|>", ("<|end_of_text|>",), "<|eot_id|>"),
    "Gemma 2": Published(GEMMA2, _GEMMA_TOKENS, "<eos>", ("<eos>", "<end_of_turn>"), "<end_of_turn>", system=False),
    "Gemma 3": Published(GEMMA3, _GEMMA_TOKENS, "<eos>", ("<eos>", "<end_of_turn>"), "<end_of_turn>"),
    "Phi-3": Published(PHI3, _PHI_TOKENS, "<|endoftext|>", ("<|endoftext|>", "<|assistant|>", "<|end|>"), "<|end|>"),
    "Phi-4": Published(PHI4, (*CHATML, "<|im_sep|>"), "<|im_end|>", _CHATML_ENDS[::-1], "<|im_end|>"),
    "Mistral": Published(MISTRAL, ("<unk>", "<s>", "[INST]", "[/INST]", "</s>"), "</s>", ("</s>",), "</s>"),
    "GLM-4": Published(GLM4, _GLM_TOKENS, "<|endoftext|>", _GLM_ENDS, "<|user|>"),
    "gpt-oss": Published(GPT_OSS, _OSS_TOKENS, "<|return|>", ("<|return|>", "<|endoftext|>", "<|call|>"), "<|return|>",
                         "<|channel|>final<|message|>"),
    "SmolLM3": Published(SMOLLM3, CHATML, "<|im_end|>", ("<|im_end|>",), "<|im_end|>"),
    "SmolLM3, thinking": Published(SMOLLM3, CHATML, "<|im_end|>", ("<|im_end|>",), "<|im_end|>",
                                   kwargs={"enable_thinking": True}),
    "Command R7B": Published(COMMAND_R7B, _COHERE_TOKENS, "<|END_OF_TURN_TOKEN|>", ("<|END_OF_TURN_TOKEN|>",),
                             "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "<|START_RESPONSE|>"),
    "DeepSeek-R1": Published(DEEPSEEK, ("<pad>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
                             "<｜end▁of▁sentence｜>", (), "<｜end▁of▁sentence｜>", "\n</think>\n\n"),
    "Qwen3 Thinking": Published(QWEN3_THINKING, ("<think>", "</think>", *CHATML), "<|im_end|>", _CHATML_ENDS,
                                "<|im_end|>", "\n</think>\n\n"),
    "SmolVLM": Published(SMOLVLM, (*CHATML, "<end_of_utterance>"), "<|im_end|>", ("<end_of_utterance>",),
                         "<end_of_utterance>", parts=True),
    "Starling": Published(STARLING, ("<s>", "<|end_of_turn|>"), "<|end_of_turn|>", ("<|end_of_turn|>",),
                          "<|end_of_turn|>", system=False),
}  # fmt: skip
