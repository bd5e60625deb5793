"""Nothing paid for is lost: kills at every write and at random moments, budgets, refused keys, replays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import hashlib
import logging
import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from data_generation.config import GenerateConfig
from data_generation.generate import search_all, search_identity
from data_generation.tally import Earlier
from steprag.agent.open import OpenAgent, make_environment
from steprag.agent.profiles import load_profile
from steprag.batch.database import Database, absorb
from steprag.batch.journal import JOURNAL, Journal
from steprag.batch.worklist import run_interruptible
from steprag.config.load import load_config
from steprag.config.sections import JudgeConfig, PolicyConfig, PriceConfig, RateConfig
from steprag.console.terminal import guarded
from steprag.errors import (
    BudgetReached,
    ConfigError,
    DataError,
    JournalError,
    PolicyError,
    PolicyRefused,
    RetrieverError,
)
from steprag.policy.budget import BudgetConfig, Spending, prices_of
from steprag.policy.gate import Gate
from steprag.policy.open import Model
from steprag.policy.protocols import Policy
from steprag.records.jsonl import read_records, write_json
from steprag.runs.run import open_run, read_manifest
from steprag.tree import Failure, Tree
from steprag.types import NANO, Message, Passage, Question, Sample, Usage
from tests.fakes import QUESTION, DictRetriever, ScriptedPolicy
from tests.levels import SEED, rounds

QUESTIONS = [Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(4)]
Keys = dict[str, object]
SMALL: Keys = {"search.rollouts": 3, "search.extra": 2, "search.children": 2, "policy.concurrency": 4}


@dataclass
class Counted(ScriptedPolicy):
    """Notes every call in a file that outlives a kill, and takes a random moment for it.

    A note has 32 bytes: longer ones may cross a page of memory, where a kill cuts a write in two.
    """

    log: Path = Path(os.devnull)
    delay: float = 0.0

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        with self.log.open("a") as stream:
            stream.write(hashlib.sha256(repr((messages, n, seed)).encode()).hexdigest()[:31] + "\n")
        await asyncio.sleep(self.delay * random.random())
        return await super().sample(messages, allowed, n=n, seed=seed)


def generate(out: Path, policy: Policy, keys: Keys | None = None, questions: list[Question] = QUESTIONS,
             retriever: DictRetriever | None = None, after: Sequence[Path] = ()) -> None:  # fmt: skip
    """What `steprag generate` does once its inputs are loaded, with a scripted policy in place of an endpoint."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[OpenAgent]:
        config = load_config(GenerateConfig, None, {**SMALL, **(keys or {})})
        environment = make_environment(load_profile("transcript"), retriever or DictRetriever(), config.episode)
        model = Model(policy, Gate(config.policy))
        yield OpenAgent(environment, model, model if config.reward.judged else None)

    generate_with(out, opened(), {**SMALL, **(keys or {})}, questions, Earlier(after) if after else None)


def generate_with(out: Path, opened: contextlib.AbstractAsyncContextManager[OpenAgent], keys: Keys,
                  questions: list[Question], earlier: Earlier | None = None) -> None:  # fmt: skip
    config = load_config(GenerateConfig, None, keys)
    identity = {"index": "world", **search_identity(config), **({"after": earlier.identity} if earlier else {})}
    with open_run(out, "generate", identity=identity, config=config.model_dump()) as run:
        asyncio.run(search_all(run, questions, config, opened, earlier))


def killed(out: Path, log: Path, *, at_write: int | None = None, after: float | None = None) -> bool:
    """Runs `generate` in a child that dies by SIGKILL at its n-th journal statement or after so many seconds.

    Returns whether it was killed before its end.
    """
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            if at_write is not None:
                die_at_write(at_write)
            generate(out, Counted(log=log, delay=0.004))
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die_at_write(count: int) -> None:
    """Before the n-th statement that this process sends to a journal, it dies."""
    left = count
    connect = sqlite3.connect

    def connected(*args: object, **keys: object) -> sqlite3.Connection:
        connection = connect(*args, **keys)  # type: ignore[arg-type]

        def trace(statement: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = connected  # type: ignore[assignment]


def check_after(out: Path, log: Path, expected: bytes, calls: Counter[str]) -> None:
    """Finishes the run and compares it with one that was never interrupted."""
    generate(out, Counted(log=log))
    assert (out / "trees.jsonl").read_bytes() == expected
    made = Counter(log.read_text().splitlines())
    assert made.keys() == calls.keys()
    with sqlite3.connect(out / JOURNAL) as db:
        lost = db.execute("SELECT COUNT(*) FROM lost").fetchone()[0]
    assert sum(made.values()) - sum(calls.values()) <= lost
    assert read_manifest(out)["usage"]["calls"] == sum(calls.values())


def check_each_call_was_made_once(out: Path, log: Path, whole: tuple[bytes, Counter[str]], keys: Keys | None = None
                                  ) -> None:  # fmt: skip
    """Finishes the run: the trees of an uninterrupted one, and nothing was asked for again."""
    generate(out, Counted(log=log), keys)
    assert (out / "trees.jsonl").read_bytes() == whole[0]
    assert Counter(log.read_text().splitlines()) == whole[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Counter[str]]:
    """The trees of an uninterrupted run and its calls."""
    folder = tmp_path_factory.mktemp("whole")
    generate(folder / "run", Counted(log=folder / "log"))
    return (folder / "run/trees.jsonl").read_bytes(), Counter((folder / "log").read_text().splitlines())


def test_a_kill_at_every_write_loses_nothing(tmp_path: Path, whole: tuple[bytes, Counter[str]]) -> None:
    """At every tenth one, another for each commit, where not all tests run."""
    expected, calls = whole
    assert max(calls.values()) == 1
    step = rounds(10, 1, 1)
    count = 0
    for at_write in range(1 + SEED % step, 10_000, step):
        out, log = tmp_path / f"run{at_write}", tmp_path / f"log{at_write}"
        log.touch()
        if not killed(out, log, at_write=at_write):
            break
        check_after(out, log, expected, calls)
        count += 1
    assert count >= 90 // step


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_at_random_moments_lose_nothing(tmp_path: Path, whole: tuple[bytes, Counter[str]]) -> None:
    expected, calls = whole
    rng, kills, number, wanted = random.Random(SEED), 0, 0, rounds(40, 40, 200)
    while kills < wanted:
        number += 1
        out, log = tmp_path / f"run{number}", tmp_path / f"log{number}"
        log.touch()
        while killed(out, log, after=rng.uniform(0.0, 0.25)) and kills < wanted:
            kills += 1
        check_after(out, log, expected, calls)


@pytest.mark.parametrize("at_once", [1, 8, 64])
def test_timing_does_not_matter(tmp_path: Path, whole: tuple[bytes, Counter[str]], at_once: int) -> None:
    keys = {"policy.concurrency": at_once}
    generate(tmp_path / "run", Counted(delay=0.01), keys)
    assert (tmp_path / "run/trees.jsonl").read_bytes() == whole[0]


@pytest.mark.parametrize(("limit", "value"), [("calls", 12), ("tokens", 5000), ("usd", 0.006)])
def test_budgets_hold_and_the_run_goes_on(
    tmp_path: Path, whole: tuple[bytes, Counter[str]], limit: str, value: float
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    log.touch()
    keys: dict[str, object] = {"policy.price.prompt": 1.0, "policy.price.completion": 2.0}
    with pytest.raises(BudgetReached, match=f"budget.{limit} = {value} is reached"):
        generate(out, Counted(log=log, delay=0.01), {**keys, f"budget.{limit}": value})
    manifest = read_manifest(out)
    assert manifest["status"] == "budget"
    spent = manifest["spent"]
    used = {"calls": spent["calls"], "tokens": spent["prompt_tokens"] + spent["completion_tokens"], "usd": spent["usd"]}
    assert value / 2 < used[limit] <= value
    before = len(log.read_text().splitlines())
    assert before == spent["calls"], "a call in flight at the end was not kept"
    check_each_call_was_made_once(out, log, whole, keys)


def test_a_budget_of_minutes_ends_the_run_and_it_goes_on(tmp_path: Path, whole: tuple[bytes, Counter[str]]) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    with pytest.raises(BudgetReached, match="budget.minutes = 0.001 is reached"):
        generate(out, Counted(log=log, delay=0.05), {"budget.minutes": 0.001})
    check_each_call_was_made_once(out, log, whole)


def test_an_endpoint_that_gives_one_completion_a_request_is_asked_again(tmp_path: Path) -> None:
    class Single(ScriptedPolicy):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            return await super().sample(messages, allowed, n=1, seed=seed)

    policy = Single()
    generate(tmp_path / "one", policy)
    expanded = [
        node for tree in read_records(tmp_path / "one/trees.jsonl", Tree) for node in tree.nodes if node.messages
    ]
    assert len(policy.prompts) == 2 * len(expanded), "each node was to have two children"
    assert main(["replay", "--trees", str(tmp_path / "one"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again/trees.jsonl").read_bytes() == (tmp_path / "one/trees.jsonl").read_bytes()


def test_processes_share_a_budget() -> None:
    whole = BudgetConfig(usd=1.0, tokens=10, calls=3, minutes=5)
    assert whole.share(0, 1) == whole
    shares = [whole.share(place, 4) for place in range(4)]
    assert [(one.tokens, one.calls) for one in shares] == [(3, 1), (3, 1), (2, 1), (2, 0)]
    assert {(one.usd, one.minutes) for one in shares} == {(0.25, 5)}
    assert [BudgetConfig(calls=8).share(place, 3).calls for place in range(3)] == [3, 3, 2]
    nothing = Spending(BudgetConfig(calls=3).share(3, 4))
    with pytest.raises(BudgetReached):
        asyncio.run(nothing.request("policy", Usage()).__aenter__())
    assert BudgetConfig().share(3, 4) == BudgetConfig()


def test_a_budget_in_dollars_needs_a_price(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budget.usd is set but no price"):
        generate(tmp_path / "run", ScriptedPolicy(), {"budget.usd": 1.0})


@pytest.mark.parametrize(("role", "section"), [("policy", "policy"), ("score", "policy"), ("judge", "judge")])
def test_the_price_that_is_missing_is_named_by_its_own_key(role: str, section: str) -> None:
    with pytest.raises(ConfigError, match=f"give {section}.price.prompt and {section}.price.completion"):
        Spending(BudgetConfig(usd=1.0), {role: PriceConfig()})


PAID: dict[str, Any] = {"engine": "openai", "model": "gpt-4o", "price": {"prompt": 2.0, "completion": 4.0}}


@pytest.mark.parametrize(
    ("policy", "judge", "dollars"),
    [
        (PAID, PAID | {"price": {}}, 6.0),  # the same model at the same place has one price
        (PAID, PAID | {"price": {"prompt": 1.0}}, 3.5),
        (PAID, {"engine": "llamacpp"}, 3.0),  # started here
        (PAID, {"engine": "vllm", "base_url": "http://127.0.0.1:1/v1", "price": {"completion": 0}}, 3.0),
        (PAID, PAID | {"price": {}, "model": "gpt-4o-mini"}, None),
        (PAID, PAID | {"price": {}, "base_url": "http://other.example/v1"}, None),
        (PAID | {"price": {}}, PAID, None),
        (PAID | {"price": {"prompt": 2.0}}, PAID | {"price": {}}, 2.0),
    ],
)
def test_dollars_are_those_of_every_role_or_not_known(
    policy: dict[str, Any], judge: dict[str, Any], dollars: float | None
) -> None:
    """Each role has half a million prompt tokens, and as many of completion."""
    prices = prices_of(PolicyConfig(**policy), JudgeConfig(**judge))
    spent = Spending(prices=prices)
    for role in ("policy", "judge"):
        spent.add(role, Usage(1, 500_000, 500_000))
    assert spent.summary()["usd"] == dollars
    if dollars is None:
        with pytest.raises(ConfigError, match=r"budget.usd is set but no price: give \w+.price.prompt.*\(0 where"):
            Spending(BudgetConfig(usd=1.0), prices)
    else:
        Spending(BudgetConfig(usd=1.0), prices)


@pytest.mark.parametrize(("price", "used", "usd"), [
    ({"prompt": 0.0}, Usage(1, 5, 5, estimated=1), 0.0), ({"prompt": 2.0}, Usage(1, 5, 5, estimated=1), None),
    ({}, Usage(1, 5, 5, estimated=1, charged=3 * NANO), 3.0), ({}, Usage(1, 5, 5, charged=0), 0.0),
    ({"prompt": 2.0}, Usage(1, 500_000, 5, charged=3 * NANO), 1.0),
])  # fmt: skip
def test_dollars_of_estimated_tokens_are_known_only_where_they_cost_nothing_or_the_endpoint_says_them(
    price: dict[str, float], used: Usage, usd: float | None
) -> None:
    spent = Spending(prices={"policy": PriceConfig(**price)})
    spent.add("policy", used)
    assert spent.summary()["usd"] == usd


def test_a_search_is_kept_of_a_question_that_no_call_was_made_for(tmp_path: Path) -> None:
    """GRPO samples in its own process: without a judge, searches are all that its journal holds."""
    retriever = DictRetriever()

    async def ask() -> tuple[Passage, ...]:
        async with Journal(tmp_path / JOURNAL) as journal:
            return await journal.question(QUESTIONS[0]).retriever(retriever).search("Lima", 2)

    assert asyncio.run(ask()) == asyncio.run(ask())
    assert retriever.searched == ["Lima"], "the second start has it from the journal"


def test_a_page_that_changed_between_two_searches_is_replayed_as_each_found_it(tmp_path: Path) -> None:
    class Changing(DictRetriever):
        async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
            return (Passage("https://page.example", "Lima", f"as of {query}", 0.5), Passage("other", "Peru", "A land."))

    async def ask() -> list[tuple[Passage, ...]]:
        async with Journal(tmp_path / JOURNAL) as journal:
            asked = journal.question(QUESTIONS[0]).retriever(Changing())
            return [await asked.search(query, 2) for query in ("May", "June", "May")]

    first = asyncio.run(ask())
    assert [found[0].text for found in first] == ["as of May", "as of June", "as of May"]
    assert asyncio.run(ask()) == first
    other = tmp_path / "other.sqlite"
    with contextlib.closing(Journal(other)) as journal:
        journal.question(QUESTIONS[1])
        journal.searched(QUESTIONS[1].id, "July", 2, (Passage("https://page.example", "Lima", "as of July", 0.5),))
    with contextlib.closing(Database(tmp_path / JOURNAL)) as whole:
        absorb(whole, other, "other")
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        assert journal.searches_of(QUESTIONS[1].id)["July", 2][0].text == "as of July"
        journal.forget([QUESTIONS[0].id])
    assert b"as of May" not in (tmp_path / JOURNAL).read_bytes()


def test_what_is_forgotten_leaves_no_passage_behind_that_others_did_not_find(tmp_path: Path) -> None:
    class Sourced(DictRetriever):
        async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
            return (Passage("shared", "Lima", "A city."), Passage(query, "Note", f"a secret of {query}"))

    async def ask() -> None:
        async with Journal(tmp_path / JOURNAL) as journal:
            for question in QUESTIONS[:3]:
                await journal.question(question).retriever(Sourced()).search(f"of {question.id}", 2)
            journal.forget([QUESTIONS[0].id, QUESTIONS[2].id])
            for question in (QUESTIONS[0], QUESTIONS[2]):
                assert f"a secret of of {question.id}".encode() not in held()
            assert len(journal.searches_of(QUESTIONS[1].id)[f"of {QUESTIONS[1].id}", 2]) == 2

    def held() -> bytes:
        return b"".join(file.read_bytes() for file in tmp_path.iterdir())

    asyncio.run(ask())
    with sqlite3.connect(tmp_path / JOURNAL) as db:
        assert {key for (key,) in db.execute("SELECT id FROM passages")} == {"shared", f"of {QUESTIONS[1].id}"}


def test_no_byte_of_what_is_forgotten_stays_where_pages_were_split(tmp_path: Path) -> None:
    names, draw = [f"secret{number:04d}" for number in range(1000)], random.Random(1)
    asked = [replace(QUESTIONS[0], id=f"{draw.getrandbits(64):016x}") for _ in names]
    journal = Journal(tmp_path / JOURNAL)
    for question, name in zip(asked, names, strict=True):
        journal.question(question)
        journal.searched(question.id, f"{name} {'x' * draw.randrange(200)}", 1, ())
    journal.forget([question.id for question in asked[::2]])
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert {name for name in names if name.encode() in held} == {*names[1::2]}
    journal.close()


def test_a_deletion_that_fails_leaves_the_file_as_it_was_and_open_to_writes(tmp_path: Path) -> None:
    first, second, third = QUESTIONS[:3]

    async def ask() -> None:
        async with Journal(tmp_path / JOURNAL) as journal:
            await journal.question(first).retriever(DictRetriever()).search("Lima", 1)
            with sqlite3.connect(tmp_path / JOURNAL) as db:
                db.execute("INSERT INTO searches VALUES (?, 'of another', 1, 'no JSON')", [second.id])
            with pytest.raises(JournalError, match="malformed"):
                journal.forget([first.id])
            journal.question(third)
            with sqlite3.connect(tmp_path / JOURNAL) as db:
                assert {key for (key,) in db.execute("SELECT id FROM questions")} == {first.id, third.id}

    asyncio.run(ask())


def test_of_equal_calls_at_once_one_is_sent(tmp_path: Path) -> None:
    policy, prompt = Counted(delay=0.01), (Message(role="user", content="x"),)

    async def ask() -> list[Sample]:
        async with Journal(tmp_path / JOURNAL) as journal:
            asked = journal.question(QUESTIONS[0]).policy(policy, "policy", Gate(PolicyConfig(concurrency=4)))
            return await asyncio.gather(*(asked.sample(prompt, ("query",), n=2, seed=1) for _ in range(3)))

    first, *others = asyncio.run(ask())
    assert others == [first] * 2
    assert len(policy.prompts) == 1


@pytest.mark.parametrize("failed", [Sample((), Usage()), ValueError("its own fault")])
def test_a_call_that_gives_nothing_is_neither_asked_for_ever_nor_left_open(
    tmp_path: Path, failed: Sample | ValueError
) -> None:
    class Faulty(ScriptedPolicy):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            whole = await super().sample(messages, allowed, n=n, seed=seed)
            if len(self.prompts) > 1:
                return whole
            if isinstance(failed, ValueError):
                raise failed
            return failed

    policy = Faulty()

    async def ask() -> tuple[Sample, int]:
        async with Journal(tmp_path / JOURNAL) as journal:
            asked = journal.question(QUESTIONS[0]).policy(policy, "policy", Gate(PolicyConfig()))
            prompt = (Message(role="user", content="x"),)
            with pytest.raises((PolicyError, ValueError), match="no completion|its own fault"):
                await asked.sample(prompt, ("query",), n=2, seed=1)
            return await asked.sample(prompt, ("query",), n=2, seed=1), journal.spending.lost

    again, lost = asyncio.run(asyncio.wait_for(ask(), 20))
    assert len(again.completions) == 2
    assert lost == isinstance(failed, ValueError), "who knows whether it was paid"


def test_calls_that_wait_for_a_limit_are_not_waited_for_at_the_end(tmp_path: Path) -> None:
    """One request a minute: the second would leave a minute later, to be told that all is over."""
    policy = Counted()

    async def ask() -> None:
        async with asyncio.timeout(30), Journal(tmp_path / JOURNAL) as journal:
            gate = Gate(PolicyConfig(concurrency=4, rate=RateConfig(requests=1)))
            asked = journal.question(QUESTIONS[0]).policy(policy, "policy", gate)
            waiting = [
                asyncio.create_task(asked.sample((Message(role="user", content=text),), ("query",), n=1, seed=0))
                for text in "abc"
            ]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    asyncio.run(ask())
    assert len(policy.prompts) == 1


def test_a_refused_key_keeps_the_calls_in_flight(tmp_path: Path, whole: tuple[bytes, Counter[str]]) -> None:
    class Exhausted(Counted):
        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            if len(self.prompts) >= 6:
                raise PolicyRefused("the quota is used up")
            return await super().sample(messages, allowed, n=n, seed=seed)

    out, log = tmp_path / "run", tmp_path / "log"
    log.touch()
    with pytest.raises(PolicyRefused):
        generate(out, Exhausted(log=log, delay=0.01))
    check_each_call_was_made_once(out, log, whole)


def test_whenever_the_quota_ends_the_run_says_so(tmp_path: Path) -> None:
    """Trees of which all calls wait are given up before the one that was refused has finished its wave."""

    class Exhausted(ScriptedPolicy):
        left = 0

        async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
            self.left -= 1
            if self.left < 0:
                await asyncio.sleep(0.002)
                raise PolicyRefused("the quota is used up")
            await asyncio.sleep(random.Random(seed).uniform(0.002, 0.01))
            return await super().sample(messages, allowed, n=n, seed=seed)

    for calls in range(4, 28, 2):
        policy = Exhausted()
        policy.left = calls
        with pytest.raises(PolicyRefused):
            generate(
                tmp_path / str(calls), policy, {"search.wave": 2}, [*QUESTIONS, Question("q4", QUESTION, ("lek",))]
            )
        assert read_manifest(tmp_path / str(calls))["error"] == "the quota is used up"


def test_a_run_over_fewer_questions_keeps_the_trees_of_the_others(tmp_path: Path) -> None:
    generate(tmp_path / "run", ScriptedPolicy())
    trees = (tmp_path / "run/trees.jsonl").read_bytes()
    generate(tmp_path / "run", ScriptedPolicy(), questions=QUESTIONS[2:])
    assert {tree.question.id for tree in read_records(tmp_path / "run/trees.jsonl", Tree)} == {"q0", "q1", "q2", "q3"}
    generate(tmp_path / "run", ScriptedPolicy())
    assert (tmp_path / "run/trees.jsonl").read_bytes() == trees


def test_a_failed_search_fails_its_question_and_is_made_again(
    tmp_path: Path, whole: tuple[bytes, Counter[str]]
) -> None:
    class Broken(DictRetriever):
        async def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
            if len(self.searched) >= 3:
                raise RetrieverError("the index is gone")
            return await super().search(query, top_k)

    out, log = tmp_path / "run", tmp_path / "log"
    generate(out, Counted(log=log), retriever=Broken())
    reasons = {failure.reason for failure in read_records(out / "failures.jsonl", Failure)}
    assert reasons == {"RetrieverError"}
    check_each_call_was_made_once(out, log, whole)


def test_a_replay_is_the_same_bytes_and_other_rules_make_other_trees(
    tmp_path: Path, whole: tuple[bytes, Counter[str]]
) -> None:
    out = tmp_path / "run"
    generate(out, ScriptedPolicy())
    assert main(["replay", "--trees", str(out), "--out", str(tmp_path / "same")]) == 0
    assert (tmp_path / "same/trees.jsonl").read_bytes() == whole[0]
    assert main(["replay", "--trees", str(out), "--out", str(tmp_path / "short"), "--search.rollouts", "1"]) == 0
    short = {tree.question.id: tree for tree in read_records(tmp_path / "short/trees.jsonl", Tree)}
    long = {tree.question.id: tree for tree in read_records(out / "trees.jsonl", Tree)}
    assert short.keys() == long.keys()
    assert sum(len(tree.nodes) for tree in short.values()) < sum(len(tree.nodes) for tree in long.values())
    command = ["replay", "--trees", str(out), "--out", str(tmp_path / "steep"), "--reward.alpha", "0.3"]
    assert main([*command, "--search.exploration", "5"]) == 0
    assert (tmp_path / "steep/trees.jsonl").read_bytes() != whole[0]
    texts = {node.text for tree in long.values() for node in tree.nodes}
    for tree in read_records(tmp_path / "steep/trees.jsonl", Tree):
        assert {node.text for node in tree.nodes} <= texts


def test_a_replay_puts_what_is_asked_now_before_what_the_run_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path / "run", ScriptedPolicy())
    command = ["replay", "--trees", str(tmp_path / "run"), "--out"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("reward: {alpha: 0.5}\nsearch: {children: 1}\n")
    monkeypatch.setenv("STEPRAG_SEARCH__ROLLOUTS", "2")
    assert main([*command, str(tmp_path / "asked"), "--config", str(recipe), "--reward.alpha", "0.4"]) == 0
    config = read_manifest(tmp_path / "asked")["config"]
    assert (config["reward"]["alpha"], config["search"]["children"], config["search"]["rollouts"]) == (0.4, 1, 2)
    assert config["policy"]["concurrency"] == SMALL["policy.concurrency"]
    monkeypatch.delenv("STEPRAG_SEARCH__ROLLOUTS")
    assert main([*command, str(tmp_path / "fast"), "--search.preset", "fast"]) == 0
    assert read_manifest(tmp_path / "fast")["config"]["search"]["rollouts"] == 4
    assert main([*command, str(tmp_path / "judged"), "--reward.name", "judge"]) == 2
    assert "has no call of a judge" in capsys.readouterr().err
    manifest = read_manifest(tmp_path / "run")
    manifest["identity"]["prompt"] = {"profile": "transcript", "hash": "of older words"}
    write_json(tmp_path / "run/manifest.json", manifest)
    assert main([*command, str(tmp_path / "other")]) == 2
    assert "was made by other prompts than transcript is now" in capsys.readouterr().err


def test_a_task_that_ctrl_c_breaks_off_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Raised once in the loop, and again while the task cleans up: asyncio tells of each such task."""

    def pressed() -> None:
        raise KeyboardInterrupt

    async def broken() -> int:
        asyncio.get_running_loop().call_soon(pressed)
        try:
            return await asyncio.sleep(60, 0)
        finally:
            pressed()

    assert guarded(lambda _: asyncio.run(broken()), []) == 130
    gc.collect()
    assert not caplog.records
    assert not logging.getLogger("asyncio").disabled


def test_a_second_ctrl_c_is_not_raised_in_the_middle_of_a_step() -> None:
    """It would end the loop before that step has woken those who wait for it, and the run would hang."""
    steps: list[int] = []

    async def stubborn() -> int:
        for step in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                os.kill(os.getpid(), signal.SIGINT)
                steps.append(step)
                await asyncio.sleep(60)
        raise asyncio.CancelledError

    assert guarded(lambda _: run_interruptible(stubborn()), []) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert steps == [0, 1]


@pytest.mark.parametrize(
    ("search", "preset", "code"),
    [(None, "default", 0), (None, "fast", 0), ("deep", "default", 2), (["x"], "fast", 2)],
)
def test_a_replay_of_a_run_whose_configuration_is_damaged_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], search: object, preset: str, code: int
) -> None:
    generate(tmp_path / "run", ScriptedPolicy())
    manifest = read_manifest(tmp_path / "run")
    manifest["config"] = {**manifest["config"], "search": search}
    if search is None:
        del manifest["config"]["search"]
    write_json(tmp_path / "run/manifest.json", manifest)
    command = ["replay", "--trees", str(tmp_path / "run"), "--out", str(tmp_path / "again"), "--search.preset", preset]
    assert main(command) == code
    assert ("manifest.json: config.search: expected an object" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize(("key", "value"), [("episode.depth", "3"), ("episode.top_k", "2"), ("limit", "1")])
def test_what_decides_a_replay_is_its_identity(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another depth into the same folder once overwrote its trees."""
    generate(tmp_path / "run", ScriptedPolicy())
    command = ["replay", "--trees", str(tmp_path / "run"), "--out", str(tmp_path / "again")]
    assert main(command) == 0
    before = (tmp_path / "again/trees.jsonl").read_bytes()
    assert main([*command, f"--{key}", value]) == 2
    assert f"was made with {key} = " in capsys.readouterr().err
    assert (tmp_path / "again/trees.jsonl").read_bytes() == before
    generate(tmp_path / "run", ScriptedPolicy(), questions=[*QUESTIONS, replace(QUESTIONS[0], id="one more")])
    assert main(command) == 2
    assert "was made with calls = " in capsys.readouterr().err, "the run went on"


def test_a_replay_keeps_the_tools_and_special_tokens_of_the_run_for_those_that_read_it(tmp_path: Path) -> None:
    generate(tmp_path / "run", ScriptedPolicy())
    manifest = read_manifest(tmp_path / "run")
    write_json(tmp_path / "run/manifest.json", {**manifest, "reserved": ["<tool_call>"]})
    assert main(["replay", "--trees", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    assert read_manifest(tmp_path / "again")["reserved"] == ["<tool_call>"]


def test_a_replay_counts_every_answer_that_was_paid_for(tmp_path: Path) -> None:
    with pytest.raises(BudgetReached):
        generate(tmp_path / "run", ScriptedPolicy(), {"budget.calls": 14})
    assert main(["replay", "--trees", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    trees = list(read_records(tmp_path / "again/trees.jsonl", Tree))
    assert "journal" in {tree.status for tree in trees}
    answers = [node for tree in trees for node in tree.nodes if node.action == "answer"]
    assert answers
    assert all(node.prediction_f1 is not None and node.visits > 0 for node in answers)


def test_a_later_round_is_replayed_with_what_it_came_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    generate(first, ScriptedPolicy())
    generate(again, ScriptedPolicy(), {"seed": 1}, after=[first])
    assert any(tree.known for tree in read_records(again / "trees.jsonl", Tree))
    command = ["replay", "--trees", str(again), "--out", str(tmp_path / "same")]
    assert main(command) == 2
    assert "give --after with the same runs" in capsys.readouterr().err
    assert main([*command, "--after", str(first)]) == 0
    assert (tmp_path / "same/trees.jsonl").read_bytes() == (again / "trees.jsonl").read_bytes()


def test_a_damaged_or_foreign_journal_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calls.sqlite"
    file.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(JournalError, match="calls.sqlite: file is not a database; move it away"):
        Journal(file)


@pytest.mark.parametrize("size", [60_000, 12_000])  # full on the way, and from the start
def test_a_full_disk_is_said_and_what_was_paid_for_is_kept(tmp_path: Path, whole: tuple[bytes, Counter[str]],
                                                           size: int) -> None:  # fmt: skip
    out, log = tmp_path / "run", tmp_path / "log"
    log.touch()
    child = os.fork()
    if child == 0:  # the limit holds for the process, so it has one of its own
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        with (tmp_path / "said").open("w") as said, contextlib.redirect_stderr(said):
            code = guarded(lambda _: generate(out, Counted(log=log)) or 0, [])
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "make room and run" in (tmp_path / "said").read_text()
    generate(out, Counted(log=log))
    assert (out / "trees.jsonl").read_bytes() == whole[0]


class Forgetful(ScriptedPolicy):
    """Keeps no record of what it was asked."""

    async def sample(self, messages: tuple[Message, ...], allowed: tuple[str, ...], *, n: int, seed: int) -> Sample:
        self.prompts.clear()
        return await super().sample(messages, allowed, n=n, seed=seed)


def peak_memory(out: Path, trees: int) -> int:
    """Resident KiB at most of a process that searches so many trees."""
    generate(out, Forgetful(), questions=[Question(f"q{i}", f"{QUESTION} ({i})", ("lek",)) for i in range(trees)])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trees(tmp_path: Path) -> None:
    """Ten times the trees, 9 MiB of them on disk, within 6 MiB; `benchmarks/growth.py` takes 10,000."""
    peaks = []
    for trees in (100, 1_000):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(peak_memory, (tmp_path / str(trees), trees)))
    assert (tmp_path / "1000/trees.jsonl").stat().st_size > 9 * 2**20
    assert peaks[1] - peaks[0] < 6 * 1024


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE calls SET reply = 'nonsense'",
        "UPDATE calls SET reply = '{}'",
        "UPDATE calls SET reply = '[]'",
        "UPDATE calls SET reply = '[[1, 2]]'",
        "UPDATE calls SET reply = 7",
        f"UPDATE calls SET reply = '{'[' * 50_000}'",
        "UPDATE calls SET usage = '[1, 2, 3]'",
        "UPDATE calls SET usage = '[1, -2, 3, 0]'",
        f"UPDATE calls SET usage = '[1, {'9' * 400}, 3, 0]'",
        "UPDATE searches SET found = '[[1]]'",
        "DELETE FROM passages",
        "UPDATE questions SET row = 'null'",
    ],
    ids=lambda damage: damage[:44],
)
def test_a_row_that_this_program_did_not_write_is_named_and_ends_no_start_in_a_traceback(
    tmp_path: Path, damage: str
) -> None:
    run = tmp_path / "run"
    generate(run, ScriptedPolicy(), questions=QUESTIONS[:1])
    (run / "trees.jsonl").unlink()
    with sqlite3.connect(run / JOURNAL) as db:
        db.execute(damage)
    with pytest.raises((JournalError, DataError), match=r"calls\.sqlite"):
        generate(run, ScriptedPolicy(), questions=QUESTIONS[:1])
        with sqlite3.connect(run / JOURNAL) as db:  # rows that a search does not read, a replay does
            db.execute(damage)
        asyncio.run(_replayed(run))


async def _replayed(run: Path) -> None:
    async with Journal(run / JOURNAL, reading=True) as journal:
        journal.questions()


def test_group_commit_writes_the_journal_through_and_a_disk_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, failing, real = [], False, os.fsync

    def fsync(file: int) -> None:
        name = os.readlink(f"/proc/self/fd/{file}")
        if name.endswith(f"{JOURNAL}-wal"):
            if failing:
                raise OSError(errno.EIO, "the disk is broken")
            synced.append(os.path.getsize(name))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    generate(tmp_path / "without", ScriptedPolicy())
    assert not synced
    slow = {**SMALL, "journal.sync_seconds": 0.01}
    generate(tmp_path / "with", Counted(delay=0.05), slow)
    assert len(synced) > 2
    assert synced[-1] > 0, "the last write came before the last call"
    failing = True
    with pytest.raises(JournalError, match="calls.sqlite: .*the disk is broken"):
        generate(tmp_path / "broken", Counted(delay=0.05), slow)
    with pytest.raises(JournalError, match="another error|is closed|closed database"):
        asyncio.run(_used_after_a_failed_close(tmp_path))


async def _used_after_a_failed_close(folder: Path) -> None:
    journal = Journal(folder / JOURNAL, sync_seconds=60)
    with pytest.raises(JournalError, match="the disk is broken"):
        async with journal:
            journal.question(QUESTIONS[0])
    journal.question(QUESTIONS[1])
