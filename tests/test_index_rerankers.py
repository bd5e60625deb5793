"""Cross-encoders as they are published: scores are those of sentence-transformers, and what cannot rank is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.ranking.cross_encoder import TEMPLATES, CrossEncoder, score_in_float32
from steprag.errors import ConfigError
from tests.models import make_llama, make_published

QUERY, TEXTS = "who made it?", ["Kepler", "The violin has four strings and is played with a bow.", "no"]


CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Qwen3-Reranker's prefix, pair and suffix, byte for byte."""


def language_model(folder: Path) -> Path:
    return make_llama(folder, ["yes", "no", "yes\nno", "Judge whether the Document meets the requirements"] * 9)


def scored(folder: Path, texts: list[str] = TEXTS) -> np.ndarray:
    """By our cross-encoder."""
    ours = CrossEncoder(str(folder))
    ours.load()
    return ours.score(QUERY, texts)


def test_a_classification_head(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from sentence_transformers import CrossEncoder as Theirs
    from transformers import BertConfig, BertForSequenceClassification

    folder = make_published(tmp_path / "bge-reranker-base", encoder, pooling=None)
    BertForSequenceClassification(BertConfig.from_pretrained(folder, num_labels=1)).save_pretrained(folder)
    assert scored(folder, ["bread " * 400, "bread " * 300]).shape == (2,)  # more tokens than positions
    assert capsys.readouterr().err.count("is longer than the 64 tokens that the reranker reads") == 1
    theirs = Theirs(str(folder), device="cpu", activation_fn=torch.nn.Identity())
    assert np.allclose(scored(folder), theirs.predict([(QUERY, text) for text in TEXTS]), atol=1e-6)


def test_a_language_model_of_a_known_family_says_yes_or_no(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = language_model(tmp_path / "Qwen3-Reranker-0.6B")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    (template,) = TEMPLATES.values()
    wanted = []
    for text in TEXTS:
        messages = [{"role": "query", "content": QUERY}, {"role": "document", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        assert prompt == CARD.format(query=QUERY, document=text)
        with torch.inference_mode():
            logits = model(**tokenizer(prompt, add_special_tokens=False, return_tensors="pt")).logits[0, -1]
        yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
        wanted.append(float(logits[yes] - logits[no]))
    assert np.allclose(scored(folder), wanted, atol=1e-5)


def test_a_language_model_with_a_head_gets_its_familys_prompt(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    folder = language_model(tmp_path / "Qwen3-Reranker-0.6B-seq-cls")
    config = LlamaConfig.from_pretrained(folder, num_labels=1, pad_token_id=0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), LlamaForSequenceClassification.from_pretrained(folder)
    (template,) = TEMPLATES.values()
    pairs = [[{"role": "query", "content": QUERY}, {"role": "document", "content": text}] for text in TEXTS]
    prompts = [tokenizer.apply_chat_template(pair, chat_template=template, tokenize=False) for pair in pairs]
    with torch.inference_mode():
        wanted = [float(model.eval()(**tokenizer(prompt, add_special_tokens=False, return_tensors="pt")).logits)
                  for prompt in prompts]  # fmt: skip
    assert np.allclose(scored(folder), wanted, atol=1e-5)


@pytest.mark.parametrize(("labels", "right"), [(None, 1), (("no", "yes"), 1), (("relevant", "irrelevant"), 0)])
def test_two_labels_are_one_score(labels: tuple[str, str] | None, right: int, encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Theirs
    from transformers import BertConfig, BertForSequenceClassification

    folder = make_published(tmp_path / "monobert", encoder, pooling=None)
    named = {"id2label": dict(enumerate(labels))} if labels else {"num_labels": 2}
    BertForSequenceClassification(BertConfig.from_pretrained(folder, **named)).save_pretrained(folder)
    logits = np.asarray(Theirs(str(folder), device="cpu").predict([(QUERY, text) for text in TEXTS]))
    assert np.allclose(scored(folder), logits[:, right] - logits[:, 1 - right], atol=1e-6)


def test_a_language_model_whose_folder_says_how_it_ranks(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    folder = language_model(tmp_path / "model")
    own = Theirs(str(folder), device="cpu")
    own.save(str(tmp_path / "own"))
    assert scored(tmp_path / "own").shape == (3,)
    (tmp_path / "own" / "chat_template.jinja").write_text("{{ messages[0].role }}")
    with pytest.raises(ConfigError, match="chat template"):
        CrossEncoder(str(tmp_path / "own")).load()


def test_what_cannot_rank_is_refused(encoder: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    chat = language_model(tmp_path / "chat")
    plain = make_published(tmp_path / "plain", encoder, pooling=None)
    jina = make_published(tmp_path / "jina-reranker-v2", encoder, pooling=None, auto_map={"AutoModel": "m.XlmFlash"})
    for folder, said in (
        (chat, "'LlamaForCausalLM'.* no classification head"), (plain, "'BertModel'"), (encoder, "'BertModel'"),
        (jina, "Python code of its own .m.XlmFlash"), (tmp_path, "no safetensors|no config.json"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            CrossEncoder(str(folder))
    BertForSequenceClassification(BertConfig.from_pretrained(plain, num_labels=3)).save_pretrained(plain)
    with pytest.raises(ConfigError, match="has 3 labels .'label_0', .* which one ranks"):
        CrossEncoder(str(plain))
    headless = make_published(tmp_path / "e", encoder, pooling=None, architectures=["BertForSequenceClassification"])
    with pytest.raises(ConfigError, match="lacks .* weights of its architecture .classifier.weight"):
        CrossEncoder(str(headless)).load()


def test_a_reranker_saved_in_bfloat16_tells_passages_apart(encoder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

    folder = make_published(tmp_path / "r", encoder, pooling=None)
    model = BertForSequenceClassification(BertConfig.from_pretrained(folder, num_labels=1))
    model.classifier.bias.data += 4  # so that its scores are as large as trained ones
    model.bfloat16().save_pretrained(folder)
    assert len(set(scored(folder, [f"word {n}" for n in range(30)]).tolist())) > 9
    half = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto").eval()
    score_in_float32(half)
    ids = torch.arange(5, 65).reshape(30, 2)
    found = half(input_ids=ids).logits
    assert (half.dtype, found.dtype) == (torch.bfloat16, torch.float32)
    assert len(set(found.flatten().tolist())) > 9


def test_a_reranker_that_reads_other_files_is_another(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "Qwen3-Reranker-0.6B")
    names = [CrossEncoder(str(folder)).hash]
    for file in ("README.md", "tokenizer_config.json"):
        (folder / file).write_text((folder / file).read_text() + "\n" if (folder / file).is_file() else "card")
        names.append(CrossEncoder(str(folder)).hash)
    assert names[0] == names[1] != names[2]
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds an adapter, which is not read here"):
        CrossEncoder(str(folder))
