"""Chat templates of published models (`chat_templates/`): short ones of our own that render the same strings, with the
models' control tokens and what their generation_config.json names as ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models import CHATML, make_tokenizer, template
from tests.training_parts import messages, pair_row


@dataclass(frozen=True)
class Published:
    """`template`: the file's name. `ends`: eos_token_id of generation_config.json. `closes`: what ends a turn; `opens`:
    what the model writes before a reply's text and engines do not show. `system`: whether the template takes a system
    message; `parts`: whether it wants contents as lists of parts.
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
        made = make_tokenizer(folder, texts, template(self.template), self.special, eos_token=self.eos)
        ends = made.convert_tokens_to_ids(list(self.ends))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "temperature": 0.6}))
        loaded = AutoTokenizer.from_pretrained(folder)
        loaded.chat_template_kwargs = self.kwargs
        return loaded

    def prompt(self, number: int) -> list[dict[str, str]]:
        """A prompt that the template takes."""
        return messages(number)[0 if self.system else 1 :]


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
    "Qwen2.5": Published("qwen2-5", CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>"),
    "Qwen2.5 base": Published("qwen2-5", CHATML, "<|endoftext|>", ("<|endoftext|>",), "<|im_end|>"),
    "Qwen3": Published("qwen3", CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>"),
    "Qwen3, special marks": Published("qwen3", ("<think>", "</think>", *CHATML), "<|im_end|>", _CHATML_ENDS,
                                      "<|im_end|>"),
    "Qwen3, not thinking": Published("qwen3", CHATML, "<|im_end|>", _CHATML_ENDS, "<|im_end|>",
                                     kwargs={"enable_thinking": False}),
    "Llama 3.2": Published("llama3", _LLAMA_TOKENS, "<|eot_id|>", _LLAMA_TOKENS[-3:], "<|eot_id|>",
                           kwargs={"date_string": "26 Jul 2024"}),
    "Llama 3 base": Published("llama3", _LLAMA_TOKENS, "<|end_of_text|>", ("<|end_of_text|>",), "<|eot_id|>"),
    "Gemma 2": Published("gemma2", _GEMMA_TOKENS, "<eos>", ("<eos>", "<end_of_turn>"), "<end_of_turn>", system=False),
    "Gemma 3": Published("gemma3", _GEMMA_TOKENS, "<eos>", ("<eos>", "<end_of_turn>"), "<end_of_turn>"),
    "Phi-3": Published("phi3", _PHI_TOKENS, "<|endoftext|>", ("<|endoftext|>", "<|assistant|>", "<|end|>"), "<|end|>"),
    "Phi-4": Published("phi4", (*CHATML, "<|im_sep|>"), "<|im_end|>", _CHATML_ENDS[::-1], "<|im_end|>"),
    "Mistral": Published("mistral", ("<unk>", "<s>", "[INST]", "[/INST]", "</s>"), "</s>", ("</s>",), "</s>"),
    "GLM-4": Published("glm4", _GLM_TOKENS, "<|endoftext|>", _GLM_ENDS, "<|user|>"),
    "gpt-oss": Published("gpt-oss", _OSS_TOKENS, "<|return|>", ("<|return|>", "<|endoftext|>", "<|call|>"),
                         "<|return|>", "<|channel|>final<|message|>"),
    "SmolLM3": Published("smollm3", CHATML, "<|im_end|>", ("<|im_end|>",), "<|im_end|>"),
    "SmolLM3, thinking": Published("smollm3", CHATML, "<|im_end|>", ("<|im_end|>",), "<|im_end|>",
                                   kwargs={"enable_thinking": True}),
    "Command R7B": Published("command-r7b", _COHERE_TOKENS, "<|END_OF_TURN_TOKEN|>", ("<|END_OF_TURN_TOKEN|>",),
                             "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "<|START_RESPONSE|>"),
    "DeepSeek-R1": Published("deepseek", ("<pad>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
                             "<｜end▁of▁sentence｜>", (), "<｜end▁of▁sentence｜>", "\n</think>\n\n"),
    "Qwen3 Thinking": Published("qwen3-thinking", ("<think>", "</think>", *CHATML), "<|im_end|>", _CHATML_ENDS,
                                "<|im_end|>", "\n</think>\n\n"),
    "SmolVLM": Published("smolvlm", (*CHATML, "<end_of_utterance>"), "<|im_end|>", ("<end_of_utterance>",),
                         "<end_of_utterance>", parts=True),
    "Starling": Published("starling", ("<s>", "<|end_of_turn|>"), "<|end_of_turn|>", ("<|end_of_turn|>",),
                          "<|end_of_turn|>", system=False),
}  # fmt: skip
