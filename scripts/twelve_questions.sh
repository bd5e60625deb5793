#!/usr/bin/env bash
# Twelve questions of a newcomer, each tried and answered by yes or no. Needs no key and no network; some minutes.
#   bash scripts/twelve_questions.sh [FOLDER]      FOLDER keeps what the commands make, a new one by default
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
steprag() { "$root/.venv/bin/python" -m apps.commands "$@"; }
export PYTHONPATH=$root STEPRAG_TOKEN=$("$root/.venv/bin/python" -c "import secrets; print(secrets.token_urlsafe())")
place=${1:-$(mktemp -d)}
mkdir -p "$place/files" && cd "$place" || exit 2
failed=0
log=$PWD/log.txt
try() {  # QUESTION FUNCTION
    echo "== $1" >>"$log"
    if "$2" >>"$log" 2>&1; then echo "yes  $1"; else echo "NO   $1"; failed=1; fi
}
serving() { exec "$root/.venv/bin/python" -m apps.commands "$@"; }  # in the background, so that stop ends it itself
until_said() {  # COMMAND that succeeds once the server has said so; fails where the server ends before
    for _ in $(seq 120); do "$@" && return; kill -0 "$served" 2>/dev/null || return 1; sleep 1; done
    return 1
}
two_lines() { [ "$(wc -l <served.txt)" -ge 2 ]; }
stop() { kill -TERM "$1" 2>/dev/null; wait "$1"; true; }
printf 'Frage,Antwort\nIn which country is Tirana?,Albania\n' >q.csv
printf '# Leave\n\nThirty days of leave are given in a year. Tirana is in Albania.\n' >files/handbook.md
printf '<html><body><nav><a href="/">Home</a></nav><h1>Lima</h1><p>Lima is in Peru.</p></body></html>' >files/lima.html
printf 'def brief(tree, grammar):\n    from steprag import Estimate\n' >mine.py
printf '    return [Estimate(-len(node.text), None, "brief") if node.action else None for node in tree.nodes]\n' >>mine.py

files() { steprag index build --corpus files --out runs/files && steprag index search "days of leave" | grep -q "handbook.md, Leave"; }
questions() { steprag infer --questions q.csv --columns question=Frage,answer=Antwort --index runs/files --out runs/csv; }
endpoint() {
    serving policy serve --engine llamacpp --model smollm2-135m-instruct --port 18345 >served.txt 2>key.txt & served=$!
    until_said two_lines || { cat key.txt; return 1; }  # the URL, then its key
    OPENAI_API_KEY=$(tail -1 served.txt) \
        steprag generate --base_url http://127.0.0.1:18345/v1 --model smollm2-135m-instruct --questions q.csv \
        --columns question=Frage,answer=Antwort --index runs/files --out runs/trees --search.rollouts 2
    code=$?; stop $served; [ $code = 0 ] || [ $code = 3 ]
}
cost() { steprag plan --dataset_name atlas --config gpt-4o --limit 20 | grep -e "--usd"; }
seven() {
    steprag pairs --trees "$root/steprag/atlas/trees.jsonl.gz" --out runs/pairs &&
        steprag plan train --config qwen2.5-7b-dpo-lora --pairs runs/pairs --device a100 | grep "memory .* of 80"
}
paper() { "$root/.venv/bin/python" "$root/inference.py" --dataset_name atlas --model atlas-agent --index runs/files --limit 1; }
network() {
    serving serve --index runs/files --host 0.0.0.0 --port 18346 >chat.txt 2>&1 & served=$!
    until_said grep -q "http://" chat.txt || { cat chat.txt; return 1; }
    asked() { curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $STEPRAG_TOKEN" "$@"; }
    own=$(asked http://127.0.0.1:18346/api/conversations)
    foreign=$(asked -H "Host: chat.example.org" http://127.0.0.1:18346/api/conversations)
    stop $served; grep "http://" chat.txt | grep -vq "0\.0\.0\.0" && [ "$own" = 200 ] && [ "$foreign" = 403 ]
}
reward() { steprag pairs --trees "$root/steprag/atlas/trees.jsonl.gz" --label.name mine:brief --out runs/brief; }
dropped() { grep -qi "dropped" runs/pairs/README.md && steprag view runs/pairs --out pairs.html; }
notebook() {
    "$root/.venv/bin/python" - <<'PY'
import asyncio
from steprag import Agent, Index

async def cell():
    index = Index.open("runs/files")
    assert index.search("Lima")
    with Agent(index) as agent:
        print(agent.ask("In which country is Lima?"))

asyncio.run(cell())
PY
}
cluster() {
    for part in 0 1; do
        steprag infer --dataset_name atlas --index runs/files --limit 2 --shard $part/2 --out runs/part-$part || return 1
    done
    steprag trees merge runs/whole runs/part-0 runs/part-1
}
upgrade() { steprag --version && steprag check runs/files runs/pairs && grep -q "cache/steprag" "$root/docs/howto/upgrade.md"; }

try "1  Can I ask my own folder of files?" files
try "2  Can I use my own questions, a CSV with other columns?" questions
try "3  Can I use a compatible endpoint?" endpoint
try '4  Am I told what it will cost, and how to stop at $5?' cost
try "5  Does a 7B model fit my GPU?" seven
try "6  Does the paper's command run as typed?" paper
try "7  Can colleagues open the chat, and strangers not?" network
try "8  Can I bring a reward of my own?" reward
try "9  Can I see which pairs were dropped?" dropped
try "10 Does it work in a notebook?" notebook
try "11 Can I split a run over machines?" cluster
try "12 Do I know what was written where?" upgrade
[ $failed = 0 ] || echo "what the commands said: $log"
exit $failed
