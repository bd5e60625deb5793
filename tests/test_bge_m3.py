"""BGE-M3's dense vectors beside FlagEmbedding's, where that is installed: a tiny model of its architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.embed import Encoder
from indexes.encoders import Overrides, read_spec
from tests.indexing import PASSAGES


def make_m3(folder: Path) -> Path:
    """XLM-RoBERTa with random weights in a plain transformers folder, known by its name as the hub's are."""
    import torch
    from transformers import BertTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(0)
    letters = [chr(c) for c in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, model_max_length=512)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = XLMRobertaConfig(
        vocab_size=len(words), pad_token_id=0, max_position_embeddings=514, type_vocab_size=2, **sizes
    )
    XLMRobertaModel(config).save_pretrained(folder)
    return folder


def test_its_pooling_and_prefixes_are_known_by_its_name(tmp_path: Path) -> None:
    spec = read_spec(str(tmp_path / "bge-m3"), make_m3(tmp_path / "bge-m3"), Overrides())
    assert (spec.pooling, spec.query_prefix, spec.passage_prefix, spec.max_length) == ("cls", "", "", 512)


@pytest.mark.slow
def test_dense_vectors_are_those_of_flagembedding(tmp_path: Path) -> None:
    flag = pytest.importorskip("FlagEmbedding")
    folder, texts = make_m3(tmp_path / "bge-m3"), [text for _, _, text in PASSAGES]
    ours = Encoder(folder, read_spec(str(folder), folder, Overrides()))
    theirs = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu").encode(texts)["dense_vecs"]
    for found in (ours.encode_passages(texts), ours.encode_queries(texts)):
        assert np.abs(found - theirs).max() < 1e-5
