"""Rows of published models' templates: prompts as inference sends them, replies as it produces them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException

from steprag.agent.profiles import PROFILES, load_profile
from steprag.engines.reasoning import split
from steprag.engines.templates import as_parts
from steprag.engines.tokens import prompt_tokens, reply_tokens, write_stops
from steprag.engines.transformers_serve import render_as_trained, stop_at_turns
from steprag.errors import ConfigError
from steprag.policy.scoring import EndpointScorer
from steprag.records.jsonl import read_json
from steprag.runs.run import read_manifest
from steprag.types import State
from tests.models import TEMPLATE, make_tokenizer, make_weights
from tests.template_gallery import GALLERY
from tests.training_parts import pair_row, reply, step_row, train, write
from training.parity import checked_tokens
from training.rows import read_file

pytest.importorskip("transformers")
TEXTS = [json.dumps(pair_row(n)) for n in range(20)]
SAID = (
    "I need the town. So the next query is <query> a </query>",
    " So <answer> 1 </answer>\n",
    "<think>Hm.</think>\n\nSo <answer> ünï → 2 </answer>",
)


Checked = tuple[list[Any], list[Any], dict[str, list[int]]]


def checked(made: list[dict[str, Any]], tokenizer: Any, folder: Path) -> Checked:
    """Rows of DPO as read and as tokens, and why others are left out, by their numbers."""
    left_out: dict[str, list[int]] = {}
    rows = read_file(write(folder / "rows.jsonl", made), "dpo")
    return rows, checked_tokens(rows, tokenizer, 2000, left_out), left_out


@pytest.mark.parametrize("name", GALLERY)
def test_published_templates(name: str, tmp_path: Path) -> None:
    """Prompt, the text's own ids, the end: what inference samples, whatever the template does to earlier turns."""
    model = GALLERY[name]
    tokenizer = model.tokenizer(tmp_path)
    history = [*model.prompt(3), *reply(SAID[0]), {"role": "user", "content": "Go on."}]
    made = [{**pair_row(n), "prompt": model.prompt(n), "chosen": reply(text)} for n, text in enumerate(SAID)]
    rows, tokens, left_out = checked([*made, {**pair_row(3), "prompt": history}], tokenizer, tmp_path)
    assert not left_out
    opens, closes = (tokenizer.encode(text, add_special_tokens=False) for text in (model.opens, model.closes))
    stops = {*tokenizer.convert_tokens_to_ids([*model.ends, model.eos]), closes[-1]}
    for row, seen in zip(rows, tokens, strict=True):
        chat: Any = as_parts(row.prompt) if model.parts else list(row.prompt)
        sent = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **model.kwargs)
        assert seen.prompt == tokenizer.encode(sent, add_special_tokens=False)
        for said, ids in zip(row.completions, seen.completions, strict=True):
            before, text = opens, said["content"]
            if "</think>" in model.opens and "</think>" in text:  # a thought that the prompt has opened
                before, text = [], text.removeprefix("<think>")
            assert ids == [*before, *tokenizer.encode(text, add_special_tokens=False), *closes]
            assert tokenizer.decode(ids[len(before) : len(ids) - len(closes)]) == text
            said_again = split(str(tokenizer.decode(ids[: len(ids) - len(closes)])))[1].strip()
            assert said_again.endswith(text.split("\n\n")[-1].strip())
            assert [place for place, token in enumerate(ids) if token in stops] == [len(ids) - 1]


@pytest.mark.parametrize(("opens", "before"), [
    ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
    ("<|im_start|>assistant\n<think>", "</think>"),  # DeepSeek-V3.1, GLM-4.7
    ("<|im_start|>assistant\n</think>", ""),  # DeepSeek-V3.1, not thinking
    ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
    ("<|im_start|>assistant\n<seed:think>\nSo, ", "</seed:think>"),
    ("Think in <think> first.<|im_end|>\n<|im_start|>assistant\n", ""),  # the user's word
])  # fmt: skip
def test_a_thought_that_the_prompt_opens_is_closed_before_the_reply(opens: str, before: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, TEXTS, TEMPLATE.replace("<|im_start|>assistant\n", opens))
    (said,) = reply("A step.")
    ids = reply_tokens(GALLERY["Qwen3"].prompt(1), said, tokenizer)
    assert tokenizer.decode(ids) == f"{before}A step.<|im_end|>"


@pytest.mark.parametrize("name", ["Qwen2.5 base", "Gemma 3", "GLM-4", "DeepSeek-R1"])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_engines_and_checkpoints_stop_where_training_ends_a_turn(name: str, file: str, tmp_path: Path) -> None:
    model = GALLERY[name]
    tokenizer, out = model.tokenizer(tmp_path), tmp_path / "out"
    out.mkdir()
    (tmp_path / "generation_config.json").rename(tmp_path / file)
    end, told = tokenizer.convert_tokens_to_ids(model.closes), tokenizer.convert_tokens_to_ids(list(model.ends))
    write_stops(tokenizer, out)
    written = read_json(out / "generation_config.json")
    assert written["eos_token_id"] == (told if end in told else [end, *told])
    assert ("temperature" in written) == (file == "generation_config.json")
    settings = SimpleNamespace(eos_token_id=told[0] if len(told) == 1 else told or None)
    stop_at_turns(SimpleNamespace(generation_config=settings), tokenizer)
    assert end in settings.eos_token_id


@pytest.mark.parametrize(("name", "complaint"), [
    ("Gemma 2", "System role not supported"), ("Starling", "the chat template of .* leaves out system messages"),
])  # fmt: skip
def test_a_profile_without_a_system_message_suits_templates_that_show_none(
    name: str, complaint: str, tmp_path: Path
) -> None:
    words = (PROFILES / "transcript.yaml").read_text(encoding="utf-8")
    (tmp_path / "p.yaml").write_text(words + "system_role: user\n", encoding="utf-8")
    with_system, without = load_profile("transcript"), load_profile(str(tmp_path / "p.yaml"))
    tokenizer, state = GALLERY[name].tokenizer(tmp_path), State("Which town?")
    refused, taken = (profile.render(state, ("query", "answer")) for profile in (with_system, without))
    with pytest.raises(ConfigError, match=f"{complaint}; give a prompt profile with system_role: user"):
        prompt_tokens(refused, tokenizer)
    ((message),) = taken
    assert message["content"] == "\n\n".join(part["content"] for part in refused)
    assert message["content"].strip() in tokenizer.decode(prompt_tokens(taken, tokenizer))
    assert with_system.hash != without.hash


def test_the_role_of_system_messages_is_named_where_a_trial_shows_that_it_is_at_fault(tmp_path: Path) -> None:
    """Not where an error speaks of a system."""
    template = "{% if messages | length > 3 %}{{ raise_exception('the system is full') }}{% endif %}" + TEMPLATE
    tokenizer = make_tokenizer(tmp_path, ["who?"], template)
    with pytest.raises(ConfigError, match="the system is full$"):
        prompt_tokens([*GALLERY["Qwen3"].prompt(1), *reply("a"), {"role": "user", "content": "b"}], tokenizer)


def test_a_server_of_ours_renders_chats_as_training_does(tmp_path: Path) -> None:
    """transformers' own server gives a language model's template strings, whatever that wants."""
    for name in ("SmolVLM", "Starling", "Qwen3"):
        tokenizer = GALLERY[name].tokenizer(tmp_path / name)
        wanted = prompt_tokens(GALLERY[name].prompt(1), tokenizer)
        render_as_trained(tokenizer)
        for chat in (GALLERY[name].prompt(1), as_parts(GALLERY[name].prompt(1)))[: 1 + GALLERY[name].parts]:
            assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) == wanted
    starling = GALLERY["Starling"].tokenizer(tmp_path)
    render_as_trained(starling)
    with pytest.raises(HTTPException, match="400.*system_role: user"):
        starling.apply_chat_template(GALLERY["Qwen3"].prompt(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen2.5 base", "Llama 3.2", "GLM-4", "gpt-oss", "Qwen3 Thinking"])
def test_a_model_with_a_published_template_trains(
    name: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row of each file cannot be encoded: it is left out and said, and the run goes on."""
    model, data, base = GALLERY[name], tmp_path / "pairs", tmp_path / "base"
    shutil.copytree(pairs, data)
    bad = reply(f"A step.{model.closes} And more.")
    for file, row in (("sft", {**step_row(1), "completion": bad}), ("pairs", {**pair_row(1), "chosen": bad})):
        with (data / f"{file}.train.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
    tokenizer = model.tokenizer(base)
    make_weights(base, len(tokenizer))
    told = ["--chat_template_kwargs", json.dumps(model.kwargs), "--finetuning", "full", "--max_steps", "1"]
    for stage, start in (("sft", base), ("dpo", tmp_path / "sft")):
        out = tmp_path / stage
        assert train(start, data, out, stage, *told) == 0
        assert "1 of 17 rows are left out, not cut (1, first row 17: holds" in capsys.readouterr().err
        manifest = read_manifest(out)
        assert (manifest["rows"], [one["count"] for one in manifest["left_out"]]) == (16, [1])
        assert manifest.get("thought") == ("<think>" if name == "Qwen3 Thinking" else None)
        end = tokenizer.convert_tokens_to_ids(model.closes.partition(">")[0] + ">")
        assert end in read_json(out / "generation_config.json")["eos_token_id"]


def told_of(template: str, folder: Path, said: str = "A step.", **named: str) -> dict[str, list[int]]:
    """The reasons why rows of a ChatML model with this template are left out; the second row is a good one."""
    tokenizer = make_tokenizer(folder, TEXTS, template, **named)
    _, tokens, left_out = checked([{**pair_row(1), "chosen": reply(said)}, pair_row(2)], tokenizer, folder)
    assert len(tokens) == 2 - sum(map(len, left_out.values()))
    return left_out


@pytest.mark.parametrize(("template", "complaint"), [
    (TEMPLATE.replace("<|im_end|>", ""), r"ends no turn with a token such as <\|im_end\|>: .*eos_token_id"),
    (TEMPLATE.replace("m['content']", "m['content'] if m['role'] != 'assistant'"),
     "does not show what the assistant says"),
])  # fmt: skip
def test_a_template_without_ends_or_replies_is_refused(template: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        told_of(template, tmp_path)


@pytest.mark.parametrize(("template", "said", "reason"), [
    (TEMPLATE, "A step.<|im_end|> and more", "holds <|im_end|> within its text, where inference would stop"),
    ("{% if messages | length > 1 and 'number 1' in messages[1].content %}{{ raise_exception('no ones') }}{% endif %}"
     + TEMPLATE, "A step.", "cannot be used: no ones"),
    ("{% if '1' in messages[1].content %}{{ 1 + '1' }}{% endif %}" + TEMPLATE, "A step.", "unsupported operand"),
])  # fmt: skip
def test_a_row_that_cannot_be_encoded_is_left_out_and_counted(
    template: str, said: str, reason: str, tmp_path: Path
) -> None:
    ((told, numbers),) = told_of(template, tmp_path, said).items()
    assert reason in told
    assert numbers == [1]


@pytest.mark.parametrize(("vocabulary", "refused"), [("words", [2, 4]), ("lost", [1, 2, 3, 4])])
def test_no_row_is_trained_as_unknown_tokens(vocabulary: str, refused: list[int], tmp_path: Path) -> None:
    """Words that a vocabulary lacks become <unk>, or vanish where it was lost; blanks alone may differ."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<end>": 1, "user": 2, "assistant": 3, "a": 4, "step": 5, "other": 6}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>") if vocabulary == "words" else models.BPE(words, []))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown = "<unk>" if vocabulary == "words" else None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token=unknown, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }}<end>{% endfor %}"
    common = {"prompt": [{"role": "user", "content": "a"}], "rejected": reply("other")}
    said = ("a  step", "a stride", "step\n", "a <unk>")
    made = [{**pair_row(n), **common, "chosen": reply(text)} for n, text in enumerate(said)]
    ((reason, numbers),) = checked(made, tokenizer, tmp_path)[2].items()
    assert "no tokens for some of its characters" in reason
    assert numbers == refused


@pytest.mark.parametrize(("forms", "reason"), [
    (["NFC"], None), (["NFKC", "NFC"], None), ([], None), (["Lowercase"], "writes other characters than it was given"),
])  # fmt: skip
def test_a_reply_is_learnt_in_the_characters_that_were_sampled(
    forms: list[str], reason: str | None, tmp_path: Path
) -> None:
    """Of é the letter and its mark, of ﬁ the ligature, whichever form the tokenizer brings prompts into."""
    from tokenizers import normalizers

    tokenizer = make_tokenizer(tmp_path, TEXTS, TEMPLATE)
    steps = [getattr(normalizers, form)() for form in forms]
    tokenizer.backend_tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    said = "Cafe\u0301 of the \ufb01rst <answer> A\u030a </answer>"
    _, made, left_out = checked([{**pair_row(1), "chosen": reply(said)}, pair_row(2)], tokenizer, tmp_path)
    assert [reason and reason in told for told in left_out] == [True] * bool(reason)
    assert reason or tokenizer.decode(made[0].completions[0]).startswith(said)


def test_scores_of_sglang_are_asked_with_what_the_template_is_told(tmp_path: Path) -> None:
    """SGLang scores ids, so the prompt is rendered here."""
    published = GALLERY["Qwen3"]
    published.tokenizer(tmp_path)
    make_weights(tmp_path, words=500)
    sent: list[list[int]] = []

    async def post(path: str, body: dict[str, Any]) -> object:
        assert path == "/generate"
        sent.append(body["input_ids"])
        return {"meta_info": {"input_token_logprobs": [[-0.5, token, None] for token in body["input_ids"]]}}

    prompt = tuple(published.prompt(1))
    for kwargs in ({}, {"enable_thinking": False}):
        scorer = EndpointScorer("sglang", "m", str(tmp_path), post, kwargs)
        asyncio.run(scorer.score(prompt, " a"))  # pyright: ignore[reportArgumentType]
    assert len(sent[1]) > len(sent[0])
    assert sent[0] != sent[1][: len(sent[0])]
