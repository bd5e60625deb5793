#!/usr/bin/env bash
# GRPO with verl on several nodes, over our service and questions. Keys are those of verl 0.9.1; not run here.
# On the first node `ray start --head`, on the others `ray start --address HEAD:6379`, then on the first:
#   STEPRAG_RETRIEVER=http://index:8000 bash configs/training/verl/grpo.sh QUESTIONS.parquet MODEL NODES GPUS_A_NODE
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
questions=$1 model=$2 nodes=$3 gpus=$4
exec python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$questions" data.val_files="$questions" data.val_max_samples=256 \
    data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=3072 \
    actor_rollout_ref.model.path="$model" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.multi_turn.enable=True \
    actor_rollout_ref.rollout.multi_turn.format=hermes \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=7 \
    actor_rollout_ref.rollout.multi_turn.max_tool_response_length=2048 \
    actor_rollout_ref.rollout.multi_turn.function_tool_path="$here/search_tool.py" \
    actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
    reward.custom_reward_function.path="$here/reward.py" \
    trainer.nnodes="$nodes" trainer.n_gpus_per_node="$gpus" \
    trainer.project_name=steprag trainer.experiment_name=grpo \
    trainer.total_epochs=1 trainer.save_freq=50 trainer.test_freq=50 \
    "${@:5}"
