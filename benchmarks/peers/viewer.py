"""A long run opened in a browser: seconds from the address to the first row, and the viewer's memory.

2,000 episodes of 40 kB (80 MB): question, two searches with their passages, an answer, in files of each tool's own.
Each viewer is started anew, and Chromium opens its page until the text of the first question stands there. Memory and
processor: the server's. Equal: the episodes. Ours reads all lines once, to find any of them later; inspect's log has a
list of its own.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.peers import rollouts
from benchmarks.peers.pairing import OURS, Told, measured, serving, size
from benchmarks.peers.scripted import question

PEERS, HEADLINE = {"inspect": rollouts.PEERS["inspect"]}, "first row, s"
COUNT = size(2000, 200)
OPEN = """
import sys, time
from shutil import which
from playwright.sync_api import sync_playwright
with sync_playwright() as driver:
    browser = driver.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
    page, start = browser.new_page(), time.perf_counter()
    page.goto(sys.argv[1], wait_until="commit", timeout=300_000)
    page.wait_for_selector("text=" + sys.argv[2], timeout=300_000)
    print(time.perf_counter() - start)
"""


def text(number: int) -> str:
    return f"<information>{number} " + "what stands in a passage " * 800 + "</information>"


def prepare(work: Path) -> None:
    from steprag.runs.run import open_run

    run = work / "run"
    with open_run(run, "infer", identity={}, config={}), (run / "predictions.jsonl").open("w") as file:
        for number in range(COUNT):
            passage = {"id": "0", "title": "t", "text": text(number), "score": 1.0}
            file.write(json.dumps({
                "id": f"q{number}", "question": question(number), "golden_answers": ["lek"], "prediction": "lek",
                "steps": [{"action": "search", "text": f"<search> {of} </search>", "content": of} for of in "ab"] +
                [{"action": "answer", "text": "<answer> lek </answer>", "content": "lek"}], "passages": [[passage]] * 2,
                "finish": "answer", "usage": {}, "metadata": {}}) + "\n")  # fmt: skip
    (work / "open.py").write_text(OPEN)


def looked(line: str, page: str, work: Path, **variables: str) -> Told:
    with serving(line, "/", **variables) as (url, pid), measured(pid) as run:
        command = [os.environ["PEERS_PYTHON"], "open.py", url + page, question(0)[:40]]
        seconds = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {**run, "figures": {HEADLINE: seconds}, "same": {"episodes": COUNT}}


ours = partial(looked, f"{OURS} view run --port PORT", "/#token=t", STEPRAG_TOKEN="t")
inspect = partial(looked, f"{sys.prefix}/bin/inspect view start --log-dir logs --port PORT", "/#/logs/gadgets.eval")


def inspect_built(work: Path) -> None:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput

    samples = [EvalSample(
        id=number + 1, epoch=1, input=question(number), target="lek", output=ModelOutput.from_content("m", "lek"),
        messages=[each for name in "ab" for each in (ChatMessageAssistant(content=f"<search> {name} </search>"),
                  ChatMessageUser(content=text(number)))]) for number in range(COUNT)]  # fmt: skip
    spec = EvalSpec(created=datetime.now(UTC).isoformat(), task="gadgets", dataset=EvalDataset(samples=COUNT),
                    model="m", config=EvalConfig())  # fmt: skip
    write_eval_log(EvalLog(status="success", eval=spec, samples=samples), str(work / "logs" / "gadgets.eval"))
