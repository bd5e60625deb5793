"""How likely a policy finds a given text: each engine's dialect, the journal, the search and the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.commands import main
from steprag.agent.belief import believe, check_scoring
from steprag.agent.environment import Environment
from steprag.agent.grammars import TRANSCRIPT
from steprag.agent.profiles import load_profile
from steprag.config.sections import PolicyConfig
from steprag.engines.launch import vllm_program
from steprag.engines.tokens import prompt_tokens
from steprag.errors import BudgetReached, ConfigError, PolicyError
from steprag.policy.client import OpenAIPolicy
from steprag.policy.open import open_policy
from steprag.records.jsonl import read_records, write_records
from steprag.runs.run import read_manifest
from steprag.tree import Tree
from steprag.types import Message, Question, Sample, State
from tests.fakes import (
    BY_ROLLOUTS,
    QUESTION,
    BelievingPolicy,
    DictRetriever,
    Endpoint,
    believing_reply,
    chat_reply,
    options,
    serve,
)
from tests.models import make_llama

TEXTS = [
    "Question: Which city is the capital of Peru?",
    "So the answer is <answer> Lima </answer>",
    "Search or answer.",
]
PROMPT = (
    Message(role="system", content="Answer in small steps."),
    Message(role="user", content="Question: Which city is the capital of Peru?\nSearch or answer."),
    Message(role="assistant", content="So the answer is <answer>"),
)
ANSWER = " Lima </answer>"
Reply = Callable[[dict[str, Any]], tuple[int, object]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), TEXTS * 20)


class Transformers:
    """A model of transformers, which says what is right and answers in the dialects of engines that cannot run here."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()

    def logprobs(self, ids: list[int]) -> list[float | None]:
        """Of every token given those before it; None for the first."""
        import torch

        with torch.no_grad():
            told = torch.log_softmax(self.model(torch.tensor([ids])).logits[0].double(), dim=-1)
        return [None, *(told[place, token].item() for place, token in enumerate(ids[1:]))]

    def score(self, messages: tuple[Message, ...], text: str) -> list[float]:
        prompt = prompt_tokens(messages, self.tokenizer)
        told = self.logprobs(prompt + self.tokenizer.encode(text, add_special_tokens=False))
        return [one for one in told[len(prompt) :] if one is not None]

    def vllm(self, request: dict[str, Any]) -> tuple[int, object]:
        if "messages" in request:
            assert request["continue_final_message"] is True
            return 200, {"tokens": prompt_tokens(request["messages"], self.tokenizer)}
        if "prompt_logprobs" not in request:
            special = request["add_special_tokens"]
            return 200, {"tokens": self.tokenizer.encode(request["prompt"], add_special_tokens=special)}
        ids = request["prompt"]
        told = [one and {str(token): {"logprob": one, "rank": 1}} for token, one in zip(ids, self.logprobs(ids))]  # noqa: B905
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 3}}
        return 200, {"choices": [{"prompt_logprobs": told}], "usage": usage}

    def sglang(self, request: dict[str, Any]) -> tuple[int, object]:
        ids, start = request["input_ids"], request["logprob_start_len"]
        told = [[one, token, None] for token, one in zip(ids, self.logprobs(ids))][start:]  # noqa: B905
        told[0][0] = None
        return 200, {"meta_info": {"input_token_logprobs": told, "prompt_tokens": len(ids), "completion_tokens": 1}}

    def transformers(self, request: dict[str, Any]) -> tuple[int, object]:
        told = self.score(tuple(request["messages"]), request["text"])
        return 200, {"logprobs": told, "prompt_tokens": 40, "completion_tokens": len(told)}


def scored(reply: Reply, engine: str, retries: int = 0, **described: str) -> Sample:
    """What a policy behind an endpoint that answers so says of `ANSWER`."""
    with serve(reply, **described) as endpoint:
        return told_by(engine=engine, base_url=endpoint.url, model="double", retries=retries)


def told_by(**config: Any) -> Sample:
    """What a policy of that configuration says of `ANSWER`."""

    async def ask() -> Sample:
        async with open_policy(PolicyConfig(**config), TRANSCRIPT) as policy:
            return await policy.score(PROMPT, ANSWER)

    return asyncio.run(ask())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_every_dialect_tells_the_numbers_of_transformers(llama: Path, engine: str) -> None:
    truth = Transformers(llama)
    sample = scored(getattr(truth, engine), engine, root=str(llama))
    assert sample.completions[0].logprobs == pytest.approx(truth.score(PROMPT, ANSWER))
    assert (sample.completions[0].text, sample.completions[0].finish, sample.usage.calls) == (ANSWER, "scored", 1)


@pytest.mark.slow
def test_llamacpp_tells_the_numbers_of_transformers() -> None:
    """Weights of eight bits against the same in float32: within a few tenths of a nat."""
    from steprag.engines.models import resolve_model
    from steprag.engines.weights import base_weights

    truth = Transformers(Path(base_weights(resolve_model("smollm2-135m-instruct"))))
    told, right = told_by(concurrency=1).completions[0].logprobs or (), truth.score(PROMPT, ANSWER)
    assert len(told) == len(right)
    assert sum(told) == pytest.approx(sum(right), abs=0.7)


@pytest.mark.slow
def test_transformers_serve_tells_the_numbers_of_transformers(llama: Path) -> None:
    """The engine itself, which serves completions beside scores."""

    asked = [(messages, text) for messages in (PROMPT, PROMPT[:2]) for text in (ANSWER, " Peru")]

    async def ask() -> list[Sample]:
        async with open_policy(PolicyConfig(engine="transformers", model=str(llama)), TRANSCRIPT) as policy:
            said = policy.sample(PROMPT[:2], ("query",), n=1, seed=1)
            return await asyncio.gather(*(policy.score(*each) for each in asked), said)

    truth, (*scores, said) = Transformers(llama), asyncio.run(ask())
    assert said.completions[0].text
    for sample, expected in zip(scores, (truth.score(*each) for each in asked), strict=True):
        assert sample.completions[0].logprobs == pytest.approx(expected, abs=1e-4)
        assert sample.usage.completion_tokens == len(expected)
    assert scores[0].usage.prompt_tokens == len(prompt_tokens(PROMPT, truth.tokenizer))


@pytest.mark.long
def test_vllm_tells_the_numbers_of_transformers(llama: Path) -> None:
    """The engine itself, where `scripts/setup_vllm.sh` has been run."""
    try:
        vllm_program()
    except ConfigError as error:
        pytest.skip(str(error))
    told = told_by(engine="vllm", model=str(llama), concurrency=2, context=512).completions[0].logprobs
    assert told == pytest.approx(Transformers(llama).score(PROMPT, ANSWER), abs=0.1)


@pytest.mark.parametrize("content", [
    pytest.param([{"id": 1, "logprob": -1.0}], id="another text"),
    *(pytest.param([{"id": ord(c), **told} for c in ANSWER], id=name) for name, told in (
        ("no number", {"logprob": float("nan")}), ("above 0", {"logprob": 2.0}), ("no log-probability", {}))),
    pytest.param([{"logprob": -1.0} for _ in ANSWER], id="no token"), pytest.param([], id="nothing"),
])  # fmt: skip
def test_a_score_that_makes_no_sense_is_asked_for_again(content: list[dict[str, Any]]) -> None:
    good = believing_reply()

    def breaking(times: int) -> Reply:
        broken = iter([(200, {"choices": [{"logprobs": {"content": content}}]})] * times)
        return lambda request: (next(broken, None) if "grammar" in request else None) or good(request)

    assert scored(breaking(1), "llamacpp", retries=1).completions[0].logprobs == (-1.0,) * len(ANSWER)
    with pytest.raises(PolicyError, match="broken"):
        scored(breaking(1), "llamacpp")


def test_an_endpoint_that_cannot_score_is_told_apart(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine openai cannot score.*label\.name=cover"):
        scored(chat_reply(), "openai")
    with pytest.raises(ConfigError, match="does not say where the weights"):
        scored(Transformers(llama).sglang, "sglang")


@pytest.mark.parametrize("engine", ["llamacpp", "transformers"])
def test_a_probe_says_that_log_probabilities_are_not_told(engine: str) -> None:
    """By an endpoint that answers something else, and by one that lacks the route, as another's transformers serve."""

    async def probe(url: str) -> None:
        config = PolicyConfig.model_validate({"engine": engine, "base_url": url, "model": "double", "retries": 0})
        async with OpenAIPolicy(config, url, "double", TRANSCRIPT) as policy:
            await check_scoring(policy)

    replies: dict[str, Reply] = {"llamacpp": chat_reply(), "transformers": lambda _: (404, {"detail": "Not Found"})}
    with serve(replies[engine]) as endpoint, pytest.raises(ConfigError, match=r"log-probabilities.*label\.name=cover"):
        asyncio.run(probe(endpoint.url))


def test_a_belief_is_of_the_likeliest_golden_answer_at_the_words_that_announce_it() -> None:
    policy = BelievingPolicy()
    world = Environment(load_profile("transcript"), DictRetriever(), 3, 7)
    state = State(f"{QUESTION} The lek?")
    belief = asyncio.run(believe(world, policy, Question("q", QUESTION, ("sol  of Peru", "lek", "sol of Peru")), state))
    assert policy.scored == [" sol of Peru </answer>", " lek </answer>"]
    assert (belief.answer, belief.tokens, belief.usage.calls) == ("lek", 14, 2)
    assert belief.logp == pytest.approx(-0.14)
    assert world.announced(state)[-1] == Message(role="assistant", content="So the answer is <answer>")
    continued = Environment(load_profile("search-r1"), DictRetriever(), 3, 7)
    begun = continued.observe(State("Who?")).messages
    assert begun[-1]["role"] == "user"
    assert continued.announced(State("Who?"))[-1] == Message(role="assistant", content="<answer>")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{i}", f"{QUESTION} ({i})", ("lek", "Albanian lek")) for i in range(4)])
    return file


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve(believing_reply()) as running:
        yield running


def llamacpp(endpoint: Endpoint) -> list[str]:
    return ["--policy.engine", "llamacpp", "--policy.base_url", endpoint.url, "--policy.model", "double"]


def scores_asked(endpoint: Endpoint) -> list[str]:
    return [r["grammar"] for r in endpoint.requests if r.get("grammar", "").startswith("root ::= <[")]


def test_beliefs_added_to_finished_trees_are_those_that_the_search_would_have_asked_for(
    endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path
) -> None:
    asked, plain, added = (tmp_path / name for name in ("asked", "plain", "added"))
    search = ["--search.rollouts", "5", "--search.hopeless", "none", *llamacpp(endpoint)]
    assert main(["generate", *options(endpoint, questions, world_index, plain), *search]) == 0
    assert not scores_asked(endpoint)
    assert main(["generate", *options(endpoint, questions, world_index, asked), *search, "--search.score", "true"]) == 0
    within = len(scores_asked(endpoint))
    belief = ["belief", "--trees", str(plain), "--out", str(added), *llamacpp(endpoint)]
    assert main([*belief, "--limit", "2"]) == 0
    assert main(["pairs", "--trees", str(added), "--out", str(tmp_path / "first"), *BY_ROLLOUTS]) == 0
    first = json.loads((tmp_path / "first/report.json").read_text())
    assert first["counts"]["trees"] == 2
    assert first["calibration"]["open"]["answers"] > 0, "whether belief can be trusted is known before the rest is paid"
    assert main(belief) == 0
    assert (added / "trees.jsonl").read_bytes() == (asked / "trees.jsonl").read_bytes()
    assert len(scores_asked(endpoint)) == 2 * within + 1, "the second start probes again"
    trees = list(read_records(added / "trees.jsonl", Tree))
    for tree in trees:
        assert all((node.belief is None) == node.terminal for node in tree.nodes)
    spent = sum(node.belief.usage.calls for tree in trees for node in tree.nodes if node.belief)
    assert read_manifest(added)["spent"]["calls"] <= spent == within - 1  # one more was the probe
    by_gain = [*BY_ROLLOUTS, "--label.name", "gain", "--pairs.errors", "0"]
    assert main(["pairs", "--trees", str(added), *by_gain]) == 0
    assert json.loads((added / "pairs/report.json").read_text())["calibration"]["open"]["answers"] > 0

    requests = len(endpoint.requests)
    (added / "trees.jsonl").unlink()
    assert main(belief) == 0
    assert (added / "trees.jsonl").read_bytes() == (asked / "trees.jsonl").read_bytes()
    assert len(endpoint.requests) == requests + 2, "only the probe (its words encoded, and scored) goes out again"
    assert main(["replay", "--trees", str(asked), "--out", str(tmp_path / "replayed")]) == 0
    assert (tmp_path / "replayed/trees.jsonl").read_bytes() == (asked / "trees.jsonl").read_bytes()


def test_scores_are_priced_as_the_policy_and_held_within_the_budget(
    endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, added, asked = (tmp_path / name for name in ("run", "added", "asked"))
    price = ["--policy.price.prompt", "2", "--policy.price.completion", "8"]
    search = ["--search.rollouts", "3", "--search.hopeless", "none", *llamacpp(endpoint), *price]
    assert main(["generate", *options(endpoint, questions, world_index, run), *search]) == 0
    belief = ["belief", "--trees", str(run), "--out", str(added), *llamacpp(endpoint), *price]
    assert main([*belief, "--budget.calls", "5"]) == BudgetReached.exit_code
    said = capsys.readouterr().err
    assert "budget.calls = 5 is reached" in said
    assert said.count("belief: 5 calls, ") == 1
    assert said.count(" of 4 questions are finished, ") == 1
    assert read_manifest(added)["spent"]["calls"] == 5
    assert main(belief) == 0
    spent = read_manifest(added)["spent"]
    assert spent["usd"] == pytest.approx((2 * spent["prompt_tokens"] + 8 * spent["completion_tokens"]) / 1e6)
    assert main(["generate", *options(endpoint, questions, world_index, asked), *search, "--search.score", "true"]) == 0
    both, alone = read_manifest(asked)["spent"], read_manifest(run)["spent"]
    assert both["usd"] == pytest.approx(alone["usd"] + spent["usd"]), "a search that asks pays for its scores too"
    plan = ["plan", "--questions", str(questions), "--like", str(asked), *search, "--search.score", "true", "--json"]
    capsys.readouterr()
    assert main(plan) == 0
    told = json.loads(capsys.readouterr().out)
    dollars = next(line["amount"] for line in told["forecast"] if line["what"] == "dollars")
    assert dollars == pytest.approx(both["usd"]), "the same questions cost the same again"
    assert told["calls_at_most"] >= both["calls"]


def test_beliefs_need_the_passages_that_the_trees_saw(
    endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, bare = tmp_path / "run", tmp_path / "bare"
    assert main(["generate", *options(endpoint, questions, world_index, run, "--search.rollouts", "3")]) == 0
    bare.mkdir()
    (bare / "trees.jsonl").write_bytes((run / "trees.jsonl").read_bytes())
    belief = ["belief", "--trees", str(bare), "--out", str(tmp_path / "out"), *llamacpp(endpoint)]
    assert main(belief) == 2
    assert "give the index that the trees searched" in capsys.readouterr().err
    assert main([*belief, "--index", str(world_index), "--episode.top_k", "1"]) == 2
    assert "finds other passages now" in capsys.readouterr().err
    assert main([*belief[:-4], *options(endpoint, questions, world_index, tmp_path / "x")[6:]]) == 2
    assert "engine openai cannot score" in capsys.readouterr().err


def test_a_search_by_belief_needs_scores_and_an_engine_that_tells_them(
    endpoint: Endpoint, questions: Path, world_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate = ["generate", *options(endpoint, questions, world_index, tmp_path / "run")]
    assert main([*generate, "--search.score", "true"]) == 2
    assert "engine openai cannot score" in capsys.readouterr().err
    assert main([*generate, "--reward.name", "gain"]) == 2
    assert "needs search.score true" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with serve(chat_reply()) as mute:
        generate = ["generate", *options(mute, questions, world_index, tmp_path / "run"), *llamacpp(mute)]
        assert main([*generate, "--search.score", "true", "--policy.retries", "0"]) == 2
    assert "label without a model (label.name=cover)" in capsys.readouterr().err
    assert not [request for request in mute.requests if "seed" in request], "no step was sampled"
