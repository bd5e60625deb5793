# The stages of the run from 20 worked episodes that differ from today's `steprag reproduce`
# (docs/figures/results.md). Later rounds name all trees so far in --trees, and other --max_steps (docs/results/cost.csv).
steprag generate --policy.engine vllm --policy.concurrency 24 --policy.adapter runs/reproduce/warm \
    --config configs/generation/atlas.yaml --questions runs/reproduce/search1-1.jsonl \
    --index runs/reproduce/index --out runs/reproduce/search1-1
steprag pairs --config configs/preference/spre.yaml --filters.repeating true --filters.unread true \
    --label.alpha 1 --sft.paths surest --sft.per_tree 3 \
    --trees runs/reproduce/search1-1 runs/reproduce/search1-2 --out runs/reproduce/pairs1
steprag pairs --config configs/preference/spre.yaml --filters.repeating true --filters.unread true \
    --label.name first_answer --label.metric em --label.alpha 1 --pairs.errors 0 --products '["pairs"]' \
    --trees runs/reproduce/search1-1 runs/reproduce/search1-2 --out runs/reproduce/pairs-outcome
steprag train --config configs/training/atlas-dpo.yaml --pairs runs/reproduce/pairs1 \
    --adapter runs/reproduce/warm --max_steps 53 --out runs/reproduce/dpo
steprag train --config configs/training/atlas-sft.yaml --pairs runs/reproduce/pairs1 \
    --adapter runs/reproduce/warm --max_steps 60 --out runs/reproduce/sft1
steprag train --config configs/training/atlas-dpo.yaml --pairs runs/reproduce/pairs1 \
    --adapter runs/reproduce/sft1 --max_steps 53 --out runs/reproduce/dpo1
