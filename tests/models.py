"""Small real models, made on the spot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steprag.records.jsonl import read_json, write_json

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def template(name: str) -> str:
    """One of `chat_templates/`."""
    return (Path(__file__).parent / f"chat_templates/{name}.jinja").read_text(encoding="utf-8")


def make_tokenizer(
    folder: Path, texts: Sequence[str], template: str, special: Sequence[str] = CHATML, **named: str
) -> Any:
    """A byte-level BPE tokenizer of 400 words with control tokens, by default ChatML's, saved in `folder`. `named`: the
    tokens that transformers has names for; by default the first pads and the last is the end.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    named = {"eos_token": special[-1], "pad_token": special[0], **named}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **named)
    fast.save_pretrained(folder)
    # What transformers 5 saves names a class that version 4 does not know; published models name one that both do.
    settings = read_json(folder / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return fast


def make_llama(folder: Path, texts: Sequence[str]) -> Path:
    """A random llama of two blocks with a ChatML tokenizer made from `texts`."""
    return make_weights(folder, len(make_tokenizer(folder, texts, TEMPLATE)))


def make_weights(folder: Path, words: int) -> Path:
    """The random llama alone, for a vocabulary of `words`; a generation config that lies there stays."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2}
    kept = folder / "generation_config.json"
    before = kept.read_bytes() if kept.is_file() else None
    LlamaForCausalLM(LlamaConfig(vocab_size=words, **shape, tie_word_embeddings=True)).save_pretrained(folder)
    if before is not None:
        kept.write_bytes(before)
    return folder


def make_gemma3(folder: Path) -> Path:
    """A random Gemma 3 with a vision tower of three blocks beside its text decoder of two."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    words = len(make_tokenizer(folder, ["who?"], TEMPLATE))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    common: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    text = {**common, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": words}
    vision = {**common, "num_hidden_layers": 3, "image_size": 28, "patch_size": 14}
    tokens = {"image_token_index": 3, "boi_token_index": 4, "eoi_token_index": 5, "mm_tokens_per_image": 4}
    config = Gemma3Config(text_config=text, vision_config=vision, **tokens)
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def edited(folder: Path, into: Path, **changes: Any) -> Path:
    """A copy of a folder of an adapter or model with another configuration."""
    shutil.copytree(folder, into)
    file = next(into / name for name in ("adapter_config.json", "config.json") if (into / name).is_file())
    write_json(file, {**read_json(file), **changes})
    return into


def make_encoder(folder: Path, seed: int) -> Path:
    """A real sentence-transformers folder: one random BERT layer, CLS pooling, and a query prompt."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(seed)
    plain = folder / "plain"
    plain.mkdir(parents=True)
    letters = [chr(c) for c in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    (plain / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(plain)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)).save_pretrained(plain)
    modules = [Transformer(str(plain), max_seq_length=64), Pooling(16, pooling_mode="cls"), Normalize()]
    SentenceTransformer(modules=modules, prompts={"query": "find: "}, device="cpu").save(str(folder / "encoder"))
    return folder / "encoder"


def make_published(
    folder: Path, encoder: Path, *, pooling: dict[str, Any] | None, modules: Sequence[str] = (),
    said: dict[str, Any] | None = None, **config: Any,
) -> Path:  # fmt: skip
    """The small encoder's weights under the configuration files of another model.

    `pooling`: of its Pooling module; None: a plain transformers folder, without modules. `modules`: what follows.
    `said`: config_sentence_transformers.json. `config`: entries of config.json.
    """
    shutil.copytree(encoder, folder)
    for left in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / left).unlink(missing_ok=True)
    shutil.rmtree(folder / "1_Pooling")
    write_json(folder / "config.json", read_json(folder / "config.json") | config)
    if said is not None:
        write_json(folder / "config_sentence_transformers.json", said)
    if pooling is None:
        return folder
    names = ["Transformer", "Pooling", *modules]
    rows = [{"idx": place, "name": str(place), "path": f"{place}_{name}" if place else "",
             "type": f"sentence_transformers.models.{name}"} for place, name in enumerate(names)]  # fmt: skip
    for row in rows[1:]:
        (folder / row["path"]).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(rows))
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16} | pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    return folder


def make_gguf(path: Path, *special: str) -> Path:
    """A GGUF file with one small tensor and a tokenizer of some words; `special` are its control tokens."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(str(path), "llama")
    words = ["<s>", "who", "?", *special]
    writer.add_token_list(words)
    writer.add_token_types([3, 1, 1, *[3] * len(special)])
    writer.add_context_length(64)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
