"""Cross-encoders as they are published: scores are those of sentence-transformers, and what cannot rank is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.ranking.cross_encoder import TEMPLATES, CrossEncoder
from steprag.errors import ConfigError
from tests.models import make_llama, make_published

QUERY, TEXTS = "who made it?", ["Kepler", "The violin has four strings and is played with a bow.", "no"]


def language_model(folder: Path) -> Path:
    return make_llama(folder, ["yes", "no", "yes\nno", "Judge whether the Document meets the requirements"] * 9)


def scored(folder: Path, texts: list[str] = TEXTS) -> np.ndarray:
    """By our cross-encoder."""
    ours = CrossEncoder(str(folder))
    ours.load()
    return ours.score(QUERY, texts)


def test_a_classification_head(encoder: Path, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder as Theirs
    from transformers import BertConfig, BertForSequenceClassification

    folder = make_published(tmp_path / "bge-reranker-base", encoder, pooling=None)
    BertForSequenceClassification(BertConfig.from_pretrained(folder, num_labels=1)).save_pretrained(folder)
    assert scored(folder, ["bread " * 400]).shape == (1,)  # more tokens than positions
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
        assert f"\n<Query>: {QUERY}\n<Document>: {text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>" in prompt
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
