"""`steprag trees recorded`: the calls that `steprag record` kept, folded into trees.

Calls with equal prompts are one node, and their completions its children: a question that was asked several times is a
tree. A prompt that continues another one and its completion hangs below that completion. A trainer must see what a
model is sent, so prompts with tools are compared with what the chat template of the model to be trained makes of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from typing import Any

from steprag.agent import grammars
from steprag.batch.datasets import add_question_options, questions_given
from steprag.config.load import parse_arguments
from steprag.config.recipes import out_of
from steprag.console.progress import say, say_next
from steprag.engines.templates import rendered
from steprag.errors import PART_DONE, ConfigError, DataError, StepFormatError, counted, quoted
from steprag.extras import code_hash, function_at
from steprag.policy.gate import with_estimates
from steprag.policy.replies import CUT, reasoning_of, text_of, usage_of
from steprag.policy.tool_calls import calls_of
from steprag.records.inputs import read_questions
from steprag.records.json_text import decoded
from steprag.records.jsonl import existing, file_hash, read_records, write_records
from steprag.runs.run import add_overwrite_option, open_run
from steprag.scores.metrics import cover_match, exact_match, f1, normalise
from steprag.tree import ROLES, TREE_FORMAT, Node, Tree
from steprag.types import Completion, Message, Question, Usage

OUTCOMES = {"f1": f1, "em": exact_match, "cover": cover_match}
TOOLS_TOLD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\nFor each function call, return a json "
    "object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""How the chat templates of Hermes, Qwen2.5 and Qwen3 tell a model of its tools. Others are refused."""
TOLD_UNASKED = ("", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
"""System messages of these templates where the agent gives none."""
Outcome = Callable[[dict[str, Any]], float | None]


@dataclass(frozen=True)
class RecordedCall:
    """A line of `calls.jsonl`: what was asked, what came back. `reply` is None where none came or it cannot be read."""

    id: str
    status: int
    request: dict[str, Any]
    reply: dict[str, Any] | None = None
    left: bool = False
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SaidMessage:
    """What counts of a message of a request or reply. `calls`: names of tools, and their arguments as JSON."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def written(self) -> str:
        """What a model writes to say this."""
        tools = [f'<tool_call>\n{{"name": "{name}", "arguments": {told}}}\n</tool_call>' for name, told in self.calls]
        return "\n".join(filter(None, [self.text, *tools]))

    @property
    def native(self) -> dict[str, Any]:
        """As chat templates take it."""
        calls = [{"function": {"name": name, "arguments": json.loads(told)}} for name, told in self.calls]
        return {"role": self.role, "content": self.text, **({"tool_calls": calls} if calls else {})}


def said(message: dict[str, Any]) -> SaidMessage:
    """A message as others send it. Raises ValueError where it shows what is no text, or calls no tool rightly."""
    content, role = message.get("content"), str(message.get("role") or "assistant")
    role = {"developer": "system", "function": "tool"}.get(role, role)
    if role not in (*ROLES, "tool"):
        raise ValueError(f"a message has the role {quoted(role)}")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type", "text") not in ("text", "output_text"):
            raise ValueError(f"a message shows a part of type {quoted(part.get('type'))}")
    calls = []
    for function in (call["function"] for call in calls_of(message)):
        told = function.get("arguments") or "{}"
        if not isinstance(value := decoded(told) if isinstance(told, str) else told, dict):
            raise ValueError("the arguments of a tool's call are no JSON object")
        calls.append((str(function["name"]), json.dumps(value, ensure_ascii=False)))
    return SaidMessage(role, text_of(content), tuple(calls))


def plain(messages: Sequence[SaidMessage], tools: Sequence[Any] = (), unasked: str = "") -> tuple[Message, ...]:
    """A conversation as messages of text alone, its tools told as `TOOLS_TOLD`, what they said as the user's turn."""
    made: list[Message] = []
    if tools:
        told = TOOLS_TOLD.format(tools="".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools))
        has_own = messages[0].role == "system"
        own = messages[0].text if has_own else unasked
        made = [Message(role="system", content=f"{own}\n\n{told}" if own else told)]
        messages = messages[has_own:]
    for place, one in enumerate(messages):
        told = f"<tool_response>\n{one.text}\n</tool_response>" if one.role == "tool" else one.written
        if one.role == "tool" and place and messages[place - 1].role == "tool":
            made[-1] = Message(role="user", content=f"{made[-1]['content']}\n{told}")
        else:
            made.append(Message(role="user" if one.role == "tool" else one.role, content=told))
    return tuple(made)


def as_sent(messages: Sequence[SaidMessage], tools: Sequence[Any], tokenizer: Any) -> tuple[Message, ...]:
    """`plain`'s prompt of messages with tools, where the template makes the same of it as of them. Raises ConfigError
    where it does not.
    """
    native: list[Any] = [one.native for one in messages]
    sent = str(rendered(tokenizer, native, tokenize=False, add_generation_prompt=True, tools=list(tools) or None))
    ours = ""
    for prompt in (plain(messages, tools, unasked) for unasked in TOLD_UNASKED):
        ours = str(rendered(tokenizer, prompt, tokenize=False, add_generation_prompt=True))
        if sent == ours:
            return prompt
    at = len(commonprefix([sent, ours]))
    raise ConfigError(
        f"the chat template of {tokenizer.name_or_path} describes tools in other words: {quoted(sent[at : at + 60])}"
        f" for {quoted(ours[at : at + 60])}; take a model of the Qwen or Hermes family, or an agent without tools"
    )


@dataclass
class GrowingTree:
    """A tree while calls are folded in. By node: `shown`, its prompt; `calls`, whose completion it is; `origins`, for
    each message of its prompt as the tree has it, the node whose completion it is, or None.
    """

    question: Question
    nodes: list[Node] = field(default_factory=lambda: [Node(0, None, 0)])
    shown: dict[int, tuple[SaidMessage, ...]] = field(default_factory=dict)
    calls: dict[int, list[str]] = field(default_factory=dict)
    origins: dict[int, list[int | None]] = field(default_factory=dict)

    def prompted(self, place: int, shown: tuple[SaidMessage, ...], prompt: tuple[Message, ...]) -> int:
        """The prompt hangs below the completion `place`: at it, or at a twin where it has been continued already."""
        if place in self.origins:
            self.nodes[place] = replace(first := self.nodes[place], visits=max(1, first.visits - 1))
            place = len(self.nodes)
            self.nodes.append(replace(first, id=place, visits=1, usage=Usage()))
            self.calls[place] = []
        parent = self.nodes[place].parent
        told: list[int | None] = [] if parent is None else [*self.origins[parent], place]
        self.origins[place], self.shown[place] = [*told, *[None] * (len(prompt) - len(told))], shown
        self.nodes[place] = replace(self.nodes[place], messages=prompt, terminal=False)
        return place

    def add(self, parent: int, node: Node, call: str) -> int:
        """A completion below `parent`, or the equal one that is there; returns its place."""
        beside = (one for one in self.nodes if one.parent == parent)
        if known := next((one for one in beside if (one.text, one.failure) == (node.text, node.failure)), None):
            self.nodes[known.id] = replace(known, visits=known.visits + 1, usage=known.usage + node.usage)
        else:
            known = replace(node, id=len(self.nodes), parent=parent, depth=self.nodes[parent].depth + 1, visits=1)
            self.nodes.append(known)
        self.calls.setdefault(known.id, []).append(call)
        return known.id

    def finished(self, outcome: Outcome) -> Tree:
        """The tree, its ends scored."""
        nodes, asked = list(self.nodes), self.question
        for node in (one for one in self.nodes if one.terminal and one.failure is None):
            shown = [*self.shown[node.parent or 0], SaidMessage("assistant", node.text)]
            nodes[node.id] = replace(node, prediction_f1=outcome({
                "question": asked.question, "golden_answers": asked.golden_answers, "metadata": asked.metadata,
                "answer": node.text, "messages": [{"role": one.role, "content": one.written} for one in shown],
            }))  # fmt: skip
        usage, told = sum((node.usage for node in nodes), Usage()), {"origins": self.origins, "calls": self.calls}
        return Tree(TREE_FORMAT, asked, "done", usage, tuple(nodes), grammar=grammars.RECORDED.name, extra=told)


class CallFolder:
    """Folds calls into trees, in the order of the recording. `counts`: what became of them."""

    def __init__(self, questions: Iterable[Question], tokenizer: Any = None) -> None:
        self._questions = {normalise(question.question): question for question in questions}
        self._tokenizer = tokenizer
        self._prompts: dict[bytes, tuple[GrowingTree, int]] = {}
        self._said: dict[bytes, tuple[GrowingTree, int]] = {}
        self.trees: list[GrowingTree] = []
        self.counts: Counter[str] = Counter()

    def add(self, call: RecordedCall) -> None:
        """Takes a call, or counts why not. Raises ConfigError where its tools cannot be told to the model."""
        reply, tools = call.reply, call.request.get("tools") or []
        if call.status >= 400 or call.error or call.left or reply is None:
            self.counts["left by the agent" if call.left else "failed"] += 1
            return
        try:
            messages = tuple(map(said, call.request["messages"]))
            if not messages or messages[-1].role == "system":
                raise ValueError("nothing is asked")
            choices = [(said(one["message"]), one) for one in reply["choices"]]
            chars = sum(len(one.written) for one in messages), sum(len(one.written) for one, _ in choices)
            usage = with_estimates(usage_of(reply.get("usage")), *chars)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.counts[f"left out: {error}" if isinstance(error, ValueError) else "left out: no chat"] += 1
            return
        keys = [json.dumps(tools, sort_keys=True).encode()]
        for message in messages:
            keys.append(_key(keys[-1], message))
        tree, place = self._prompts.get(keys[-1]) or self._begun(keys, messages, tools)
        for number, (message, choice) in enumerate(choices):
            node = tree.add(place, _node(message, choice, Usage() if number else usage), call.id)
            self._said.setdefault(_key(keys[-1], message), (tree, node))
        self.counts["folded"] += 1

    def _begun(self, keys: list[bytes], messages: tuple[SaidMessage, ...], tools: list[Any]) -> tuple[GrowingTree, int]:
        """The tree and node of a prompt that no call had yet: below the completion that it continues, or a root."""
        called = bool(tools) or any(one.calls for one in messages)
        if called and self._tokenizer is None:
            raise ConfigError("the recorded agent calls tools: name the model to be trained by --model, whose chat "
                              "template says how prompts are written")  # fmt: skip
        prompt = as_sent(messages, tools, self._tokenizer) if called else plain(messages)
        tree, place = next((self._said[key] for key in reversed(keys) if key in self._said), (None, 0))
        if tree is None:
            tree = GrowingTree(self._question(messages, keys[-1]))
            self.trees.append(tree)
        self._prompts[keys[-1]] = tree, tree.prompted(place, messages, prompt)
        return self._prompts[keys[-1]]

    def _question(self, messages: Sequence[SaidMessage], key: bytes) -> Question:
        """The longest of the given questions that the last user message holds, or that message."""
        asked = next((one.text for one in reversed(messages) if one.role == "user"), "")
        if exact := self._questions.get(normalise(asked)):
            return exact
        words = f" {normalise(asked)} "
        held = [known for known in self._questions if known and f" {known} " in words]
        unknown = Question(f"recorded-{key.hex()[:12]}", asked, (), {"dataset": "recorded"})
        return self._questions[max(held, key=len)] if held else unknown


def _key(before: bytes, message: SaidMessage) -> bytes:
    """Names the conversation `before` with the message behind it. Ids of calls do not count."""
    return hashlib.sha256(before + repr((message.role, message.text.strip(), message.calls)).encode()).digest()


def _node(reply: SaidMessage, choice: dict[str, Any], usage: Usage) -> Node:
    """A completion as a node, refused where it is cut, empty, or holds a control token."""
    finish, action = str(choice.get("finish_reason") or "").lower(), "tool_call" if reply.calls else "answer"
    cut = finish == "unknown" or CUT.search(finish)  # a stream that stopped without a word
    node = Node(0, None, 0, text=reply.written, terminal=not reply.calls, usage=usage,
                reasoning=len(reasoning_of(choice["message"])) or None)  # fmt: skip
    try:
        step = grammars.RECORDED.parse(Completion(node.text, "length" if cut else "stop"), (action,))
    except StepFormatError as error:
        return replace(node, terminal=True, failure=error.reason)
    return replace(node, action=action, content=step.content)


def outcome_of(name: str) -> Outcome:
    """What an episode is worth: a score of its last words against the golden answers, or a function of the user's."""
    if metric := OUTCOMES.get(name):
        return lambda episode: metric(episode["answer"], golden) if (golden := episode["golden_answers"]) else None
    function = function_at(name, "--reward")

    def own(episode: dict[str, Any]) -> float | None:
        worth = function(episode)
        if worth is not None and not (isinstance(worth, int | float) and 0 <= worth <= 1):
            raise ConfigError(f"--reward: {name} gave {quoted(worth)}; give a number from 0 to 1, or None")
        return None if worth is None else float(worth)

    return own


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="steprag trees recorded", description="Calls of steprag record, folded into trees."
    )
    parser.add_argument("--calls", required=True, metavar="RUN", help="run folder of steprag record, or its calls")
    parser.add_argument("--out", metavar="RUN", help="run folder: trees.jsonl [runs/recorded-RUN]")
    add_question_options(parser, of=" with golden answers")
    parser.add_argument("--reward", default="f1", metavar="NAME",
                        help="what an episode is worth, 0 to 1: its last words against the golden answers (f1, em, "
                        "cover), or your function of an episode as module:function [f1]")  # fmt: skip
    parser.add_argument("--model", help="the model to be trained; needed for agents that call tools")
    add_overwrite_option(parser)
    given = parse_arguments(parser, argv)
    if ":" not in given.reward and given.reward not in OUTCOMES:
        raise ConfigError(f"--reward {quoted(given.reward)}: give {', '.join(OUTCOMES)}, or module:function")
    calls = existing(given.calls, "recorded calls")
    calls = existing(calls / "calls.jsonl", "recorded calls") if calls.is_dir() else calls
    questions = questions_given(given) if given.questions else None
    identity = {
        "calls": file_hash(calls), "questions": questions and file_hash(questions), "model": given.model,
        "outcome": given.reward, "code": code_hash(given.reward, "--reward") if ":" in given.reward else None,
    }  # fmt: skip
    out = out_of(given, "recorded", given.calls)
    with open_run(out, "recorded", identity=identity, config={}, overwrite=given.overwrite) as run:
        outcome, tokenizer = outcome_of(given.reward), None
        if given.model:
            from steprag.engines.models import resolve_model
            from steprag.engines.weights import load_tokenizer

            tokenizer = load_tokenizer(resolve_model(given.model, None))
        folder = CallFolder(read_questions(questions) if questions else (), tokenizer)
        for call in read_records(calls, RecordedCall):
            folder.add(call)
        if not folder.trees:
            raise DataError(calls, f"holds no call to use: {dict(folder.counts)}", remedy="record an agent's calls")
        trees = [tree.finished(outcome) for tree in folder.trees]
        write_records(run.path / "trees.jsonl", trees)
        scores = [{node.prediction_f1 for node in tree.nodes} - {None} for tree in trees]
        mixed = sum(len(each) > 1 for each in scores)
        run.set(counts={**folder.counts, "trees": len(trees), "mixed": mixed})
        run.save(grammar=grammars.RECORDED.name)
    say(f"recorded: calls {dict(folder.counts)}; {counted(len(trees), 'tree')}, {sum(map(bool, scores))} with a score, "
        f"{mixed} with better and worse episodes")  # fmt: skip
    if mixed:
        say_next("pairs", run.path, "--config", "spre", "--pairs.errors", 0)
    else:
        say("recorded: no pair can come of it: ask each question several times at a temperature above 0, and give "
            "--questions with golden answers or a --reward of your own")  # fmt: skip
    return 0 if mixed else PART_DONE
