"""The values that stages exchange. Read this file first.

Everything here is frozen plain data. `steprag.files` reads and writes the ones that live in JSON Lines files
(Question, Passage, Tree, Pair, Trajectory, StepLabel, Ranking, Prediction, Verdict, Failure); a field that such a file
has and the class lacks is kept in `extra` and written back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import TypedDict


class Message(TypedDict):
    """One chat message, as the OpenAI API and chat templates take it. `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Usage:
    """What requests cost. `cached_tokens` is the part of `prompt_tokens` that the engine says it did not compute
    again.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class Question:
    """A question with every golden answer that counts as right (at least one). FlashRAG's format."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Passage:
    """A passage of the corpus; `score` is set where a search returned it (greater is better)."""

    id: str
    title: str
    text: str
    score: float | None = None


@dataclass(frozen=True)
class Completion:
    """Text sampled by a policy. `finish` is the engine's word: "stop", or "length" where the token limit cut it."""

    text: str
    finish: str


@dataclass(frozen=True)
class Sample:
    """The answer to one request: `n` completions and what the request cost."""

    completions: tuple[Completion, ...]
    usage: Usage


@dataclass(frozen=True)
class Step:
    """One completion that follows the grammar: its action, the text as sampled, and what stood between the tags."""

    action: str
    text: str
    content: str


@dataclass(frozen=True)
class State:
    """Where an episode stands. `passages` are those that the last step retrieved, best first; empty after any other
    step. `earlier[i]` are the passages of the state that had i steps.
    """

    question: str
    steps: tuple[Step, ...] = ()
    passages: tuple[Passage, ...] = ()
    earlier: tuple[tuple[Passage, ...], ...] = ()

    @property
    def before(self) -> State:
        """The state that the last step was taken in."""
        return State(self.question, self.steps[:-1], self.earlier[-1], self.earlier[:-1])


@dataclass(frozen=True)
class Episode:
    """One run from question to answer.

    `finish`: "answer", or the reason (`steprag.agent.grammar.FAILURES`) for which the last completion was refused; then
    `refused` holds that completion's text. `retrieved` holds the passages of each query, in order, none where
    it found nothing.
    """

    state: State
    finish: str
    usage: Usage
    retrieved: tuple[tuple[Passage, ...], ...] = ()
    refused: str | None = None

    @property
    def prediction(self) -> str | None:
        """The answer, or None where the episode ended without one."""
        return self.state.steps[-1].content if self.finish == "answer" else None


@dataclass(frozen=True)
class Found:
    """A passage as a tree keeps it: enough to find it again, without its text."""

    id: str
    title: str
    score: float | None = None


@dataclass(frozen=True)
class Node:
    """A node of a tree: the step that led here and what the search learnt of it.

    The root has parent None, depth 0 and no action. `depth` is the number of steps from the question. `value` is the
    mean of the rewards backed up through the node, None where none was. `failure` names why a completion was refused
    (`steprag.agent.grammar.FAILURES`); such a node is terminal and has neither content nor value. `messages` is the
    prompt that its children saw, present where the node was expanded. `usage` is what the request that sampled it cost;
    siblings of one request share it, so it stands on the first of them alone.
    """

    id: int
    parent: int | None
    depth: int
    action: str | None = None
    text: str = ""
    content: str | None = None
    visits: int = 0
    value: float | None = None
    terminal: bool = False
    failure: str | None = None
    prediction_f1: float | None = None
    judge: dict[str, Any] | None = None
    passages: tuple[Found, ...] = ()
    messages: tuple[Message, ...] | None = None
    usage: Usage = Usage()


@dataclass(frozen=True)
class Tree:
    """A finished search: nodes in order of creation, so `nodes[i].id == i` and a parent stands before its children."""

    format: int
    question: Question
    status: str
    usage: Usage
    nodes: tuple[Node, ...]
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A preference: from one prompt, `chosen` is better than `rejected`. TRL's conversational form and where it comes
    from.

    `tree` is the hash of the tree's line in `trees.jsonl` (`steprag.files.line_hash`). What an imported file does not
    tell (tree, nodes, rewards, visits) is None. `margin_error` is the standard error of the margin where the reward has
    one; `label_smoothing`, where asked for, the chance that the preference is the other way round, by visits.
    """

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    question_id: str
    tree: str | None
    chosen_node: int | None
    rejected_node: int | None
    action: str
    rejected_action: str
    depth: int
    chosen_reward: float | None
    rejected_reward: float | None
    margin: float | None
    chosen_visits: int | None
    rejected_visits: int | None
    source: str
    golden_answers: tuple[str, ...] = ()
    margin_error: float | None = None
    label_smoothing: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """One step of a worked or found episode, as supervised training takes it: a prompt and the completion to learn.

    From a tree it carries the same provenance as a pair; `outcome` is what the episode's answer was worth.
    """

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    question_id: str
    action: str
    depth: int
    source: str
    tree: str | None = None
    node: int | None = None
    outcome: float | None = None
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepLabel:
    """A step and what it was worth, as a critic (process reward model) learns it. `error` is the standard error."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    value: float
    error: float | None
    question_id: str
    tree: str
    node: int
    action: str
    depth: int
    visits: int
    source: str
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranking:
    """All rewarded siblings of one prompt, best first; the lists run in step with one another."""

    prompt: tuple[Message, ...]
    completions: tuple[tuple[Message, ...], ...]
    rewards: tuple[float, ...]
    errors: tuple[float | None, ...]
    question_id: str
    tree: str
    nodes: tuple[int, ...]
    actions: tuple[str, ...]
    depth: int
    visits: tuple[int, ...]
    source: str
    golden_answers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """What an episode answered. `prediction` is None where it ended without one; `passages` by query, best first."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    prediction: str | None
    steps: tuple[Step, ...]
    passages: tuple[tuple[Found, ...], ...]
    usage: Usage
    finish: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a judge said of a prediction. `right` is None where its reply (`text`) was neither yes nor no."""

    id: str
    right: bool | None
    text: str
    usage: Usage
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A question that could not be finished: the error class, one line of detail, and the tree as far as it grew."""

    id: str
    reason: str
    detail: str
    tree: Tree | None = None
    extra: dict[str, Any] = field(default_factory=dict)
