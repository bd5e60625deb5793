"""The step critic: trained from step labels, and choosing among sampled steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apps.commands import main
from steprag.agent.critic import Critic, find_critic
from steprag.agent.profiles import load_profile
from steprag.batch.journal import JOURNAL, Journal
from steprag.errors import ConfigError
from steprag.records.jsonl import read_json, read_records, write_records
from steprag.types import Message, Prediction, Question
from tests import training_parts
from tests.fakes import Endpoint, answer, by_turn, chat_reply, evidence, options, serve
from tests.test_checkpoints import with_prompt
from tests.training_parts import Capture, Refused, guessing, lines, messages, moved, searching, tensors, train

LEARN = ["--epochs", "8", "--learning_rate", "0.005", "--scheduler", "constant_with_warmup"]


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = training_parts.write_labels(tmp_path_factory.mktemp("labels"))
    prompt = {"profile": "transcript", "hash": load_profile("transcript").hash}
    (folder / "manifest.json").write_text(json.dumps({"prompt": prompt}))
    return folder


@pytest.fixture(scope="module")
def critic(tiny: Path, labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("critic")
    assert train(tiny, labels, out, "critic", *LEARN) == 0
    return out


def loaded(checkpoint: Path) -> Critic:
    return Critic(find_critic(str(checkpoint), load_profile("transcript"), unchecked=False))


def prompt(number: int) -> tuple[Message, ...]:
    return tuple(Message(role=m["role"], content=m["content"]) for m in messages(number))


def values(checkpoint: Path) -> list[float]:
    """What it thinks of searching and of guessing for a question that it has not seen."""
    return loaded(checkpoint).values(prompt(99), [searching(99), guessing(99)])


def test_a_critic_of_bfloat16_has_its_head_in_float32(tiny: Path, labels: Path, tmp_path: Path) -> None:
    """In bfloat16 the small updates of a step would be rounded away."""
    assert train(tiny, labels, tmp_path / "out", "critic", "--bf16", "true", "--max_steps", "1") == 0
    assert {str(tensor.dtype) for tensor in tensors(tmp_path / "out").values()} == {"torch.float32"}


def test_a_critic_learns_to_tell_two_kinds_of_steps(critic: Path) -> None:
    manifest = read_json(critic / "manifest.json")
    held_out = manifest["held_out"]
    assert manifest["loss_last"] < manifest["loss_first"]
    assert held_out["eval_pairwise"] == 1.0
    assert held_out["eval_sibling_pairs"] == 4
    assert held_out["eval_pearson"] > 0.9
    assert held_out["eval_spearman"] > 0.5
    assert held_out["eval_loss"] < 0.6
    assert any("score" in key for key in tensors(critic))
    good, bad = values(critic)
    assert 0 <= bad < 0.5 < good <= 1
    assert good - bad > 0.1  # how far they are apart after so few steps differs by processor


def test_every_weight_of_a_critic_may_learn(tiny: Path, labels: Path, tmp_path: Path) -> None:
    every = ["--finetuning", "full", "--learning_rate", "0.002"]
    assert train(tiny, labels, tmp_path / "out", "critic", *LEARN, *every) == 0
    good, bad = values(tmp_path / "out")
    assert good > bad + 0.3
    manifest = read_json(tmp_path / "out" / "manifest.json")
    old = with_prompt(
        tmp_path / "out", tmp_path / "old", None, config={**manifest["config"], "critic": {"loss": "mse"}}
    )
    with pytest.raises(ConfigError, match="critic.loss mse, which critics no longer have; train it again"):
        loaded(old)


def test_the_top_blocks_alone_and_the_head(tiny: Path, labels: Path, tmp_path: Path) -> None:
    assert train(tiny, labels, tmp_path, "critic", "--lora.layers", "1", "--max_steps", "2", "--merge", "true") == 0
    assert all(".layers.1." in key or key.endswith("score.weight") for key in tensors(tmp_path))
    assert values(tmp_path / "merged") == pytest.approx(values(tmp_path), abs=1e-4)


def test_it_goes_on_from_policy_and_critic(tiny: Path, labels: Path, warm: Path, critic: Path, tmp_path: Path) -> None:
    still = ["--max_steps", "1", "--learning_rate", "1e-7"]
    for start in (warm, critic):
        out = tmp_path / start.name
        assert train(tiny, labels, out, "critic", "--adapter", str(start), *still) == 0
        assert not moved(start, out, by=1e-5)
        assert any("score" in key for key in tensors(out))


def test_a_critic_is_no_policy(critic: Path, index: Path, refused: Refused, capsys: Capture) -> None:
    refused("dpo", "is a critic; stage dpo starts from a policy's adapter", "--adapter", str(critic))
    assert main(["ask", "Which town?", "--index", str(index), "--model", str(critic)]) == 2
    assert "writes no steps; give it with --critic" in capsys.readouterr().err


def test_accumulated_batches_make_the_same_step(tiny: Path, labels: Path, tmp_path: Path) -> None:
    for name, more in (("whole", []), ("parts", ["--batch_size", "2", "--accumulation", "2"])):
        options = ["--max_steps", "3", "--scheduler", "constant_with_warmup", *more]
        assert train(tiny, labels, tmp_path / name, "critic", *options) == 0
    losses = [[row["loss"] for row in lines(tmp_path / name / "metrics.jsonl")[:3]] for name in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert not moved(tmp_path / "whole", tmp_path / "parts", by=2e-3)


def test_values_do_not_depend_on_what_else_is_in_the_batch(critic: Path) -> None:
    found = loaded(critic)
    texts = [searching(7), guessing(7), "So the next query is <query> " + "far " * 30 + "</query>"]
    together = found.values(prompt(7), texts)
    assert together == found.values(prompt(7), texts)
    assert together == pytest.approx([found.score(prompt(7), text) for text in texts], abs=1e-5)


def tried(prompt: str, draw: int) -> str:
    """Searches, guesses or breaks the grammar, as it happens."""
    return [searching(draw), guessing(draw), "Hm."][draw % 3]


def command(endpoint: Endpoint, questions: Path, index: Path, out: Path, *more: str) -> list[str]:
    return ["infer", *options(endpoint, questions, index, out, "--episode.depth", "3", *more)]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    write_records(file, [Question(f"q{n}", f"Which town number {n}?", ("Lima",)) for n in range(6)])
    return file


def test_the_step_that_is_taken_is_the_critics(critic: Path, questions: Path, index: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = ["--seed", "2", "--critic", str(critic), "--policy.temperature", "0.8", "--candidates", "6"]
    with serve(chat_reply(by_turn(tried, evidence("None"), answer("Lima")))) as endpoint:
        run = command(endpoint, questions, index, out, *chosen)
        assert main(run) == 0
        whole, calls = (out / "predictions.jsonl").read_bytes(), len(endpoint.requests)
        assert {request["n"] for request in endpoint.requests} == {6}
        found, journal = loaded(critic), Journal(out / JOURNAL, reading=True)
        for prediction in read_records(out / "predictions.jsonl", Prediction):
            assert [step.action for step in prediction.steps] == ["query", "evidence", "answer"]
            (_, sample), *_ = journal.calls_of(prediction.id)
            texts = [completion.text for completion in sample.completions if completion.text != "Hm."]
            assert len(texts) == 4
            assert "<answer>" in texts[0], "the first would be taken without a critic"
            sent = (request["messages"] for request in endpoint.requests)
            worth = found.values(tuple(next(one for one in sent if prediction.question in one[1]["content"])), texts)
            assert prediction.steps[0].text == texts[worth.index(max(worth))]
        (out / "predictions.jsonl").unlink()
        assert main(run) == 0
        assert (out / "predictions.jsonl").read_bytes() == whole
        assert len(endpoint.requests) == calls, "the candidates are in the journal"
        assert main([*run[:-1], "8"]) == 2, "another number of candidates is another run"


@pytest.mark.parametrize(("given", "complaint"), [
    (["--candidates", "4"], "give a step critic with --critic"),
    (["--critic", "CRITIC"], "give --candidates"),
    (["--critic", "CRITIC", "--candidates", "4"], "give --policy.temperature"),
    (["--critic", "WARM", "--candidates", "4", "--policy.temperature", "1"], "is no critic"),
    (["--critic", "OTHER", "--candidates", "4", "--policy.temperature", "1"], "(hash other)"),
])  # fmt: skip
def test_critics_that_cannot_choose_are_refused(
    critic: Path, warm: Path, questions: Path, index: Path, tmp_path: Path, given: list[str], complaint: str,
    capsys: Capture,
) -> None:  # fmt: skip
    other = with_prompt(critic, tmp_path / "other", {"profile": "transcript", "hash": "other"})
    paths = {"CRITIC": str(critic), "WARM": str(warm), "OTHER": str(other)}
    nobody = Endpoint("http://127.0.0.1:1/v1", [])
    more = [paths.get(option, option) for option in given]
    assert main(command(nobody, questions, index, tmp_path / "out", *more)) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
