#!/usr/bin/env bash
# The memory stack's row in one go, with the embedded model on a CPU: a tool of one's own, MedQA-shaped questions, GRPO
# by RAGAS's rewards, answers judged; before and after, three figures (docs/figures/stack-row.md). No gain is claimed.
#     bash scripts/stack_row.sh [OUT]          # QUESTIONS=12 STEPS=2 by default; run again, it goes on
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/stack-row} asked=${QUESTIONS:-12} steps=${STEPS:-2}
python=${PYTHON:-.venv/bin/python}
steprag() { "$python" -m apps.commands "$@"; }
mkdir -p "$out"

# The tool: a function over the corpus of the embedded world, as docs/agents.md has tools.
cat >"$out/row_tools.py" <<'PY'
import json
import re
from pathlib import Path


def look_up(words: str) -> list[str]:
    """Passages of an encyclopedia of countries, cities and elements."""
    rows = [json.loads(line)["contents"] for line in Path("steprag/atlas/corpus.jsonl").read_text().splitlines()]
    wanted = set(re.findall(r"\w+", words.lower()))

    def score(contents: str) -> float:
        title, text = (set(re.findall(r"\w+", part.lower())) for part in contents.split("\n", 1))
        return 2 * len(wanted & title) - len(title - wanted) + len(wanted & text) / 2

    return sorted(rows, key=score, reverse=True)[:2]
PY
printf 'tools:\n  look_up: {python: "row_tools:look_up", chars: 400}\n' >"$out/tools.yaml"
export PYTHONPATH="$out${PYTHONPATH:+:$PYTHONPATH}"

steprag tools list --index "$out/tools.yaml"
[ -e "$out/trained/manifest.json" ] && grep -q '"status": "done"' "$out/trained/manifest.json" ||
    steprag train --stage grpo --adapter atlas-stack --prompt.profile stack --episode.depth 6 --episode.chars 2000 \
        --questions steprag/atlas/train.jsonl --index "$out/tools.yaml" --out "$out/trained" \
        --max_steps "$steps" --batch_size 2 --warmup 0 --lora.layers 15 --grpo.questions 1 --grpo.episodes 4 \
        --grpo.max_tokens 64 \
        --grpo.rewards '{em: 1.0, format: 0.2, faithfulness: 0.1, context_precision: 0.1, answer_relevancy: 0.1}' ||
    [ $? = 3 ]  # no weight moved: all episodes of a question were worth the same
for arm in before after; do
    [ "$arm" = before ] && adapter=atlas-stack || adapter=$out/trained
    steprag infer --dataset_name medqa --questions steprag/atlas/tasks/choices.test.jsonl --sample "$asked" \
        --adapter "$adapter" --prompt.profile stack --episode.depth 6 --episode.chars 2000 \
        --index "$out/tools.yaml" --out "$out/$arm"
    steprag score judge --predictions "$out/$arm"
done
"$python" - "$out" <<'PY'
import json
import sys
from pathlib import Path

print(f"{'':8}{'format':>10}{'answers':>10}{'by judge':>10}")
for arm in ("before", "after"):
    folder = Path(sys.argv[1], arm)
    scores, judged = (json.loads((folder / name).read_text()) for name in ("metrics.json", "judged/metrics.json"))
    kept, said = scores["answered"] / scores["questions"], judged["strict_right"]
    print(f"{arm:8}{kept:>10.0%}{scores['strict_em']:>10.0%}{said:>10.0%}   of {scores['questions']} questions")
PY
