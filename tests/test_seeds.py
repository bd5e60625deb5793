"""What the three published projects describe, line by line (`docs/seeds.md`), and what shows that it runs here."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import indexes.index_builder
from apps.commands import COMMANDS, main
from inference.config import InferConfig
from steprag.agent.profiles import PROFILES, load_profile
from steprag.config.load import add_options, config_from, parse_arguments
from steprag.config.recipes import recipe_named
from steprag.config.sections import PolicyConfig, engine_of
from steprag.config.words import options_meant
from steprag.console.terminal import guarded
from steprag.engines.launch import EngineSpec, command
from steprag.records.jsonl import read_records
from steprag.records.training_rows import Pair
from steprag.runs.run import read_manifest
from steprag.tree import Tree
from steprag.types import Prediction
from tests.fakes import QUESTION, WORLD, chat_reply, serve
from tests.indexing import write_corpus
from tests.test_documents import command_of, known_options

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seeds.md"


PROOFS = dict(line.split("\t") for line in Path(__file__).with_name("seeds.tsv").read_text("utf-8").splitlines())
"""By the line of the page, the test that shows it: `file::test`, or a case in a file's table."""


def test_every_row_of_the_page_is_shown_by_a_test_of_the_file_that_it_names() -> None:
    rows = [row.strip("| \n").split(" | ") for row in PAGE.read_text("utf-8").splitlines() if row.startswith("| ")]
    shown = {row[0].strip("`"): row[-1] for row in rows if row[-1] != "test"}
    assert shown.keys() == PROOFS.keys()
    for line, proof in PROOFS.items():
        file, _, name = proof.partition("::")
        assert file == shown[line]
        assert re.search(rf'(def |"){name}\b', (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")), proof


def test_what_the_page_says_to_type_is_there() -> None:
    """Every command, option, recipe and file of the middle column; a bare option is one of some command's."""
    told = " ".join(row.split(" | ")[1] for row in PAGE.read_text("utf-8").splitlines() if row.count(" | ") == 2)
    for code in re.findall(r"`(?:steprag )?([^`]+)`", told):
        command = command_of(code)
        for option in set(re.findall(r"--[a-z][\w.]*", code)) - {"--env"}:  # it may stand before every command
            known = [sorted(known_options(each)) for each in ([command] if command else ANY)]
            assert any(len(options_meant(option, each)) == 1 for each in known), code
        for recipe in re.findall(r"--config (\S+)", code):
            assert recipe_named(recipe, (command or "infer").split()[-1])
        for file in re.findall(r"(?:configs|scripts)/\S+", code):
            assert (ROOT / file).is_file()


ANY = ("infer", "train", "index build", "chat")
COMMIT = "c" * 40


def on_hub(cache: Path, kind: str, name: str, files: dict[str, bytes]) -> Path:
    """A repository as the hub's client keeps it; gives the folder of its commit."""
    home = cache / f"{kind}s--{name.replace('/', '--')}"
    for file, content in {
        "refs/main": COMMIT.encode(),
        **{f"snapshots/{COMMIT}/{n}": c for n, c in files.items()},
    }.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_bytes(content)
    return home / "snapshots" / COMMIT


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no hub; commands work in a folder of their own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "hub"


@pytest.fixture
def flashrag(cache: Path) -> Iterator[None]:
    """A question of every data set at the hub, and an index of words where FlashRAG's builder puts it."""
    row = {"id": "dev_0", "question": QUESTION, "golden_answers": ["lek"], "metadata": {}}
    splits = {"popqa": "test", **dict.fromkeys(("hotpotqa", "2wikimultihopqa", "musique", "nq", "triviaqa"), "train")}
    names = {"hotpotqa/dev.jsonl", *(f"{name}/{split}.jsonl" for name, split in splits.items())}
    on_hub(cache, "dataset", "RUC-NLPIR/FlashRAG_datasets", dict.fromkeys(names, json.dumps(row).encode() + b"\n"))
    corpus = write_corpus(Path("wiki.jsonl"), [(each.id, each.title, each.text) for each in WORLD])
    assert indexed(f"--retrieval_method bm25 --corpus_path {corpus}") == 0
    yield
    assert not list(ROOT.glob("indexes/bm25"))


def indexed(line: str) -> int:
    return guarded(indexes.index_builder.main, line.split())


def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs `python FILE …` in this process as it is typed; gives the exit code."""
    file, *words = line.split()[1:]
    monkeypatch.setattr(sys, "argv", [file, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / file), run_name="__main__")
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("flashrag")
def test_reasonrag_s_inference_line_is_typed_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The endpoint alone is told by the environment, as no model of 7B is here."""
    with serve(chat_reply()) as endpoint:
        monkeypatch.setenv("STEPRAG_POLICY__BASE_URL", endpoint.url)
        monkeypatch.setenv("STEPRAG_POLICY__ENGINE", "openai")
        line = "python inference.py --dataset_name hotpotqa --model X --max_iter 8 --retrieval_top_k 3"
        assert typed(f"{line} --", monkeypatch) == 0
    assert [one.id for one in read_records(Path("runs/infer-hotpotqa/predictions.jsonl"), Prediction)] == [
        "hotpotqa/dev_0"
    ]
    config = read_manifest(Path("runs/infer-hotpotqa"))["config"]
    assert (config["episode"]["depth"], config["episode"]["top_k"], config["policy"]["model"]) == (9, 3, "X")
    assert "index: indexes/bm25, the newest under runs or indexes" in capsys.readouterr().err


@pytest.mark.usefixtures("flashrag")
@pytest.mark.parametrize("name", ["hotpotqa", "popqa", "2wikimultihopqa", "musique", "nq", "triviaqa"])
def test_reasonrag_s_generation_lines_are_typed_as_they_stand(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that has a recipe is asked with it: its worked examples, its prices. The pairs follow, as published."""
    monkeypatch.setenv("STEPRAG_SEARCH__ROLLOUTS", "2")
    with serve(chat_reply()) as endpoint:
        monkeypatch.setenv("STEPRAG_POLICY__BASE_URL", endpoint.url)
        assert typed(f"python data_generation.py --dataset_name {name} --model gpt-4o", monkeypatch) == 0
    manifest = read_manifest(Path(f"runs/generate-{name}"))
    assert manifest["config"]["policy"]["engine"] == "openai"
    assert (manifest["config"]["prompt"]["examples"], manifest["status"]) == (2, "done")
    assert manifest["config"]["policy"]["price"]["prompt"]
    assert "is --config reasonrag" in capsys.readouterr().err
    if name in ("hotpotqa", "popqa", "2wikimultihopqa"):
        assert typed("python preference_data_generation.py --products sft", monkeypatch) == 0
        assert read_manifest(Path(f"runs/generate-{name}/pairs"))["config"]["preset"] == "reasonrag"
        assert "unpaid_from" not in capsys.readouterr().err
        more = f"runs/generate-{name} --products sft --out runs/p --label.unpaid_from 9"
        assert typed(f"python preference_data_generation.py {more}", monkeypatch) == 0
        assert "bound was 7 steps; give --label.unpaid_from 6, not 9" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "engine"), [
    ("gpt-4o", "openai"), ("chatgpt-4o-latest", "openai"), ("o3-mini", "openai"), ("gpt-oss-20b", None),
    ("Qwen/Qwen2.5-7B-Instruct", "transformers"), ("weights", "transformers"), ("adapter", "transformers"),
    ("ours", None), ("smollm2-135m-instruct", None), ("x.gguf", None), ("n" * 5000, None), ("odd", None),
])  # fmt: skip
def test_a_model_s_name_says_what_serves_it(
    model: str, engine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("STEPRAG_VLLM", raising=False)
    for folder, base in (
        ("weights", None),
        ("adapter", "a/b"),
        ("ours", "cache/SmolLM2-135M-Instruct"),
        ("odd", f"a/{'é' * 200}"),
    ):
        file = Path(folder, "adapter_config.json" if base else "config.json")
        file.parent.mkdir()
        file.write_text(json.dumps({"base_model_name_or_path": base}))
    if (ROOT / ".venv-vllm").exists():
        pytest.skip("vLLM is in this checkout")
    assert engine_of(model) == engine
    assert PolicyConfig(model=model).engine == (engine or "llamacpp")
    Path("vllm").touch()
    monkeypatch.setenv("STEPRAG_VLLM", "vllm")
    assert engine_of(model) == ("vllm" if engine == "transformers" else engine)
    assert PolicyConfig(model=model, base_url="http://127.0.0.1:1/v1").engine == "llamacpp"


def by_flashrag(folder: Path, texts: list[str], before: str, pooling: str, half: bool) -> np.ndarray:
    """Its encoder's arithmetic: words before the contents, the model, pooling over the mask, length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    model = model.half() if half else model
    asked = tokenizer(
        [before + text for text in texts], max_length=64, padding=True, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        hidden, mask = model(**asked).last_hidden_state, asked["attention_mask"][..., None]
        pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1).float().numpy()


@pytest.mark.parametrize(("method", "row", "more", "before", "pooling"), [
    ("bge", '{"id": "%d", "contents": "\\"Tirana\\"\\n%s"}', "--use_fp16 --pooling_method mean", "", "mean"),
    ("BGE", '{"id": %d, "contents": "Tirana\\n%s"}', "", "", "cls"),
    ("e5", '{"id": "%d", "title": "Tirana", "text": "%s"}', "--pooling_method mean", "passage: ", "mean"),
    ("contriever", '{"id": "%d", "contents": "Tirana\\n%s"}', "--instruction find:", "find: ", "cls"),
])  # fmt: skip
def test_flashrag_s_builder_gives_the_vectors_of_its_arithmetic(
    method: str, row: str, more: str, before: str, pooling: str, encoder: Path, tmp_path: Path
) -> None:
    """The nine flags as its page has them. Compared once with FlashRAG 0.3.0.dev20260919 itself: the same vectors."""
    import faiss

    texts = [f"It is the capital of Albania {'and so on ' * n}." for n in range(9)]
    corpus = tmp_path / "wiki18.jsonl"
    corpus.write_text("".join(row % (number, text) + "\n" for number, text in enumerate(texts)))
    flags = f"--retrieval_method {method} --model_path {encoder} --corpus_path {corpus} --save_dir {tmp_path}/indexes/"
    assert indexed(f"{flags} {more} --max_length 64 --batch_size 256 --faiss_type Flat") == 0
    file = tmp_path / f"indexes/{method.lower()}_Flat.index"
    stored = faiss.read_index(str(file))
    found = stored.reconstruct_n(0, stored.ntotal)
    told = json.loads(corpus.read_text().splitlines()[0])
    head = told["contents"].partition("\n")[0] + "\n" if "contents" in told else ""
    wanted = by_flashrag(encoder, [head + text for text in texts], before, pooling, "fp16" in more)
    assert np.abs(found - wanted).max() < 2e-3, "half precision"
    folder = file.with_suffix("")
    assert main(["check", str(folder)]) == 0
    assert main(["index", "search", "--index", str(folder), "capital"]) == 0


@pytest.mark.parametrize(("flags", "told"), [
    ("--faiss_type HNSW32", "give --faiss_type hnsw-sq8"),
    ("--faiss_type IVF4096,SQ8", "give --faiss_type ivf-sq8"),
    ("--pooling_method pooler", "pooling 'pooler' is not known"),
    ("--embedding_path emb.memmap", "--embedding_path is a file of bare vectors; steprag index adopt"),
    ("--index_modal image", "--index_modal is for pictures"),
    ("--n_postings 1000", "--n_postings is for SPLADE"),
    ("--use_fp8", "unknown option '--use_fp8'; did you mean '--use_fp16'?"),
    ("--corpus_path nowhere.jsonl", "nowhere.jsonl"),
])  # fmt: skip
def test_flags_of_flashrag_that_are_not_for_here_name_what_is(
    flags: str, told: str, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    assert indexed(f"--retrieval_method bge --model_path {encoder} --corpus_path {corpus} {flags}") == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "indexes").exists()


def words_of(profile: str, turn: str) -> str:
    return yaml.safe_load((PROFILES / f"{profile}.yaml").read_text())["turns"][turn]["system"]


TURNS = {"start": "start", "evidence": "evidence", "reasoning": "query|answer"}


def published_rows(count: int) -> list[dict[str, Any]]:
    """Rows as the published file has them, three a question (a query, evidence, an answer), with the oddities of
    some: no reward's trace, actions across types, an action that is none, a quotation mark in a title, a null.
    """
    rows = []
    kinds = ("Query Generation", "Evidence Extraction", "Answer Generation", "Other")
    for number in range(count):
        asked = f"Question: Who wrote the novel number {number}?"
        first = f"The author is not known yet. So the next query is <query>author of novel {number}</query>"
        thoughts = f"{asked}\nPrevious Thoughts: {first}"
        shown = (
            f'Wikipedia Title: "Novel {number}"\nA novel by Ann "Nan" Lee.\n\nWikipedia Title: "Other"\nAnother.\n\n'
        )
        rows += [
            ("start", asked, first, "So the answer is <answer>unknown</answer>", 0, 2),
            ("evidence", f"{thoughts}. Reference: <reference>{shown}</reference>",
             "Based on the query, the relevant evidence is <evidence>by Ann Lee</evidence>.",
             "<evidence>None</evidence>.", 1, 1),
            ("reasoning", f"{thoughts} <evidence>by Ann Lee</evidence>.", "So the answer is <answer>Ann Lee</answer>",
             "I cannot tell." if number % 2 else "So the next query is <query>Ann</query>", 2, 3 if number % 2 else 0),
        ]  # fmt: skip
    made = []
    for turn, user, chosen, rejected, better, worse in rows:
        system = words_of("reasonrag", TURNS[turn])
        inner = [match[1].strip() if (match := re.search(r"<\w+>(.*?)</", text)) else "" for text in (chosen, rejected)]
        made.append({"instruction": system, "input": user, "prompt": f"System: {system}\nUser: {user}",
                     "chosen": chosen, "rejected": rejected, "chosen_content": inner[0],
                     "chosen_action_type": kinds[better], "rejected_action_type": kinds[worse],
                     "rejected_content": inner[1], "layer": [*TURNS].index(turn)})  # fmt: skip
    return made


def test_the_published_pairs_come_from_the_hub_with_the_prompts_that_are_shipped(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*published_rows(12), {**published_rows(1)[0], "rejected_content": None}]
    files = {"RAG_ProGuide.json": json.dumps(rows, indent=2).encode(), "README.md": b"---\nlicense: x\n---\n"}
    on_hub(cache, "dataset", "reasonrag/RAG_ProGuide", files)
    assert main(["pairs", "import", "hub:reasonrag/RAG_ProGuide", "--validation", "0"]) == 0
    out = Path("runs/pairs-RAG_ProGuide")
    counts = read_manifest(out)["counts"]
    assert (counts["rows"], counts["refused"], counts["prompts_byte_for_byte"]) == (37, 1, 36)
    made, shipped = load_profile(str(out / "rag_proguide.yaml")), load_profile("reasonrag")
    for turn in TURNS.values():
        assert made.words.turns[turn] == shipped.words.turns[turn]
    assert made.words.passage == shipped.words.passage
    pairs = list(read_records(out / "pairs.train.jsonl", Pair))
    assert {pair.prompt[0]["content"] for pair in pairs} == {words_of("reasonrag", turn) for turn in TURNS.values()}
    capsys.readouterr()
    for files, told in (({"a.json": b"[]", "b.json": b"[]"}, "it has a.json, b.json"), ({}, "not on this machine")):
        if files:
            on_hub(cache, "dataset", "me/two", files)
        assert main(["pairs", "import", "hub:me/two" if files else "hub:me/none"]) == 2
        assert told in capsys.readouterr().err


CHECKPOINT, LORA = "reasonrag/Qwen2.5-7B-Instruct-ReasonRAG", "wlzhang98/Qwen2.5-7B-Instruct-RAG-Lora"


@pytest.mark.usefixtures("flashrag")
@pytest.mark.parametrize(("words", "recipe"), [
    ("--config reasonrag", None), (f"--model {CHECKPOINT}", "reasonrag.yaml"),
    (f"--model {LORA}", "reasonrag-lora.yaml"),
])  # fmt: skip
def test_a_published_id_chooses_the_published_recipe_and_prompts(
    words: str, recipe: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first step, its evidence, its answer, with the words and in the order that it was trained on."""
    seen: list[list[dict[str, str]]] = []

    def reply(request: dict[str, Any]) -> tuple[int, object]:
        seen.append(request["messages"])
        said = ("So the next query is <query>Albania</query>", "<evidence>None</evidence>.",
                "So the answer is <answer>lek</answer>")  # fmt: skip
        return chat_reply(lambda prompt, draw: said[len(seen) - 1])(request)

    with serve(reply) as endpoint:
        monkeypatch.setenv("STEPRAG_POLICY__BASE_URL", endpoint.url)
        monkeypatch.setenv("STEPRAG_POLICY__ENGINE", "openai")
        assert typed(f"python inference.py --dataset_name hotpotqa {words}", monkeypatch) == 0
    assert [messages[0]["content"] for messages in seen] == [words_of("reasonrag", turn) for turn in TURNS.values()]
    assert seen[1][1]["content"].startswith(
        f"Question: {QUESTION}\nPrevious Thoughts: So the next query is <query>Albania"
    )
    assert 'Reference: <reference>Wikipedia Title: "' in seen[1][1]["content"]
    assert seen[1][1]["content"].endswith("\n\n</reference>")
    (found,) = read_records(Path("runs/infer-hotpotqa/predictions.jsonl"), Prediction)
    assert found.prediction == "lek"
    config, said = read_manifest(Path("runs/infer-hotpotqa"))["config"], capsys.readouterr().err
    assert (config["policy"]["model"], config["episode"]["depth"]) == (words.split()[-1] if recipe else CHECKPOINT, 9)
    assert (f"{recipe}, which is that of --model" in said) == bool(recipe)
    assert "warning: reasonrag" not in said


@pytest.mark.parametrize(("words", "model", "adapter", "depth"), [
    (f"--model {LORA}", "Qwen/Qwen2.5-7B-Instruct", LORA, 9),
    (f"--adapter {LORA} --max-iter 3", "Qwen/Qwen2.5-7B-Instruct", LORA, 4),
    (f"--model {LORA} --base_url http://127.0.0.1:9/v1", LORA, None, 9),
    (f"--model models--reasonrag--{CHECKPOINT[10:]}/snapshots/c --max_iter=0", None, None, 1),
    (f"--model {CHECKPOINT}-mine", None, None, 7),
    (f"--model {CHECKPOINT}.Q8.gguf", None, None, 7),
])  # fmt: skip
def test_a_published_adapter_is_put_on_its_base(
    words: str, model: str | None, adapter: str | None, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser(prog="steprag infer")
    add_options(parser, InferConfig)
    config = config_from(InferConfig, parse_arguments(parser, words.split()))
    assert (config.policy.model, config.policy.adapter) == (model or words.split()[1], adapter)
    assert (config.episode.depth, config.prompt.profile) == (depth, "transcript" if depth == 7 else "reasonrag")
    if words == f"--model {LORA}":
        assert config.policy.engine == engine_of("Qwen/Qwen2.5-7B-Instruct"), "as without the recipe"
        monkeypatch.setenv("STEPRAG_VLLM", __file__)
        assert config_from(InferConfig, parse_arguments(parser, words.split())).policy.engine == "vllm"


@pytest.mark.usefixtures("flashrag")
def test_the_published_loop_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's prompt is that of the released code, to the letter; its sampling too."""
    with serve(chat_reply(lambda prompt, draw: "Too short. So the score is [45]." if "Process" in prompt else
                          "So the answer is <answer>lek</answer>")) as endpoint:  # fmt: skip
        for section in ("POLICY", "JUDGE"):
            monkeypatch.setenv(f"STEPRAG_{section}__BASE_URL", endpoint.url)
        assert typed("python data_generation.py --dataset_name popqa --config reasonrag", monkeypatch) == 0
    config = read_manifest(Path("runs/generate-popqa"))["config"]
    assert (config["episode"]["depth"], config["search"]["rollouts"], config["search"]["children"]) == (8, 64, 2)
    policy, judge = endpoint.requests[:2]
    assert policy["messages"][0]["content"] == words_of("reasonrag", "start")
    assert hashlib.sha256(judge["messages"][0]["content"].encode()).hexdigest()[:16] == "571357d8c12fb46c"
    assert judge["messages"][1]["content"] == (
        f"Question: {QUESTION}\nGolden Answer: lek\nAgent Reasoning Process: So the answer is <answer>lek</answer>"
    )
    for request in (policy, judge):
        assert (request["temperature"], request["max_tokens"], request.get("response_format")) == (1.0, 256, None)
    (tree,) = read_records(Path("runs/generate-popqa/trees.jsonl"), Tree)
    assert tree.nodes[1].judge == {"score": 0.45, "text": "Too short. So the score is [45]."}


def test_the_published_adapter_is_served_from_the_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import save

    recipe = yaml.safe_load((ROOT / "configs/inference/reasonrag-lora.yaml").read_text())["policy"]
    config = {"r": 16, "peft_type": "LORA", "base_model_name_or_path": recipe["model"]}
    weights = save({"base_model.model.q_proj.lora_A.weight": np.ones((16, 4), dtype=np.float32)})
    files = {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": weights}
    folder = on_hub(cache, "model", recipe["adapter"], files)
    monkeypatch.setenv("STEPRAG_VLLM", sys.executable)
    argv = command(EngineSpec(recipe["engine"], recipe["model"], recipe["adapter"])).argv
    assert recipe["model"] in argv
    assert json.loads(argv[argv.index("--lora-modules") + 1])["path"] == str(folder.resolve())
    shutil.rmtree(cache)
    with pytest.raises(Exception, match=r"adapter 'reasonrag/.*': not on this machine"):
        command(EngineSpec(recipe["engine"], recipe["model"], recipe["adapter"]))


TYPED: Sequence[str] = """
pairs import hub:reasonrag/RAG_ProGuide
pairs export --pairs runs/pairs-RAG_ProGuide --format llamafactory
score lengths runs/pairs-RAG_ProGuide
plan train --pairs runs/pairs-RAG_ProGuide --config qwen2.5-7b-dpo --device h100 --devices 8
plan train --config qwen2.5-32b-grpo --device h100 --devices 2
infer --dataset_name hotpotqa --prompt.profile stack --policy.model double
generate --dataset_name musique --prompt.profile stack --policy.model double
pairs --trees runs/generate-musique --preset reasonrag --products sft
score judge --predictions runs/infer-hotpotqa --model double
score evaluate --predictions runs/infer-hotpotqa
""".strip().splitlines()
"""Lines of the page's middle column, in an order in which each finds what it reads."""


@pytest.mark.usefixtures("flashrag")
def test_lines_of_the_page_are_typed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_hub(cache, "dataset", "reasonrag/RAG_ProGuide", {"RAG_ProGuide.json": json.dumps(published_rows(12)).encode()})
    with serve(chat_reply(lambda prompt, _: "yes" if "Right?" in prompt else "<answer> lek </answer>")) as endpoint:
        for section in ("POLICY", "JUDGE"):
            monkeypatch.setenv(f"STEPRAG_{section}__BASE_URL", endpoint.url)
            monkeypatch.setenv(f"STEPRAG_{section}__ENGINE", "openai")
        for line in TYPED:
            assert main(line.split()) == 0, (line, capsys.readouterr().err)


def test_the_memory_stack_s_row_is_one_script() -> None:
    """Its commands are commands of ours with options that they have; it runs on request, for some minutes."""
    text = (ROOT / "scripts/stack_row.sh").read_text().replace("\\\n", " ")
    typed_lines = re.findall(r"^ *steprag (.+)$", text, re.MULTILINE)
    assert {line.split(" -")[0] for line in typed_lines} >= {"tools list", "train", "infer", "score judge"}
    for line in typed_lines:
        words = next(one.words for one in COMMANDS if line.startswith(one.words))
        known = sorted(known_options(words))
        assert [each for each in re.findall(r"--[a-z_.]+", line) if len(options_meant(each, known)) != 1] == [], words
