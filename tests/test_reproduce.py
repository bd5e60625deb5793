"""The proof: that it runs from end to end, and that its sentences say what the figures bear."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import apps.reproduce.stages
from apps.commands import main
from apps.reproduce.contenders import (
    LABELS,
    RULES,
    Proof,
    QuestionSet,
    Sizes,
    best_trained,
    elsewhere,
    the_contenders,
)
from apps.reproduce.options import proof_parser, sizes_asked
from apps.reproduce.report import costs, seconds, verdict
from apps.reproduce.reproduce import one_kind, run_stages, search, the_questions
from apps.reproduce.stages import Pipeline, Stage, stage
from steprag import atlas
from steprag.errors import PART_DONE, ConfigError, StepragError
from steprag.records.jsonl import read_json, read_records, write_json
from steprag.types import Question
from tests.fakes import descendants, wait_for


def compared(em: float, low: float, high: float, better_from: float, p: float = 0.03) -> dict[str, Any]:
    gain = {"em": em, "low": low, "high": high, "p": p, "better": 3, "worse": 1, "questions": 40}
    runs = {"a": {"em_low": better_from, "em_high": 0.9}, "b": {"em_low": 0.1, "em_high": 0.3}}
    return {"runs": runs, "differences": {"a": {"b": gain}}}


@pytest.mark.parametrize(("figures", "said"), [
    (compared(0.2, 0.1, 0.3, 0.35), "+20.0 points of EM, 95 % interval +10.0 to +30.0 (paired bootstrap), exact "
     "McNemar p 0.03 (3 questions better, 1 worse of 40): a gain; the two 95 % intervals of EM are disjoint."),
    (compared(0.2, 0.1, 0.3, 0.25), "of 40): a gain."),
    (compared(0.1, -0.1, 0.3, 0.2), "of 40): no difference shown."),
    (compared(0.33, 0.08, 0.58, 0.0, p=0.125), "of 40): no difference shown."),
    (compared(-0.2, -0.3, -0.1, 0.0), "-20.0 points of EM, 95 % interval -30.0 to -10.0"),
    (compared(-0.2, -0.3, -0.1, 0.0), "of 40): a loss."),
])  # fmt: skip
def test_a_sentence_says_no_more_than_interval_and_test(figures: dict[str, Any], said: str) -> None:
    assert said in verdict("a", "b", "one over the other", figures)


def proof_of(out: Path, *, lanes: int = 1, without: tuple[str, ...] = (), **sizes: int) -> Proof:
    few = Sizes(**{"train": 5, "second": 4, "demos": 0, **sizes})
    return Proof(out=out, sizes=few, without=without, engine="vllm", lanes=lanes)


def test_the_rounds_search_different_questions_and_no_demos_is_a_size_too() -> None:
    given = proof_parser("p", "", "out", "report", Sizes).parse_args(["--demos", "0", "--test", "3"])
    assert sizes_asked(given, Sizes) == Sizes(demos=0, test=3)
    rounds = the_questions(Sizes(train=5, second=4, third=3))
    assert [len(questions) for questions in rounds] == [5, 4, 3]
    assert len({question.id for questions in rounds for question in questions}) == 12
    with pytest.raises(ConfigError, match="--train, --second and --third ask for 100160"):
        the_questions(Sizes(third=100_000))


Commands = Callable[[Callable[[list[str]], int]], None]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Says what becomes of the commands that stages run in this process."""
    return lambda run: monkeypatch.setattr(apps.reproduce.stages, "run", run)


@pytest.mark.parametrize(("lanes", "names"), [(1, ["search1"]), (2, ["search1-1", "search1-2"])])
def test_the_runs_of_a_search_share_its_questions(
    tmp_path: Path, commands: Commands, lanes: int, names: list[str]
) -> None:
    typed: list[list[str]] = []
    commands(lambda argv: typed.append(argv) or 0)
    questions, *_ = the_questions(Sizes(train=5))
    proof = proof_of(tmp_path, lanes=lanes)
    folders = search(Pipeline(tmp_path), proof, 1, questions, adapter="warm")
    assert folders == [str(tmp_path / name) for name in names]
    files = [Path(value(argv, "--questions")) for argv in typed]
    assert [question for file in files for question in read_records(file, Question)] == questions
    assert [value(argv, "--out") for argv in typed] == folders
    assert all("--policy.engine vllm --policy.concurrency 24" in " ".join(argv) for argv in typed)


def test_a_folder_keeps_to_one_engine_and_a_lane_is_a_lane(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        one_kind(proof_of(tmp_path))
    begun = "begun with --engine vllm --lanes 1 --demos 0 --train 5 --second 4 --third 0; give"
    for other in (proof_of(tmp_path, lanes=2), proof_of(tmp_path, demos=20)):
        with pytest.raises(ConfigError, match=begun):
            one_kind(other)
    for older in ("kind", "stages"):
        (tmp_path / older).mkdir()
        write_json(tmp_path / older / f"{older}.json", {"engine": "llamacpp", "parts": 1})
        with pytest.raises(ConfigError, match="begun by an older version; give another --out"):
            one_kind(proof_of(tmp_path / older))
    for option in ("--lanes", "--train"):
        assert main(["reproduce", option, "0", "--out", str(tmp_path / "runs")]) != 0
        assert f"{option} is 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


Played = Callable[[Proof], dict[str, list[str]]]


@pytest.fixture
def played(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Played:
    """What each stage of a proof was asked, by its folder in the order in which they ended; none does any work."""
    ended: dict[str, list[str]] = {}

    def finish(argv: list[str], *_: object) -> int:
        out, needing = Path(value(argv, "--out")), {"--pairs", "--adapter", "--policy.adapter", "--index"} & set(argv)
        assert out.name not in ended
        for folder in (Path(value(argv, option)) for option in needing):
            assert folder.name in ended or folder.parent != tmp_path, f"{out.name} needs {folder.name}"
        counts = {"pairs.train": 40, "sft.train": 80 if out.name == "pairs-outcome" else 160}
        has_manifest(out, status="done", stage=argv[0], counts=counts)
        ended[out.name] = argv
        return 0

    def play(proof: Proof) -> dict[str, list[str]]:
        commands(finish)
        pipeline = Pipeline(tmp_path, 2)
        monkeypatch.setattr(pipeline, "_process", finish)
        run_stages(proof, pipeline)
        return ended

    return play


def has_manifest(folder: Path, **told: object) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "manifest.json", told)


@pytest.mark.parametrize(("third", "without"), [(0, ("shipped", "grpo", "cover")), (3, ("shipped",))])
def test_every_stage_runs_once_after_what_it_needs_and_in_lanes(
    third: int, without: tuple[str, ...], tmp_path: Path, played: Played
) -> None:
    """Who is not scored is not trained."""
    proof = proof_of(tmp_path, lanes=2, demos=3, third=third, without=without)
    ended = played(proof)
    assert {f"infer-{name}" for name in proof.scored} == {name for name in ended if name.startswith("infer-")}
    assert {"search1-1", "search1-2", "search2-1", "search2-2", "sft2", "dpo2"} < set(ended)
    assert ({"search3-1", "search3-2", "sft3", "dpo3", "infer-dpo3"} <= set(ended)) == bool(third)
    for name, trained in (("grpo", {"grpo"}), ("cover", {"cover", "sft-cover"})):
        assert trained & set(ended) == (set() if name in without else trained)
    trees = ended["pairs2"][ended["pairs2"].index("--trees") + 1 : ended["pairs2"].index("--out")]
    assert trees == [str(tmp_path / name) for name in ("search1-1", "search1-2", "search2-1", "search2-2")]


def test_arms_learn_from_as_many_steps_and_pairs_whatever_their_labels_found(tmp_path: Path, played: Played) -> None:
    ended = played(proof_of(tmp_path, lanes=2))
    for key in ("--label.name", "--pairs.cross_action", "--balance.unsolved_first"):
        assert all(key in rule for rule in RULES.values()), f"the proof says {key} outright"
    for kind, names in (("sft", [f"sft-{name}" for name in RULES]), ("dpo", [*RULES])):
        assert len({value(ended[name], "--max_steps") for name in names}) == 1, kind
    assert value(ended["sft-gain"], "--max_steps") == "20", "two passes over what outcomes found, eight rows a step"
    assert value(ended["sft1"], "--max_steps") == "40", "gain alone learns all that it found"
    assert {value(ended[name], "--pairs") for name in RULES} == {str(tmp_path / f"pairs-{name}") for name in RULES}


def test_finished_trees_stand_for_the_first_search(tmp_path: Path, played: Played) -> None:
    given = replace(proof_of(tmp_path, lanes=2), trees=Path("trees.jsonl.gz"))
    one_kind(given)
    with pytest.raises(ConfigError, match="begun with .* --trees trees.jsonl.gz; give that again"):
        one_kind(replace(given, trees=None))
    ended = played(given)
    assert not any(name.startswith("search1") for name in ended)
    assert value(ended["pairs1"], "--trees") == "trees.jsonl.gz"
    first, *_ = read_records(tmp_path / "search2-1.jsonl", Question)
    assert first.id == "atlas-train-0006", "the first five are the trees'"


def test_what_was_cut_off_and_then_left_out_is_not_in_the_report(tmp_path: Path, commands: Commands) -> None:
    commands(lambda argv: 1)
    has_manifest(tmp_path / "infer-vote", status="running", stage="infer")
    pipeline = Pipeline(tmp_path)
    with pytest.raises(StepragError, match="exit code 1"):
        pipeline.run(stage(tmp_path / "infer-vote", "infer", best_of=4))
    assert pipeline.stages["infer-vote"]["command"].startswith("steprag infer --best_of 4 --out ")
    assert not pipeline.stages["infer-vote"]["done"]
    assert [line.split("|")[1].strip() for line in costs(tmp_path, pipeline)[2:]] == ["all, by the clock"]


def test_a_stage_that_was_finished_by_hand_has_no_minutes(tmp_path: Path, commands: Commands) -> None:
    commands(lambda argv: 0)
    has_manifest(tmp_path / "x", status="done", stage="infer", counts={"questions": 3})
    pipeline = Pipeline(tmp_path)
    pipeline.run(stage(tmp_path / "x", "infer"))
    assert pipeline.stages["x"]["times"] is None
    assert costs(tmp_path, pipeline)[2:] == ["| x |  | 3 questions |  | |  |", "| all, by the clock | 0 | | | | |"]


def test_the_shipped_warm_start_is_scored_beside_a_smaller_one(tmp_path: Path) -> None:
    assert "shipped" not in proof_of(tmp_path).scored
    few = proof_of(tmp_path, demos=20, without=("vote",))
    assert few.scored == tuple(name for name in LABELS if name not in ("vote", "dpo3"))
    assert "grpo" not in proof_of(tmp_path, grpo=0).scored
    adapters = [contender.options[1] for contender in the_contenders(few)[:2]]
    assert adapters == [str(tmp_path / "warm"), "atlas-warmstart"]


def test_the_best_agent_answers_elsewhere_beside_the_warm_start(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, grpo=0, without=("gain", "vote", "bare", "outcome", "cover", "rollouts"))
    for name, strict in {"warm": 0.9, "gain": 0.8, "sft1": 0.1, "dpo1": 0.4, "dpo2": 0.3}.items():
        (tmp_path / f"infer-{name}").mkdir()
        write_json(tmp_path / f"infer-{name}/metrics.json", {"em": 1.0, "strict_em": strict})
    assert best_trained(proof) == "dpo1"  # neither a start, nor one that is left out
    runs = [contender.run.name for contender in elsewhere(proof, QuestionSet("dev", tmp_path / "q", tmp_path / "c"))]
    assert runs == ["infer-warm-dev", "infer-dpo1-dev"]
    assert best_trained(proof_of(tmp_path, without=tuple(LABELS)[1:])) == "dpo2"


def test_the_times_of_interrupted_stages_are_added_up(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, codes = iter(range(0, 100, 7)), iter((1, 0, 0))
    commands(lambda argv: next(codes))
    monkeypatch.setattr(apps.reproduce.stages.time, "time", lambda: next(clock))
    with pytest.raises(StepragError, match="exit code 1"):
        Pipeline(tmp_path).run(stage(tmp_path / "x", "pairs", trees="t t"))
    for _ in range(2):  # the second time it is done already
        Pipeline(tmp_path).run(stage(tmp_path / "x", "pairs", trees="t t"))
    typed = f"steprag pairs --trees 't t' --out {tmp_path / 'x'}"
    assert read_json(tmp_path / "stages.json") == {"x": {"times": [[0, 7], [14, 21]], "done": True, "command": typed}}


@pytest.mark.parametrize(("command", "limits", "cut", "begun"), [
    ("generate", (1, 1, 2), None, ["1", "2"]),  # others were built from it: the same command does not begin it again
    ("generate", (1, 2, 2, 2), 2, ["1", "2", "2"]),  # begun again and cut off, it is not finished
    ("adapt questions", (1, 1, 2), None, ["1", "1", "2"]),  # nothing is built from a part of the questions
])  # fmt: skip
def test_a_search_is_begun_again_by_another_command_or_where_it_was_cut_off(
    command: str, limits: tuple[int, ...], cut: int | None, begun: list[str], tmp_path: Path, commands: Commands
) -> None:
    ran: list[str] = []

    def run(argv: list[str]) -> int:
        ran.append(argv[argv.index("--limit") + 1])
        return 1 if len(ran) == cut else PART_DONE

    commands(run)
    (tmp_path / "x").mkdir()
    write_json(tmp_path / "x/manifest.json", {"status": "partial"})
    for limit in limits:
        with suppress(StepragError):
            Pipeline(tmp_path).run(stage(tmp_path / "x", command, limit=limit))
    assert ran == begun


class Held(Pipeline):
    """Notes which stage has which cores, instead of running it; `meet` stages are at work at once."""

    def __init__(self, out: Path, lanes: int, meet: int) -> None:
        super().__init__(out, lanes)
        self.held: list[tuple[str, set[int]]] = []
        self.meet = threading.Barrier(meet, timeout=30)

    def run(self, stage: Stage, cores: Sequence[int] = ()) -> None:
        self.held.append((stage.command, set(cores)))
        if stage.command == "first":
            self.meet.wait()  # none passes where the others cannot come


def test_two_lanes_work_at_once_on_cores_of_their_own(tmp_path: Path) -> None:
    """One lane runs chains in their order, on all cores."""
    pipeline = Held(tmp_path, 2, meet=2)
    pipeline.together([[stage(tmp_path, name)] for name in ("first", "first", "third")])
    (_, one), (_, other), (last, _) = pipeline.held
    assert one | other == os.sched_getaffinity(0)
    assert not one & other or len(os.sched_getaffinity(0)) == 1
    assert last == "third", "a chain waits for a lane in its order"
    alone = Held(tmp_path, 1, meet=1)
    alone.together([[stage(tmp_path, name)] for name in "def"])
    assert alone.held == [(name, set()) for name in "def"]


def test_a_stage_in_a_lane_writes_a_log_and_fails_by_name(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, 2)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "A", "text": "One river."}\n')
    with pytest.raises(StepragError, match=r"bad ended with exit code 2: steprag: .*none.*\(.*logs/bad\.log\)"):
        pipeline.together([
            [stage(tmp_path / "bad", "pairs", trees=tmp_path / "none"), stage(tmp_path / "never", "doctor")],
            [stage(tmp_path / name, "index build", "--encoder", "none", corpus=corpus) for name in ("good", "better")],
        ])  # fmt: skip
    stages = read_json(tmp_path / "stages.json")
    assert stages.keys() == {"bad", "good", "better"}, "a chain's error ends that chain alone"
    assert [stages[name]["done"] for name in ("good", "better", "bad")] == [True, True, False]
    assert stages["good"]["command"].startswith("steprag index build --encoder none --corpus ")
    assert "passages" in (tmp_path / "logs" / "good.log").read_text()


def test_ctrl_c_ends_what_runs_in_the_lanes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from apps.reproduce.stages import Pipeline, Stage\n"
        f"out = Path({str(tmp_path)!r})\n"
        "class Serving(Pipeline):\n"
        "    def run(self, stage, cores):\n"
        "        self._process(stage.argv, cores, out / 'log') if stage.options[0] == '--port' else stage.out.touch()\n"
        "serve = [Stage(out / 'served', 'policy serve', ('--port', '0'))]\n"
        "Serving(out, 2).together([serve, serve, [Stage(out / 'never', 'doctor', ('',))]])\n"
    )
    process = subprocess.Popen([sys.executable, script], start_new_session=True, stderr=subprocess.PIPE)
    wait_for(lambda: len(descendants(process.pid)) >= 4)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    assert not (tmp_path / "never").exists(), "what waited for a lane is not begun"
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_time_by_the_clock_counts_what_overlaps_once() -> None:
    assert seconds([]) == 0
    assert seconds([[0, 10], [5, 12], [6, 7], [20, 21]]) == 13


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_proof_runs(tmp_path: Path) -> None:
    wanted = {"train": 3, "second": 3, "test": 2, "sft_steps": 1, "dpo_steps": 1, "grpo": 1, "elsewhere": 1}
    sizes = [word for name, count in wanted.items() for word in (f"--{name}", str(count))]
    corpus = tmp_path / "rivers_corpus.jsonl"
    corpus.write_text("".join(atlas.path("corpus").read_text().splitlines(keepends=True)[:20]))
    also = ("--also", str(atlas.path("dev")), str(corpus))
    report = tmp_path / "docs" / "results.md"
    files = ("--out", str(tmp_path / "runs"), "--report", str(report))
    few = ("--without", "cover", "rollouts")  # they are trained and played as the others
    assert main(["reproduce", "--quick", *sizes, *also, *few, "--lanes", "2", *files]) == 0
    said = report.read_text()
    for words in (
        "| outcomes alone | 2 |", "| the same on both rounds together | 2 |", "best of 4 by vote",
        "| both rounds, then GRPO with turn rewards | 2 |", "steps by rollouts: not run.",
        "300 worked episodes for the warm start", "the second round over the first", "## Another world: dev",
        " over warm start**: ", " --config configs/training/atlas-dpo.yaml",
    ):  # fmt: skip
        assert words in said
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", said)
    assert pictures
    assert all((report.parent / picture).is_file() for picture in pictures)
