"""The chat service through its HTTP doors: turns, events, cancelling, restarts, forks, feedback, memory."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from apps.chat.config import ChatServiceConfig
from apps.chat.serve import modes_of
from apps.chat.turns.desk import Desk
from apps.chat.turns.events import LiveTurn, next_state, started
from apps.chat.turns.player import ChatAgent, turn_of
from apps.chat.turns.store import TurnRequest, TurnStore
from inference.answer import answer_one
from steprag.agent.citations import Support, citations
from steprag.agent.open import make_environment
from steprag.agent.profiles import load_profile
from steprag.agent.retriever import SourceChoice
from steprag.batch.database import IN_MEMORY
from steprag.batch.journal import JOURNAL, Journal
from steprag.config.sections import EpisodeConfig, PolicyConfig
from steprag.policy.gate import Gate
from steprag.policy.open import Model
from steprag.records.jsonl import read_records, write_records
from steprag.records.turns import Feedback, Turn
from steprag.types import Passage, Prediction, Question, State, Step
from tests.chat_parts import WORK, WritingPolicy, chat, scripted, working
from tests.fakes import DictRetriever, answer, wait_for


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "step.delta"]


def in_order(events: list[dict[str, Any]]) -> None:
    state = ""
    for event in events:
        state = next_state(state, event)


def test_a_turn_is_told_step_by_step_and_equals_what_infer_predicts(tmp_path: Path) -> None:
    with chat(working(), tmp_path) as served:
        events = served.whole("Which currency?")
    in_order(events)
    assert kinds(events) == ["turn.started", "question", "step.started", "step.finished", "passages", "step.started",
                             "step.finished", "step.started", "step.finished", "passages", "step.started",
                             "step.finished", "step.started", "step.finished", "answer", "turn.finished"]  # fmt: skip
    for step in (event for event in events if event["type"] == "step.finished"):
        pieces = [event["text"] for event in events if event["type"] == "step.delta" and event["step"] == step["step"]]
        assert len(pieces) > 3
        assert "".join(pieces) == step["text"]
    (turn,) = read_records(tmp_path / "turns.jsonl", Turn)
    environment = make_environment(load_profile("transcript"), DictRetriever(), EpisodeConfig())
    question = Question(turn.id, "Which currency?", ())
    predicted = asyncio.run(answer_one(question, 0, environment, working()))
    (read,) = read_records(tmp_path / "turns.jsonl", Prediction)
    assert isinstance(predicted, Prediction)
    for name in ("question", "prediction", "steps", "passages", "finish", "usage"):
        assert getattr(read, name) == getattr(predicted, name)


def test_citations_are_computed_from_evidence_and_passages() -> None:
    with chat(working()) as served:
        events = served.whole()
    items = {item["n"]: item for event in events if event["type"] == "passages" for item in event["items"]}
    sources = {items[one["n"]]["title"]: one for one in events[-2]["sources"]}
    assert sources["Tirana"]["cited"]
    assert sources["Tirana"]["evidence"] == 1
    assert sources["Albania"]["evidence"] == 3
    assert not sources["Lima"]["cited"]
    (start, end) = sources["Albania"]["spans"][0]
    assert items[sources["Albania"]["n"]]["text"][start:end] == "Prices in Albania are quoted in the lek"


def test_short_texts_and_texts_without_spaces_are_cited() -> None:
    def spans(said: str, text: str) -> tuple[tuple[int, int], ...]:
        steps = (Step("query", "", "?"), Step("evidence", "", said))
        (one,) = citations(State("?", steps, (), ((), (Passage("1", "T", text),))), frozenset({"evidence"}))
        return one.spans

    assert spans("None", "None of it") == ()
    assert spans("in the lek", "Prices are quoted in the Lek.") == ((18, 28),)
    assert spans("a b c d x", "q a b c d e f") == ((2, 9),)
    assert spans("The lek.", "Prices are quoted in the lek.") == ((21, 28),)
    assert spans("the lek", "The lek.") == ((0, 7),)
    assert spans("東京は日本の首都です。", "東京は日本の首都である。人口は約1400万人。") == ((0, 9),)
    assert spans("Tirana is the capital of Albania.", "Lima has ten million inhabitants.") == ()
    assert spans("東京は日本の首都です。", "大阪は西日本の都市である。") == ()


def test_evidence_of_any_length_is_compared_in_linear_time() -> None:
    texts = tuple(Passage(str(n), "T", f"Prices in {n} are quoted in the lek. " * 200) for n in range(20))
    said = " ".join(f"Prices in {n} are quoted in it." for n in range(30_000))
    state = State("?", (Step("query", "", "?"), Step("evidence", "", said)), (), ((), texts))
    assert len(citations(state, frozenset({"evidence"}))) == 20


LACKING = [  # "the" tells nothing, no passage says "yes", and a title counts
    ("lek", None, None), ("The kuna", None, "words"), ("yes", None, None), ("Tirana, of course", None, None),
    ("1926", None, "words"), ("lek", 0.5, "score"), ("lek", 0.3, None),
]  # fmt: skip


GUINEA, FRANCE = Passage("3", "Conakry", "The capital of Guinea."), Passage("4", "Paris", "The capital of France.")
ASKED = [  # names of the question, spelt a letter apart, stand in the passages that hold the answer
    ("What is the capital of Frnace?", "Paris", None), ("What is the capital of Frnace?", "Conakry", "question"),
    ("Who wrote Hamlet?", "Conakry", "question"), ("how do i reset my password?", "Paris", "question"),
    ("capital of france", "Paris", None), ("Is Paris in France?", "yes", None), ("Is Rome in Italy?", "no", "question"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "said", "why"), ASKED)
def test_an_answer_counts_where_its_passages_speak_of_what_was_asked(question: str, said: str, why: str | None) -> None:
    steps = (Step("query", "", question), Step("answer", "", said))
    assert Support().lacks(State(question, steps, (), ((), (GUINEA, FRANCE)))) == why
    assert Support().lacks(State(question, steps), searched=True) == "nothing"


@pytest.mark.parametrize(("said", "least", "why"), LACKING)
def test_an_answer_that_nothing_supports_is_told(said: str, least: float | None, why: str | None) -> None:
    found = (Passage("1", "Tirana", "People pay with the lek.", 0.4), Passage("2", "Lek", "Coins.", None))
    steps = (Step("query", "", "money"), Step("evidence", "", "lek"), Step("answer", "", said))
    assert Support(least=least).lacks(State("?", steps, (), (found,))) == why
    assert Support(on=False, least=least).lacks(State("?", steps, (), (found,))) is None
    assert Support(least=least).lacks(State("?", steps[-1:])) is None  # it did not search
    assert Support(least=least).lacks(State("?", (), found), searched=True) is None  # its first step was refused


def test_conversations_are_named_searched_exported_and_their_names_kept(tmp_path: Path) -> None:
    with chat(working(), tmp_path) as served:
        first = served.whole(f"Which currency? {'Of Albania? ' * 8}")[0]["conversation"]
        again = served.client.post(f"/api/turns/{served.whole()[0]['turn']}/again").json()
        assert served.events(again["turn"])[-1]["type"] == "turn.finished"
        turns = served.client.get(f"/api/conversations/{again['conversation']}").json()["turns"]
        assert [(turn["asked"], turn["parent"]) for turn in turns] == [("Which currency?", None)] * 2
        tries = [json.loads(line)["again"] for line in (tmp_path / "accepted.jsonl").read_text().splitlines()]
        assert tries == [0, 0, 1]
        title = served.client.get("/api/conversations").json()["conversations"][1]["title"]
        assert (len(title), title[-1]) == (60, "…")
        assert served.client.patch(f"/api/conversations/{first}", json={"title": " Money\n"}).status_code == 204
        assert served.client.patch("/api/conversations/none", json={"title": "x"}).status_code == 404
        asked = (("money", 1), ("LEK which", 2), ("tirana", 1), ("Which currency", 2), ("kuna", 0))
        for words, count in asked:
            found = served.client.get("/api/conversations", params={"words": words}).json()["conversations"]
            assert len(found) == count, words
        text = served.client.get(f"/api/conversations/{first}/export")
        assert "attachment" in text.headers["content-disposition"]
        assert text.text.startswith("# Money\n\n## Which currency? Of")
        assert "1. **query** Tirana\n2. **evidence**" in text.text
        assert "**Answer:** lek\n\nSources:\n\n- **Tirana**" in text.text
        told = served.client.get(f"/api/conversations/{first}/export?form=json").json()
        assert (told["title"], told["turns"][0]["prediction"], len(told["turns"][0]["sources"])) == ("Money", "lek", 2)
    with chat(working(), tmp_path) as served:
        assert served.client.get("/api/conversations").json()["conversations"][1]["title"] == "Money"
        served.client.patch(f"/api/conversations/{first}", json={"title": ""})
        assert served.client.get("/api/conversations").json()["conversations"][1]["title"] == title
        served.client.delete(f"/api/conversations/{first}")
        assert (tmp_path / "names.jsonl").read_text() == ""


def test_a_listener_that_comes_back_misses_nothing_and_hears_nothing_twice() -> None:
    with chat(working(hold=True), leave=30) as served:
        turn = served.ask()
        first = served.events(turn, most=4)
        served.policy.go.set()
        rest = served.events(turn, after=first[-1]["id"])
        again = served.events(turn)
    assert [*first, *rest] == again
    in_order(again)


def test_cancelling_closes_the_request_and_frees_the_slot(tmp_path: Path) -> None:
    policy = WritingPolicy(scripted(WORK[0], *WORK), hold=True)
    with chat(policy, tmp_path, at_once=1) as served:
        turn = served.ask()
        wait_for(lambda: policy.begun)
        assert served.client.delete(f"/api/turns/{turn}").status_code == 204
        events = served.events(turn)
        assert events[-1]["type"] == "turn.cancelled"
        assert policy.cancelled == [WORK[0]]
        policy.go.set()
        assert served.whole()[-1]["type"] == "turn.finished"
    with _journal(tmp_path) as journal:
        assert journal.lost == 0
        assert journal.calls_of(turn) == []
    (cancelled, finished) = read_records(tmp_path / "turns.jsonl", Turn)
    assert (cancelled.finish, finished.finish) == ("cancelled", "answer")


def test_of_an_unfinished_turn_steps_passages_and_costs_are_kept(tmp_path: Path) -> None:
    def first_then_hold(messages: Any) -> str:
        policy.hold = policy.asked > 1
        return WORK[policy.asked - 1]

    policy = WritingPolicy(first_then_hold)
    with chat(policy, tmp_path) as served:
        turn = served.ask()
        wait_for(lambda: len(policy.begun) == 2)
        served.client.delete(f"/api/turns/{turn}")
        assert served.events(turn)[-1]["type"] == "turn.cancelled"
    (kept,) = read_records(tmp_path / "turns.jsonl", Turn)
    assert [step.action for step in kept.steps] == ["query"]
    assert [found.title for found in kept.passages[0]][:2] == ["Tirana", "Albania"]
    assert (kept.usage.calls, kept.usage.completion_tokens) == (1, 5)


def test_a_turn_ends_when_its_last_listener_stays_away() -> None:
    policy = working(hold=True)
    with chat(policy, leave=0.05) as served:
        turn = served.ask()
        served.events(turn, most=3)
        wait_for(lambda: policy.cancelled)
        assert served.events(turn)[-1]["type"] == "turn.cancelled"


def test_what_was_accepted_is_played_by_the_next_service_and_paid_once(tmp_path: Path) -> None:
    held = working(hold=True)
    with chat(held, tmp_path, at_once=1) as served:
        first, second = served.ask("Which currency?"), served.ask("And then?")
        held.go.set()
        wait_for(lambda: len(held.begun) >= 2)
        held.go.clear()
        wait_for(lambda: len(held.begun) >= 3)
    begun = len(held.begun)
    with chat(WritingPolicy(scripted(*WORK[begun - 1 :], *WORK)), tmp_path, at_once=1) as served:
        events, others = served.events(first), served.events(second)
        assert served.policy.asked <= 2 * len(WORK) - (begun - 1)
    in_order(events)
    assert events[-1]["finish"] == others[-1]["finish"] == "answer"
    assert [turn.id for turn in read_records(tmp_path / "turns.jsonl", Turn)] == [first, second]


def test_a_finished_turn_is_told_again_after_a_restart(tmp_path: Path) -> None:
    with chat(working(), tmp_path) as served:
        told = served.whole()
        turn = told[0]["turn"]
    with chat(working(), tmp_path) as served:
        again = served.events(turn)
        assert served.retriever.searched == []
        step = served.client.get(f"/api/turns/{turn}/steps/1").json()
    in_order(again)
    assert kinds(again) == kinds(told)
    assert [e for e in again if e["type"] == "passages"][0]["items"] == [e for e in told if e["type"] == "passages"][0][
        "items"
    ]
    assert step["allowed"] == ["evidence"]
    assert step["candidates"] == [{"text": WORK[1], "refused": None}]
    assert "Tirana is the capital of Albania" in step["messages"][-1]["content"]


def test_too_many_questions_are_refused_and_conversations_take_turns() -> None:
    policy = WritingPolicy(lambda messages: answer(messages[-1]["content"][:200].replace("<", "")), hold=True)
    with chat(policy, at_once=1, waiting=3) as served:
        served.ask("first")
        wait_for(lambda: policy.begun)
        for question in ("one", "two", "three"):
            served.ask(question)
        reply = served.client.post("/api/turns", json={"question": "four"})
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
        assert reply.json()["error"]["code"] == "busy"
        figures = served.client.get("/metrics").text
        assert "steprag_turns_playing 1.0" in figures
        assert "steprag_turns_refused_total 1.0" in figures
        policy.go.set()
        wait_for(lambda: 'steprag_turns_total{finish="answer"} 4.0' in served.client.get("/metrics").text)


def test_a_conversation_has_one_turn_at_a_time() -> None:
    policy = working(hold=True)
    with chat(policy) as served:
        reply = served.client.post("/api/turns", json={"question": "one"}).json()
        again = served.client.post("/api/turns", json={"question": "two", "conversation": reply["conversation"]})
        assert again.status_code == 409
        policy.go.set()


def test_feedback_becomes_the_golden_answer(tmp_path: Path) -> None:
    told: list[str | None] = []
    with chat(working(), tmp_path) as served:
        turn = served.whole()[0]["turn"]
        reply = served.client.post(f"/api/turns/{turn}/feedback", json={"right": False, "answer": "the lek"})
        assert reply.status_code == 204
        (row,) = served.client.get("/api/conversations").json()["conversations"]
        listed = served.client.get(f"/api/conversations/{row['id']}").json()["turns"]
        for body in ({"right": False}, {"right": True}, {"right": False}):
            served.client.post(f"/api/turns/{turn}/feedback", json=body)
            now = served.client.get(f"/api/conversations/{row['id']}").json()["turns"][0]["feedback"]
            told.append(now["answer"])
        served.client.post(f"/api/turns/{turn}/feedback", json={"right": False, "answer": "the lek"})
    assert listed[0]["feedback"] == {"right": False, "answer": "the lek"}
    assert told == ["the lek", None, None]
    (kept,) = read_records(tmp_path / "turns.jsonl", Turn)
    assert kept.golden_answers == ("the lek",)


def test_a_deleted_conversation_leaves_nothing(tmp_path: Path) -> None:
    with chat(working(), tmp_path) as served:
        events = served.whole("A very secret question")
        conversation, turn = events[0]["conversation"], events[0]["turn"]
        assert served.client.delete(f"/api/conversations/{conversation}").status_code == 204
        assert served.client.get(f"/api/conversations/{conversation}").status_code == 404
        assert served.client.get(f"/api/turns/{turn}/events").status_code == 404
    with _journal(tmp_path) as journal:
        assert journal.questions() == []
    assert (tmp_path / "turns.jsonl").read_text() == (tmp_path / "accepted.jsonl").read_text() == ""


def kept_turn(number: int, conversation: str) -> Turn:
    return turn_of(TurnRequest(f"t{number}", conversation, "Which?", "local", number), finish="answer", prediction="x")


def test_verdicts_and_deletions_leave_other_lines_and_the_event_loop_alone(tmp_path: Path) -> None:
    write_records(tmp_path / "turns.jsonl", [kept_turn(n, f"c{n % 2}") for n in range(50)])
    lines = [line.replace('"', ' "', 1) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    (tmp_path / "turns.jsonl").write_text("\n".join(lines) + "\n")

    async def change() -> None:
        store = TurnStore(tmp_path)
        for work in (store.judge("t4", Feedback(False, "y")), store.forget("c1")):
            task = asyncio.create_task(work)
            await asyncio.sleep(0)
            assert not task.done()  # a thread has it; others go on
            await task
        await store.judge("t6", Feedback(True))
        store.close()

    asyncio.run(change())
    after = (tmp_path / "turns.jsonl").read_text().splitlines()
    assert [line for line in after if line in lines] == [
        line for line in lines[::2] if line not in (lines[4], lines[6])
    ]
    golden = {turn.id: turn.golden_answers for turn in read_records(tmp_path / "turns.jsonl", Turn)}
    assert len(golden) == 25
    assert (golden["t4"], golden["t6"], golden["t8"]) == (("y",), ("x",), ())


def test_verdicts_at_once_count_one_after_the_other(tmp_path: Path) -> None:
    write_records(tmp_path / "turns.jsonl", [kept_turn(0, "c")])

    async def judged() -> None:
        store = TurnStore(tmp_path)
        await asyncio.gather(store.judge("t0", Feedback(False, "lek")), store.judge("t0", Feedback(False)))
        store.close()

    asyncio.run(judged())
    (kept,) = read_records(tmp_path / "turns.jsonl", Turn)
    assert (kept.feedback, kept.golden_answers) == (Feedback(False, "lek"), ("lek",))


def test_a_deletion_that_breaks_off_brings_nothing_back(tmp_path: Path) -> None:
    store = TurnStore(tmp_path)

    async def broken_off() -> None:
        for number, conversation in enumerate(("gone", "waits")):
            await store.accept(TurnRequest(f"t{number}", conversation, "Which?", "local", 0))
        await store.end(kept_turn(0, "gone"))
        with _full_disk(), pytest.raises(OSError, match="large"):
            await store.forget("gone")

    asyncio.run(broken_off())
    store.close()
    assert [request.id for request in TurnStore(tmp_path).pending] == ["t1"]


@pytest.mark.parametrize(
    ("deaths", "ends"),
    [
        ((True,), "turn.finished"),
        ((True, False, False), "turn.finished"),
        ((True, True), "turn.failed"),
        ((True, False, True), "turn.failed"),
    ],
)
def test_a_turn_under_way_in_two_starts_that_died_is_set_aside(
    deaths: tuple[bool, ...], ends: str, tmp_path: Path
) -> None:
    async def started(died: bool | None) -> str:
        store = TurnStore(tmp_path)
        async with asyncio.timeout(30), a_desk(policy := working(hold=died is not None), store) as desk:
            waits = desk.live("t0") or await desk.accept(TurnRequest("t0", "c", "Which?", "local", 0))
            if died is None:
                return [event async for events in waits.follow() for event in events][-1]["type"]
            while not policy.begun:
                await asyncio.sleep(0.005)
            if died:
                store._files = None  # what a kill leaves: nothing is written any more
            await desk.close()
            store.close()
            return ""

    for died in deaths:
        asyncio.run(started(died))
    assert asyncio.run(started(None)) == ends
    failures = (tmp_path / "failures.jsonl").read_text()
    assert ("died twice" in failures, '"id":"t0"' in failures.replace(" ", "")) == (ends == "turn.failed",) * 2
    assert TurnStore(tmp_path).pending == ()


@asynccontextmanager
async def a_desk(policy: WritingPolicy, store: TurnStore | None = None, **limits: Any) -> AsyncIterator[Desk]:
    """A desk for one turn at a time, without the service around it."""
    environment = make_environment(load_profile("transcript"), DictRetriever(), EpisodeConfig())
    async with Journal(IN_MEMORY) as journal:
        model = Model(policy, Gate(PolicyConfig()))
        agent = ChatAgent(modes_of(environment), model, None, journal, store or TurnStore(None), 0, 0)
        yield Desk(agent, ChatServiceConfig(**limits), 1)


def test_a_turn_that_is_stopped_before_its_first_line_frees_its_slot() -> None:
    async def stopped() -> list[str]:
        async with asyncio.timeout(30), a_desk(working()) as desk:
            turns = [await desk.accept(TurnRequest(f"t{n}", f"c{n}", "Which?", "local", 0)) for n in range(2)]
            desk.cancel("t0")
            return [[event async for events in turn.follow() for event in events][-1]["type"] for turn in turns]

    assert asyncio.run(stopped()) == ["turn.cancelled", "turn.finished"]


def test_a_turn_accepted_while_its_conversation_is_deleted_goes_with_it() -> None:
    async def deleted() -> None:
        async with asyncio.timeout(30), a_desk(working(hold=True)) as desk:
            first = await desk.accept(TurnRequest("t0", "c", "Which?", "local", 0))
            await asyncio.sleep(0.01)
            deletion = asyncio.create_task(desk.forget("c"))
            await asyncio.sleep(0)
            assert not first.over
            await desk.accept(TurnRequest("t1", "c", "Which?", "local", 0))
            await deletion
            await asyncio.sleep(0.01)
            assert (desk.playing, desk.waiting, desk.chat.store.conversations) == (0, 0, {})
            assert desk.chat.journal.questions() == []

    asyncio.run(deleted())


def test_who_comes_back_and_leaves_again_has_the_whole_time() -> None:
    async def left_twice() -> list[str]:
        abandoned: list[str] = []
        live = LiveTurn(TurnRequest("t", "c", "Which?", "local", 0), abandoned.append, 0.01)
        live.publish(started("c", "local", None, 0))
        for _ in range(2):
            listener = live.follow()
            await anext(listener)
            await listener.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        while not abandoned:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return abandoned

    assert asyncio.run(left_twice()) == ["t"]


def test_looking_at_a_turn_searches_nothing(tmp_path: Path) -> None:
    policy = working(hold=True)
    with chat(policy, tmp_path, profile="rag", at_once=1) as served:
        first, second = served.ask(), served.ask("Never begun?")
        for turn in (second, first):
            served.client.delete(f"/api/turns/{turn}")
            served.events(turn)
    with chat(policy, tmp_path, profile="rag", retriever=DictRetriever(lasts=0)) as served:
        for turn in (first, second):
            assert served.events(turn)[-1]["type"] == "turn.cancelled"
        assert served.retriever.searched == []


def test_a_question_that_leans_on_others_is_rewritten_to_stand_alone(tmp_path: Path) -> None:
    policy = WritingPolicy(lambda messages: answer("lek"))
    rewriter = WritingPolicy(lambda messages: 'Question: "What is the currency of Albania?"\nmore')
    with chat(policy, tmp_path, rewriter=rewriter, history=2) as served:
        conversation = served.whole("One?")[0]["conversation"]
        assert rewriter.asked == 0
        for question in ("Two?", "Three?", "And its currency?"):
            events = served.whole(question, conversation=conversation)
        plain = served.whole("As it is", conversation=conversation, rewrite=False)
    assert events[1]["asked"] == "And its currency?"
    assert events[1]["question"] == "What is the currency of Albania?"
    assert plain[1]["question"] == "As it is"
    with _journal(tmp_path) as journal:
        calls = journal.calls_of(events[0]["turn"])
    assert [key[0] for key, _ in calls] == ["rewriter", "policy"]


def test_a_turn_that_takes_too_long_fails_and_the_next_one_is_played() -> None:
    policy = working(hold=True)
    with chat(policy, at_once=1, seconds=0.1) as served:
        events = served.whole()
        assert events[-1]["type"] == "turn.failed"
        assert "serve.seconds" in events[-1]["message"]
        policy.go.set()
        policy.script = scripted(answer("lek"))
        assert served.whole(mode="direct")[-1]["finish"] == "answer"


@pytest.mark.parametrize(("body", "status"), [
    ({"question": " "}, 422),
    ({"question": "x" * 9000}, 422),
    ({"question": "x", "mode": "nosuch"}, 422),
    ({"question": "x", "extra": 1}, 422),
    ({"question": "x", "conversation": "../../etc"}, 422),
    ({"question": "x" * 2_000_000}, 413),
])  # fmt: skip
def test_bad_requests(body: dict[str, Any], status: int) -> None:
    with chat(working()) as served:
        reply = served.client.post("/api/turns", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def test_a_disk_without_room_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    policy = working(hold=True)
    with chat(policy, tmp_path, at_once=1) as served:
        turn = served.ask()
        wait_for(lambda: policy.begun)
        with _full_disk():
            policy.go.set()
            events = served.events(turn)
            assert (events[-1]["type"], events[-1]["code"]) == ("turn.failed", "not_kept")
            (kept,) = served.desk.chat.store.conversations
            for method, path in [("POST", "turns"), ("DELETE", f"conversations/{kept}"), ("POST", "turns")]:
                refused = served.client.request(method, f"/api/{path}", json={"question": "And now?"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_kept")
            assert served.client.get("/api/info").json()["playing"] == 0
        policy.script = scripted(*WORK)
        assert served.whole()[-1]["finish"] == "answer"  # once there is room, it goes on
    with chat(working(), tmp_path) as served:
        assert served.events(turn)[-1]["finish"] == "answer"
    assert all(json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines())


@contextmanager
def _full_disk() -> Iterator[None]:
    """Files grow no more, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _journal(folder: Path) -> Iterator[Journal]:
    """The journal of a folder whose service has stopped."""
    journal = Journal(folder / JOURNAL)
    yield journal
    journal._db.close()


@dataclass
class _TwoSources(DictRetriever):
    """An index and a web that say why they were asked."""

    @property
    def sources(self) -> dict[str, Any]:
        return {"web": _Web(fingerprint="web:x"), "local": DictRetriever(), "auto": _Web(), "both": DictRetriever()}


class _Web(DictRetriever):
    async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        found = await super().search(query, top_k)
        return tuple(replace(passage, id=f"https://example.org/{passage.id}#0a1b2c3d4e5f6071") for passage in found)

    def choice(self, query: str) -> SourceChoice | None:
        return SourceChoice("web", f"nothing like {query!r} in the index")


def test_modes_search_where_they_say_and_auto_says_why(tmp_path: Path) -> None:
    with chat(WritingPolicy(scripted(*WORK, *WORK, answer("lek"), *WORK)), tmp_path, retriever=_TwoSources()) as served:
        assert served.client.get("/api/info").json()["modes"] == [
            *("auto", "search", "local", "web", "both", "direct", "reasoning"),
        ]
        auto = served.whole(mode="auto")
        local = served.whole(mode="local")
        direct = served.whole(mode="direct")
        fork = served.client.post(f"/api/turns/{auto[0]['turn']}/fork", json={"step": 2, "text": "Albania's currency"})
        served.events(fork.json()["turn"])
    first = next(event for event in auto if event["type"] == "passages")
    assert (first["source"], first["why"]) == ("web", "nothing like 'Tirana' in the index")
    assert first["items"][0]["url"] == "https://example.org/0"
    here = next(event for event in local if event["type"] == "passages")
    assert (here["source"], here.get("why"), here["items"][0]["url"]) == ("local", None, None)
    assert "passages" not in kinds(direct)
    assert json.loads((tmp_path / "preferred.jsonl").read_text())["web"] is True


def test_names_of_hosts_may_have_blanks_between_and_none_is_empty() -> None:
    said = [ChatServiceConfig.model_validate({"hosts": hosts}).hosts for hosts in ("a, b,", "", ["c"])]
    assert said == [("a", "b"), (), ("c",)]
