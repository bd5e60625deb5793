"""Small real models, made on the spot."""

from __future__ import annotations

from pathlib import Path


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
    BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=128,
        )
    ).save_pretrained(plain)
    modules = [Transformer(str(plain), max_seq_length=64), Pooling(16, pooling_mode="cls"), Normalize()]
    SentenceTransformer(modules=modules, prompts={"query": "find: "}, device="cpu").save(str(folder / "encoder"))
    return folder / "encoder"
