"""Parts of one's own: the page's examples as they stand there; a grammar in YAML, played by every stage; instruction
data as its steps; what strangers' functions and files are told where they are wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.commands import main
from apps.viewer.answers import Answers
from apps.viewer.folders import open_folders
from indexes import open_retriever
from indexes.corpora.documents import DocumentsConfig
from indexes.corpora.readers import open_source
from steprag.agent.grammars import GRAMMARS, OPENINGS
from steprag.agent.judge import prompt_of
from steprag.agent.profiles import grammar_of_tree, load_profile
from steprag.config.sections import JudgeConfig, RetrieverConfig
from steprag.console.terminal import guarded
from steprag.errors import ConfigError, RetrieverError, StepFormatError
from steprag.records.jsonl import read_json, read_records
from steprag.records.training_rows import Pair, Trajectory
from steprag.runs.run import read_manifest
from steprag.tree import Tree
from steprag.types import Completion, Passage, Prediction
from tests.chat_parts import WritingPolicy, chat, scripted
from tests.fakes import BY_ROLLOUTS, QUESTION, WORLD, chat_reply, options, serve
from tests.indexing import words_index
from tests.training_parts import FAST
from tests.viewing import shipped_run

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"
BLOCKS = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ALPACA = (
    {"instruction": "Name a colour.", "input": "", "output": "Red"},
    {"instruction": "Add.", "input": "2 and 3", "output": "2 plus 3 is 5.\n#### 5", "history": [["Hello", "Yes?"]]},
)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, in which commands are called."""
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    return tmp_path


def test_each_part_on_the_page_has_fifteen_lines_at_most() -> None:
    assert [len(block.splitlines()) for block in BLOCKS if len(block.splitlines()) > 15] == []


@pytest.mark.slow
def test_the_commands_of_the_page_run(parts: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped_run(parts / "runs" / "demo" / "trees", 3)
    words_index(parts, WORLD)
    (parts / "docs").mkdir()
    (parts / "docs" / "a.md").write_text("# Leave\n\nEveryone has thirty days.\n\nMore on request.\n")
    (parts / "alpaca.json").write_text(json.dumps(ALPACA, indent=2))
    (parts / "q.jsonl").write_text(json.dumps({"id": "q", "question": QUESTION, "golden_answers": ["lek"]}) + "\n")
    solve = scripted_by({"Right:": "yes", "working_out>": "<SOLUTION> lek </SOLUTION>"})
    with serve(chat_reply(solve)) as endpoint:
        asked = ["--policy.base_url", endpoint.url, "--policy.engine", "openai", "--policy.model", "double"]
        judged = ["--judge.base_url", endpoint.url, "--judge.engine", "openai", "--judge.model", "double"]
        more = {"ask": asked, "score": judged, "train": ["--model", str(tiny), "--max_steps", "2", *FAST]}
        played = "infer --questions q.jsonl --index my_search:find --prompt.profile solution.yaml --out runs/scored"
        assert main([*played.split(), *asked]) == 0
        for command in re.findall(r"^    steprag (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
            words = [word for word in shlex.split(command) if word not in ("--model", "smollm2-135m-instruct")]
            assert guarded(main, [*words, *more.get(words[0], [])]) == 0, command
    said = capsys.readouterr().out
    for words in ("Prices in Albania are quoted", "season", "<SOLUTION> lek </SOLUTION>"):
        assert words in said
    assert (parts / "runs" / "short" / "pairs.train.jsonl").stat().st_size
    assert read_json(parts / "runs" / "docs" / "manifest.json")["corpus"]["rows"] == 2
    trained = read_json(parts / "runs" / "solution" / "manifest.json")
    assert trained["prompt"]["grammar"]["keys"] == yaml.safe_load((parts / "solution.yaml").read_text())["grammar"]


def scripted_by(said: dict[str, str]) -> Any:
    """A script: the last of these texts whose mark stands in the prompt; then it thinks."""

    def script(prompt: str, draw: int) -> str:
        found = [text for mark, text in said.items() if mark in prompt]
        return found[-1] if found else "<start_working_out>\nIt is paid in lek.\n</start_working_out>"

    return script


SEARCHING = {
    "passage": "{title}: {text}",
    "grammar": {
        "actions": {
            "look_up": {"effect": "call"},
            "kept": {"tags": ["<start_working_out>", "<end_working_out>"], "lines": True},
            "SOLUTION": {"effect": "end"},
        },
        "order": {"start": ["look_up", "SOLUTION"], "look_up": ["kept"], "kept": ["look_up", "SOLUTION"]},
    },
}
"""Ten lines of YAML with the tags of Unsloth's GRPO notebooks, and a search."""


def solving(prompt: str, draw: int) -> str:
    """Looks up, keeps, and answers right or wrong, or writes without tags or with too many."""
    if "<look_up>" not in prompt:
        return ("<look_up> Albania </look_up>", "I do not know.", "<SOLUTION> <look_up> lek </look_up>")[draw % 3]
    if "<end_working_out>" not in prompt:
        return "<start_working_out> Prices in\nAlbania: lek. <end_working_out>"
    return ("<SOLUTION> lek </SOLUTION>", "<SOLUTION> sol </SOLUTION>")[draw % 2]


def test_every_stage_plays_a_grammar_of_ones_own(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parts / "own.yaml").write_text(yaml.safe_dump(SEARCHING, sort_keys=False))
    (parts / "q.jsonl").write_text("".join(
        json.dumps({"id": f"q{n}", "question": QUESTION, "golden_answers": ["lek"]}) + "\n" for n in range(4)
    ))  # fmt: skip
    profile = load_profile("own.yaml")
    own = ["--prompt.profile", "own.yaml", "--index", "my_search:find", "--policy.engine", "openai"]
    with serve(chat_reply(solving)) as endpoint:
        given = options(endpoint, Path("q.jsonl"), Path("i"), Path("trees"), *own)
        assert main(["generate", *given, "--search.rollouts", "4"]) == 0
    with serve(chat_reply(lambda prompt, draw: solving(prompt, 0))) as endpoint:
        assert main(["infer", *options(endpoint, Path("q.jsonl"), Path("i"), Path("scored"), *own)]) == 0
    (parts / "own.yaml").unlink()  # the runs hold the grammar
    assert main(["pairs", "--trees", "trees", "--out", "made", "--pairs.margin", "0.01", *BY_ROLLOUTS]) == 0
    trees, manifest = list(read_records(Path("trees/trees.jsonl"), Tree)), read_manifest("trees")
    assert {tree.grammar for tree in trees} == {profile.grammar.name}
    assert manifest["identity"]["grammar"] == profile.grammar.hash
    assert grammar_of_tree(trees[0], manifest) == profile.grammar
    rows = list(read_records(Path("made/pairs.train.jsonl"), Pair))
    assert {(row.action, row.prompt[-1]["content"].count("_out>")) for row in rows} >= {("SOLUTION", 2)}
    learnt = {row.action for row in read_records(Path("made/sft.train.jsonl"), Trajectory)}
    assert learnt == {"look_up", "kept", "SOLUTION"}
    assert {one.prediction for one in read_records(Path("scored/predictions.jsonl"), Prediction)} == {"lek"}
    forget(profile.grammar.name, monkeypatch)
    (told,) = Answers(open_folders(["trees", "scored", "made"])).quality("trees")["files"]
    by_action = {one["action"]: one for one in told["written"]["actions"]}
    assert by_action.keys() == {"look_up", "kept", "SOLUTION", "none"}
    assert by_action["SOLUTION"]["reasons"].keys() == {"several_actions"}


def forget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    for tag in [tag for tag in OPENINGS if tag in ("<look_up>", "<start_working_out>", "<SOLUTION>")]:
        monkeypatch.delitem(OPENINGS, tag)
    monkeypatch.delitem(GRAMMARS, name)


@pytest.mark.usefixtures("parts")
def test_the_chat_speaks_a_grammar_of_ones_own() -> None:
    policy = WritingPolicy(scripted("<start_working_out> Hm. </start_working_out>", "<SOLUTION> lek </SOLUTION>"))
    with chat(policy, profile="solution.yaml") as served:
        told = served.whole()
    assert [one["content"] for one in told if one["type"] in ("step.finished", "answer")] == ["Hm.", "lek", "lek"]


ENDS = {"SOLUTION": {"effect": "end"}}
AGAIN = {"a": {"effect": "call"}, "b": {}}


@pytest.mark.parametrize(("grammar", "message"), [
    ({}, "grammar: actions: field required"),
    ({"actions": {"a": {"effect": "jump"}}}, "actions.a.effect: input should be 'push', 'call'"),
    ({"actions": {"a": {}}}, "no episode would end: give an action the effect end"),
    ({"actions": {**AGAIN, **ENDS}, "order": {"start": ["a"], "a": ["b"], "b": ["a"]}}, "SOLUTION follows nothing"),
    ({"actions": {**AGAIN, **ENDS}, "order": {"start": ["a", "SOLUTION"], "a": ["b"], "b": ["a"]}}, "no way to an end"),
    ({"actions": {**AGAIN, **ENDS}, "order": {"start": ["a"], "a": ["SOLUTION"]}}, "order.b is missing"),
    ({"actions": {**AGAIN, **ENDS}, "order": {"start": ["a", "c"]}}, "order.start: 'c' is no action"),
    ({"actions": ENDS, "order": {"start": ["SOLUTION"], "SOLUTION": ["SOLUTION"]}}, "nothing follows the end"),
    ({"actions": {"a": {"effect": "pop"}, **ENDS}, "order": {"start": ["a"]}}, "neither pops nor folds"),
    ({"actions": {"a": {"tags": ["<x>", "</x>"]}, "x": {}, **ENDS}}, "tag <x> is ambiguous, as actions.a has it too"),
    ({"actions": {"a": {"tags": ["<x>", "<x>"]}, **ENDS}}, "tag <x> is ambiguous"),
    ({"actions": ENDS, "thought": {"tags": ["<SOLUTION>", "</s2>"]}}, "thought: the tag <SOLUTION> is ambiguous"),
    ({"actions": {"a": {"tags": ["**", "**"]}, **ENDS}}, "'**' is no tag like <name>"),
    ({"actions": {"a": {"tags": ["<start_of_turn>", "</a>"]}, **ENDS}}, "or is a chat template's; take another"),
    ({"actions": {"think": {}, **ENDS}}, "<think> is read as a model's reasoning; name it under thought"),
    ({"actions": {"a b": {}, **ENDS}}, "a name has letters, digits, - and _"),
    ({"actions": {"start": {}, **ENDS}}, "neither start nor none"),
    ({"actions": {"a": {"lead": "So <b>"}, **ENDS}}, "actions.a.lead: string should match"),
    ({"actions": {"a": {"chars": 5000}, **ENDS}}, "actions.a.chars: input should be less than or equal to 2000"),
    ("their.yaml", "their.yaml: not found"),
    ("nowhere", "unknown grammar 'nowhere'; known: cot, direct"),
])  # fmt: skip
def test_a_grammar_that_nobody_could_follow_is_refused(grammar: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"grammar": grammar}))
    with pytest.raises(ConfigError) as refusal:
        load_profile(str(tmp_path / "own.yaml"))
    assert str(tmp_path) in str(refusal.value)
    assert message in str(refusal.value)


def test_other_tags_or_another_order_make_other_prompts(tmp_path: Path) -> None:
    grammars = [SEARCHING["grammar"], {"actions": ENDS}, {"actions": {"a": {}, **ENDS}}, {"actions": {**ENDS, "a": {}}}]
    told = []
    for grammar in grammars:
        (tmp_path / "own.yaml").write_text(json.dumps({"grammar": grammar}))
        inline = load_profile(str(tmp_path / "own.yaml"))
        (tmp_path / "its.yaml").write_text(json.dumps(grammar))
        (tmp_path / "own.yaml").write_text(json.dumps({"grammar": "its.yaml"}))
        assert load_profile(str(tmp_path / "own.yaml")).hash == inline.hash, "by its file's content, not by its name"
        told.append((inline.hash, inline.grammar.name))
    assert len({hash for hash, _ in told}) == len({name for _, name in told}) == 4


@pytest.mark.parametrize(("allowed", "text", "action"), [
    ("look_up", "I need it. <look_up> the lek </look_up>", "look_up"),
    ("kept", "<start_working_out> 1 + 1\n= 2 <end_working_out>", "kept"),
    ("SOLUTION", "<SOLUTION> 2\n</SOLUTION>", "SOLUTION"),
    ("kept", "<start_working_out> x </start_working_out>", None),
    ("SOLUTION", "<start_working_out> x <end_working_out><SOLUTION> 2 </SOLUTION>", None),
])  # fmt: skip
def test_what_is_forced_is_what_is_parsed(allowed: str, text: str, action: str | None, parts: Path) -> None:
    (parts / "own.yaml").write_text(yaml.safe_dump(SEARCHING, sort_keys=False))
    grammar = load_profile("own.yaml").grammar
    assert bool(re.fullmatch(grammar.regex((allowed,)), text)) == (action is not None)
    rules = [line.split()[0] for line in grammar.gbnf(("look_up", "kept", "SOLUTION")).splitlines()]
    assert rules == ["root", "action0", "kept", "SOLUTION", "thought"], "llama.cpp's names have no _"
    if action:
        assert grammar.parse(Completion(text, "stop"), (allowed,)).action == action
    else:
        with pytest.raises(StepFormatError):
            grammar.parse(Completion(text, "stop"), (allowed,))


TAGGED = ["<start_working_out> 2 + 3 </start_working_out>", "<SOLUTION> 5 </SOLUTION>"]
SAID = [{"role": "user", "content": "Add"}, {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"}]


@pytest.mark.parametrize(("profile", "row", "wanted"), [
    ("solution.yaml", ALPACA[0], ["<SOLUTION> Red </SOLUTION>"]),
    ("solution.yaml", ALPACA[1], ["<SOLUTION> Yes? </SOLUTION>",
        "<start_working_out> 2 plus 3 is 5. </start_working_out>", "<SOLUTION> 5 </SOLUTION>"]),
    ("solution.yaml", {"instruction": "Add", "output": "".join(TAGGED)}, TAGGED),
    ("transcript", {"messages": SAID}, ["2 + 3 So the answer is <answer> 5 </answer>"]),
    ("search-r1", {"messages": SAID}, ["<think>2 + 3</think><answer> 5 </answer>"]),
    ("stack", {"messages": SAID}, ["<answer> 5 </answer>"]),
    ("direct", {"conversations": [{"from": "gpt", "value": "Hi!"}, {"from": "human", "value": "Add"},
        {"from": "gpt", "value": "<think>\n2 + 3\n</think>\n\n5\n6"}]}, ["<answer> 5 6 </answer>"]),
    ("solution.yaml", {"instruction": "Add", "output": " "}, "an empty output"),
    ("solution.yaml", {"instruction": " ", "output": "5"}, "an empty question"),
    ("solution.yaml", {"instruction": "Add", "output": "<think>2 + 3</think>"}, "reasoning without an answer"),
    ("solution.yaml", {"instruction": "Add", "output": "x <SOLUTION>"}, "refused by the grammar: several_actions"),
    ("solution.yaml", {"instruction": "Add", "output": "<|im_end|>"}, "refused by the grammar: control_token"),
    ("direct", {"instruction": "Add", "output": 5}, ["<answer> 5 </answer>"]),
    ("direct", {"messages": [*SAID[:1], {**SAID[1], "weight": 0}, *SAID]}, ["<answer> 5 </answer>"]),  # OpenAI
    ("direct", {"conversations": [{"from": "human", "value": "Add", "weight": 0.0}, {"from": "gpt", "value": "5",
        "weight": 1.0}]}, ["<answer> 5 </answer>"]),
    ("solution.yaml", {"messages": [*SAID[:1], {**SAID[1], "train": False}]}, "marked as context"),  # axolotl
    ("solution.yaml", {"instruction": "Add", "output": "5", "weight": "0.0"}, "marked as context"),
    ("solution.yaml", {"messages": [*SAID[:1], {**SAID[1], "mask": True}]}, "mask True is not clear: mark context"),
    ("solution.yaml", {"prompt": "Add", "completion": "5", "label": False}, "marked as a bad answer (label: false)"),
    ("solution.yaml", {"instruction": "Add", "chosen": "5", "rejected": "6"}, "of another form, preferences between"),
    ("solution.yaml", {"messages": SAID, "images": ["a.png"]}, "with images, which no step holds"),
    ("solution.yaml", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, *SAID[1:]]}, "a turn is a"),
    ("direct", {"conversation": SAID}, ["<answer> 5 </answer>"]),  # LMSYS
    ("direct", {"prompt": SAID[:1], "completion": SAID[1:]}, ["<answer> 5 </answer>"]),  # TRL
    ("transcript", {"conversations": [{"from": "user", "value": "Add"}, {"from": "assistant", "value":
        "<|begin_of_thought|>\n\n2 + 3\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n5\n<|end_of_solution|>"}]},
     ["2 + 3 So the answer is <answer> 5 </answer>"]),  # OpenThoughts
    ("solution.yaml", {"instruction": "Add", "output": "5", "history": [["Hi"]]}, "history is no list of"),
    ("direct", {"question": "Add", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}, ["<answer> 5 </answer>"]),
    ("solution.yaml", {"text": "Add: 5"}, "neither instruction and output nor messages"),
    ("solution.yaml", {"messages": [*SAID, *SAID[1:]]}, "question and reply do not take turns"),
    ("solution.yaml", {"messages": [*SAID[:1], {"role": "tool", "content": "5"}]}, "a turn is a tool's, or no text"),
    ("solution.yaml", {"instruction": "Add", "output": ["5", "6"]}, "2 replies, of which nothing says which one"),
    ("direct", {"instruction": "Add", "output": ["5"]}, ["<answer> 5 </answer>"]),
    ("solution.yaml", [1], "no object"),
])  # fmt: skip
def test_instruction_data_become_steps_of_any_grammar(
    profile: str, row: Any, wanted: list[str] | str, parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"instruction": "Wave.", "output": "So."}
    (parts / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (row, other)))
    given = f"pairs instruct rows.jsonl --prompt.profile {profile} --out made --validation 0 --card.plots false"
    assert main(given.split()) == 0
    made = list(read_records(parts / "made/sft.train.jsonl", Trajectory))
    if isinstance(wanted, str):
        assert f"in refused.jsonl: 1 {wanted}" in capsys.readouterr().err
        assert read_json(parts / "made/report.json")["source"]["refused"].popitem()[0].startswith(wanted)
    else:
        assert [step.completion[0]["content"] for step in made[:-1]] == wanted
        last = [message["content"] for message in made[-2].prompt]
        assert ("Hello" in last) == ("history" in row), "earlier turns stand before the prompt"


def test_what_instruction_data_leave_out_is_said_once_and_stands_in_the_manifest(
    parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"system_prompt": "Be brief.", "question": "Add", "response": "5", "tools": "[]"},  # OpenOrca
        {"messages": [*SAID[:1], {**SAID[1], "weight": 0}, *SAID], "tools": [{"name": "x"}], "id": 7, "source": "web"},
        {"messages": [SAID[0], {**SAID[1], "ignore": True}], "is_safe": False},
        {"text": "Add"},
    ]
    (parts / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    given = "pairs instruct rows.jsonl --prompt.profile direct --out made --validation 0 --card.plots false"
    assert main(given.split()) == 0
    said = capsys.readouterr().err
    assert said.count("left out: columns not read: is_safe, messages.ignore, tools (3, first at rows.jsonl:2)\n") == 1
    assert "; 1 replies marked as context, which is not learned; in refused.jsonl: 1 neither instruction" in said
    assert [(one["kind"][:7], one["place"], one["count"]) for one in read_manifest(parts / "made")["left_out"]] == [
        ("columns", "rows.jsonl:2", 3), ("neither", "rows.jsonl:4", 1)]  # fmt: skip
    first, second, _ = read_records(parts / "made/sft.train.jsonl", Trajectory)
    assert "Be brief." in first.prompt[0]["content"]
    assert len(second.prompt) == len(first.prompt) + 2, "what is context stands before the prompt"


async def found(place: str, query: str = "Albania", **keys: Any) -> tuple[Passage, ...]:
    retriever = open_retriever(place, RetrieverConfig(**keys))
    await retriever.ready()
    try:
        return await retriever.search(query, 2)
    finally:
        await retriever.aclose()


SEARCHES = """
import time
from steprag import Passage
def text(query, *, loud=False): return ["The lek.", "One.", "Too many."]
def objects(query, top_k, name="a"): return ({"id": "a", "text": "The lek.", "title": "Money", "score": 2},)
async def passages(query): return [Passage("a", "Money", "The lek.", 2.0)]
class Shelf:
    fingerprint = "shelf-1"
    def search(self, query, top_k): return objects(query, top_k)
def nothing(query): return []
def word(query): return "The lek."
def number(query): return [3]
def blank(query): return [{"title": "Money", "text": " "}]
def long(query): return ["x" * 50_000]
def fails(query): raise KeyError(query)
def sleeps(query): time.sleep(5)
def three(a, b, c): return []
class Broken:
    def __init__(self): raise OSError("no disk")
thing = 3
"""


@pytest.mark.parametrize(("name", "wanted"), [
    ("text", ["The lek.", "One."]), ("objects", ["The lek."]), ("passages", ["The lek."]), ("Shelf", ["The lek."]),
    ("nothing", []),
    ("word", ConfigError("searches:word returned str; return a list of passages")),
    ("number", ConfigError("searches:number returned 3 as row 1")),
    ("blank", ConfigError("returned {'text': ' ', 'title': 'Money'} as row 1: passage")),
    ("long", RetrieverError("row 1 has 50,000 characters, over 20,000")),
    ("fails", RetrieverError("searches:fails: KeyError: 'Albania'")),
    ("sleeps", RetrieverError("no reply in 0.2 s: raise retriever.timeout")),
    ("three", ConfigError("takes 3 arguments; write find(query)")),
    ("Broken", ConfigError("searches:Broken failed: OSError: no disk")),
    ("thing", ConfigError("searches:thing is no function")),
    ("absent", ConfigError("--index: searches:absent cannot be imported")),
])  # fmt: skip
def test_a_function_is_a_retriever(name: str, wanted: list[str] | Exception, parts: Path) -> None:
    (parts / "searches.py").write_text(SEARCHES)
    searching = found(f"searches:{name}", timeout=0.2 if name == "sleeps" else 30)
    if isinstance(wanted, Exception):
        with pytest.raises(type(wanted), match=re.escape(str(wanted))):
            asyncio.run(searching)
    else:
        told = asyncio.run(searching)
        assert [passage.text for passage in told] == wanted
        assert all(passage.id for passage in told)
        assert name != "objects" or told == (Passage("a", "Money", "The lek.", 2.0),)
    if name == "objects":
        with pytest.raises(ConfigError, match=r"leave retriever\.links to the function"):
            open_retriever("searches:objects", RetrieverConfig(links=0.6))


CHUNKS = """
def texts(blocks, path): return [text.upper() for role, _, text in blocks if role == "p"]
def objects(blocks, path): yield {"text": blocks[-1][2], "title": blocks[0][2], "page": 3}
def number(blocks, path): return [3]
def blank(blocks, path): return ["  "]
def other(blocks, path): return [{"text": "x", "heading": "y"}]
def fails(blocks, path): return blocks[99]
"""


@pytest.mark.parametrize(("name", "wanted"), [
    ("texts", [Passage("a.md#1", "a.md", "THIRTY DAYS.")]),
    ("objects", [Passage("a.md#1", "a.md, p. 3, Leave", "Thirty days.")]),
    ("number", "chunks:number returned 3 as row 1 of a.md: give texts of 1 to 20,000 characters"),
    ("blank", "returned '  ' as row 1"),
    ("other", "returned {'heading': 'y', 'text': 'x'} as row 1"),
    ("fails", "documents.chunker: a.md: chunks:fails failed: IndexError"),
])  # fmt: skip
def test_a_function_cuts_documents(name: str, wanted: list[Passage] | str, parts: Path) -> None:
    (parts / "chunks.py").write_text(CHUNKS)
    (parts / "docs").mkdir()
    (parts / "docs/a.md").write_text("# Leave\n\nThirty days.\n")
    source = open_source("docs", DocumentsConfig(chunker=f"chunks:{name}"))
    if isinstance(wanted, str):
        with pytest.raises(ConfigError, match=re.escape(wanted)):
            list(source.items())
    else:
        assert [passage for _, _, passage in source.items()] == wanted
        assert source.identity() != open_source("docs").identity()


@pytest.mark.parametrize(("words", "message"), [
    ({"user": "{question} {steps}"}, "'system': give the texts system, gold, user"),
    ({"system": "s", "user": "{question}"}, "user does not show {steps}; write it where it belongs"),
    ({"system": "s", "user": "{question} {steps}", "end": ""}, "'end': give the texts"),
    ({"system": ["s"], "user": "{question} {steps}"}, "'system': give the texts"),
    ({"system": "s", "user": "{question} {steps}", "reply": "a mark"}, "reply 'a mark' is none of score, critique"),
])  # fmt: skip
def test_a_judges_prompt_that_shows_too_little_is_refused(words: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps(words))
    with pytest.raises(ConfigError, match=re.escape(message)):
        prompt_of(JudgeConfig(prompt=str(tmp_path / "own.yaml")))
