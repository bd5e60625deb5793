"""Reinforcement learning with TRL's GRPOTrainer, from episodes of our own agent (`training.play.episodes`).

A step plays a group of episodes for each of its questions with the weights as they stand, and learns from all of their
completions at once. TRL brings the loss (DAPO's normalisation: the mean over all sampled tokens of the step, those of
dropped groups included), the divergence from the reference, the fused LM head and the loop. Its own rollouts are not
used: they see an episode as one growing sequence, and a prompt profile need not grow (`transcript` drops passages that
were read).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os.path import commonprefix
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import GenerationConfig, Trainer
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from steprag.console.progress import say
from steprag.engines.tokens import turn_stops
from steprag.errors import ConfigError
from training.collapse import FIRST, RightEpisodes, repeated
from training.job import Job, Outcome, last_checkpoint, step_of
from training.model import freeze_below, load_policy
from training.play.engine import Engine, opened_engine
from training.play.episodes import Group, Sampling, StepRow, numbers_of, rows_of, sampled_tokens
from training.play.turn_gains import Scored
from training.play.world import GrpoStage, staged
from training.trl.batches import dealt, ended_at, padded, question_order
from training.trl.common import REFERENCE, Refreezing, common_arguments, run_trainer, save
from training.trl.mismatch import Mismatch
from training.trl.shared_prefix import shareable, sharing_if_asked


class EpisodeGRPOTrainer(Refreezing, GRPOTrainer):
    """TRL's trainer; a step's rows come from episodes, and there may be any number of them.

    One update for one set of episodes: the weights that play are the weights that learn, and no ratio is ever clipped.
    Of several processes each plays its share of the questions; then all learn from all rows, dealt out in batches.
    """

    stage: GrpoStage
    right: RightEpisodes
    playing: Any
    """The weights as they stand, whole, while episodes are played."""
    engine: Engine | None = None
    """What samples in place of this process."""
    mismatch: Mismatch

    @property
    def fill(self) -> int:
        """The id that pads."""
        return int(self.processing_class.pad_token_id)  # pyright: ignore

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Plays, and adds up the gradients of all rows. Without a row no weight has a gradient, and none moves.

        As in TRL, dropped groups count among the step's tokens, and the divergence holds them where it has a weight.
        """
        numbers = [row["number"] for row in inputs[:: self.num_generations]]
        groups: list[Group] = gather_object(self.play(numbers))
        if self.accelerator.is_main_process:
            self.stage.note(self.state.global_step + 1, groups)
        self.stage.check(groups)
        rows = rows_of(groups, dropped=bool(self.beta))
        for name, value in {**numbers_of(groups), "rows": len(rows)}.items():
            self._metrics["train"][name].append(float(value))
        total = torch.zeros((), device=self.accelerator.device)
        tokens, size = sampled_tokens(groups), self.stage.config.batch_size
        with sharing_if_asked(self.model, self.stage.config):
            if rows and self.stage.config.grpo.log_kl and not self.beta:  # with beta TRL logs it
                self._metrics["train"]["kl"].append(self.divergence(rows[:: -(-len(rows) // size)]))
            self.watch(groups)
            hands = list(dealt(rows, size, self.accelerator.process_index, self.accelerator.num_processes))
            for number, (part, count) in enumerate(hands, 1):
                batch = self.batch(part, tokens)
                batch["completion_mask"][count:] = 0
                last = number == len(hands)  # after which DeepSpeed moves the weights
                self.accelerator.gradient_state._set_sync_gradients(last)
                total += Trainer.training_step(self, model, batch)
        if self.engine:
            for name, value in self.mismatch.checked(self.state.global_step + 1).items():
                self._metrics["train"][name].append(value)
        return total

    def watch(self, groups: Sequence[Group]) -> None:
        """Logs what shows a collapse: steps that repeat themselves, and the likelihood of the first right episodes."""
        numbers, size = {"episodes/repeated": repeated(groups)}, self.stage.config.batch_size
        if remembered := self.right.add(self.state.global_step + 1, groups):
            parts = [self.log_probability(remembered[at : at + size]) for at in range(0, len(remembered), size)]
            numbers[FIRST.key] = sum(total for total, _ in parts) / sum(count for _, count in parts)
        for name, value in numbers.items():
            if value is not None:
                self._metrics["train"][name].append(value)

    def log_probability(self, rows: Sequence[StepRow]) -> tuple[float, float]:
        """Of all completions together, by the weights as they stand, and how many tokens they have."""
        batch = Trainer._prepare_inputs(self, self.batch(rows, 1))
        with self._still():
            scores = self._scores(self.model, batch)
        mask = batch["completion_mask"]
        return float((scores * mask).sum()), float(mask.sum())

    def divergence(self, rows: Sequence[StepRow]) -> float:
        """The KL divergence from where training starts, a token: TRL's estimate over these rows, without gradients."""
        batch = Trainer._prepare_inputs(self, self.batch(rows, 1))
        with self._still():
            gap = self._reference(batch) - self._scores(self.model, batch)
        mask = batch["completion_mask"]
        return float(((gap.exp() - gap - 1) * mask).sum() / mask.sum())

    @contextmanager
    def _still(self) -> Iterator[None]:
        """While the block runs, nothing is learnt and no dropout acts."""
        model: Any = self.model
        before = model.training
        model.eval()
        with torch.no_grad():
            yield
        model.train(before)

    def play(self, numbers: Sequence[int]) -> list[Group]:
        """The groups of the questions with these numbers, by the weights as they stand."""
        config = self.stage.config
        tokenizer: Any = self.processing_class
        ends, most = frozenset(self.eos_token_ids), config.grpo.max_tokens
        how = Sampling(self.sample, tokenizer, ends, most, config.max_length, self.score, self.engine)
        kwargs: Any = self.args.gradient_checkpointing_kwargs
        # Sharded weights are gathered once: processes play as many turns as they need and do not meet meanwhile.
        with unwrap_model_for_generation(
            self.model_wrapped, self.accelerator, gradient_checkpointing_kwargs=kwargs
        ) as self.playing:
            if self.engine:
                self._send(self.engine)
            return self.stage.play(numbers, how, self.state.global_step, self.accelerator.process_index)

    def _send(self, engine: Engine) -> None:
        """Has the engine answer with the adapter as it stands; one process loads it for all."""
        if self.accelerator.is_main_process:
            save = partial(self.playing.save_pretrained, selected_adapters=["default"], save_embedding_layers=False)
            self.stage.runner.run(engine.load(save, self.state.global_step))
        engine.name = broadcast_object_list([engine.name])[0]

    def batch(self, rows: Sequence[StepRow], tokens: int) -> dict[str, torch.Tensor]:
        """TRL's columns of rows; `tokens`: sampled in the step. Prompts end, completions begin in one column."""
        prompts, prompt_mask = padded([row.prompt for row in rows], self.fill, "left")
        completions, completion_mask = padded([row.completion for row in rows], self.fill, "right")
        sampled = [row.logps for row in rows if row.logps is not None]
        logps = {"sampled_logps": pad([torch.tensor(one) for one in sampled], 0, "right")} if sampled else {}
        return {
            **logps,
            "prompt_ids": prompts,
            "prompt_mask": prompt_mask,
            "completion_ids": completions,
            "completion_mask": completion_mask,
            "advantages": torch.tensor([row.advantage for row in rows]),
            "num_items_in_batch": torch.tensor(tokens),
        }

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch on its device, with the reference's log-probabilities where the loss asks for them."""
        batch = Trainer._prepare_inputs(self, inputs)
        if self.beta:
            batch["ref_per_token_logps"] = self._reference(batch)
        if (sampled := batch.pop("sampled_logps", None)) is not None:
            with self._still():
                gap = self._scores(self.model, batch) - sampled
            batch["importance_sampling_ratio"] = self.mismatch.ratio(gap, batch["completion_mask"])
        return batch

    def _reference(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        model = self.ref_model or self.model
        bare = self.accelerator.unwrap_model(model)
        apart = sharing_if_asked(bare, self.stage.config) if self.ref_model else use_adapter(bare, REFERENCE)
        with self._still(), apart:
            scores = self._scores(model, batch)
        freeze_below(self.model, self.layers)  # pyright: ignore[reportArgumentType]  # PEFT's switch thaws all blocks
        return scores

    def _scores(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Log-probabilities of the completions' tokens at the sampling temperature."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, batch["completion_ids"].size(1))[0]

    def sample(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Completions of a batch of prompts, from the weights as they stand, each up to the token that ends it."""
        section = self.stage.config.grpo
        how: dict[str, Any] = {"do_sample": True, "temperature": section.temperature, "top_k": 0, "top_p": 1.0}
        how |= {"max_new_tokens": section.max_tokens, "eos_token_id": self.eos_token_ids, "pad_token_id": self.fill}
        with self._still(), torch.random.fork_rng(), self.accelerator.autocast():
            torch.manual_seed(seed)
            asked = self._asked(prompts)
            config = GenerationConfig(**how, disable_compile=True)
            made = self.playing.generate(**asked, generation_config=config)
        return [ended_at(row, self.eos_token_ids) for row in made[:, asked["input_ids"].size(1) :].tolist()]

    def _asked(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Arguments of `generate`. Keys and values of what all prompts begin with are computed once, where training
        shares prefixes; the padding then stands behind it.
        """
        config = self.playing.config
        windowed = getattr(config.get_text_config(), "sliding_window", None)  # a window would count the padding
        shares = self.stage.config.shares and shareable(config) and not windowed
        head = commonprefix(prompts)[: min(map(len, prompts)) - 1] if shares and len(prompts) > 1 else []
        rest = padded([prompt[len(head) :] for prompt in prompts], self.fill, "left")
        ids, mask = (part.to(self.accelerator.device) for part in rest)
        if not head:
            return {"input_ids": ids, "attention_mask": mask}
        begun = torch.tensor([head], device=ids.device)
        cache = self.playing(input_ids=begun, use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_repeat_interleave(len(prompts))
        rows = begun.expand(len(prompts), -1)
        ids, mask = torch.cat([rows, ids], dim=1), torch.cat([torch.ones_like(rows), mask], dim=1)
        return {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}

    def score(self, texts: list[Scored]) -> list[float]:
        """The log-probability of each text behind its prompt, by the weights as they stand."""
        size = self.stage.config.batch_size
        with self._still(), self.accelerator.autocast():
            parts = [self._score(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [one for part in parts for one in part]

    def _score(self, texts: Sequence[Scored]) -> list[float]:
        """One forward; sequences end in the same column, so that only the texts' places need logits."""
        whole = padded([prompt + text for prompt, text in texts], self.fill, "left")
        ids, mask = (part.to(self.accelerator.device) for part in whole)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        longest = max(len(text) for _, text in texts)
        logits = self.playing(input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=longest + 1,
                       use_cache=False).logits  # fmt: skip
        logps = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        each = logps.gather(-1, ids[:, -longest:, None])[..., 0]
        return [float(row[longest - len(text) :].sum()) for row, (_, text) in zip(each, texts, strict=True)]


def train(job: Job) -> Outcome:
    """Trains and saves."""
    if job.world is None:
        raise ConfigError("stage grpo learns from --questions and --index")
    policy = load_policy(job.files, job.config)
    checkpoint = last_checkpoint(job.checkpoints)
    with staged(job.world, job.config, job.run, step_of(checkpoint) if checkpoint else 0) as stage:
        trainer = build(policy, stage, job)
        place, most = job.checkpoints / "engine", policy.get_input_embeddings().num_embeddings
        with opened_engine(job.config, stage.runner, place, trainer.eos_token_ids, most) as trainer.engine:
            outcome = run_trainer(trainer, job)
    if warning := stage.tally.warning:
        job.run.set(unmoved=True)
        say(f"train: {warning}")
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    if rewards:  # none where no question could be played
        job.run.set(reward_first=rewards[0], reward_last=rewards[-1])
    save(policy, job)
    return outcome


def build(policy: Any, stage: GrpoStage, job: Job) -> EpisodeGRPOTrainer:
    """The trainer, its questions in the order of training."""
    config = job.config
    section, order = config.grpo, question_order(config, len(stage.world.questions))
    arguments = {
        **common_arguments(config, job.checkpoints),
        # TRL counts episodes; we batch rows
        "per_device_train_batch_size": section.questions // config.workers * section.episodes,
        "max_steps": len(order) // section.questions,
        "num_generations": section.episodes,
        "shuffle_dataset": False,
        "temperature": section.temperature,
        "max_completion_length": section.max_tokens,
        "beta": section.beta or float(section.log_kl),  # TRL makes a reference where this is above 0
        "loss_type": "dapo",
    }
    trainer = EpisodeGRPOTrainer(
        model=policy,
        reward_funcs=[_rewarded_elsewhere],
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": "", "number": number} for number in order]),
        processing_class=job.tokenizer,
    )
    trainer.stage, trainer.beta, trainer.playing = stage, section.beta, trainer.model
    checkpoint = last_checkpoint(job.checkpoints)
    trainer.right = RightEpisodes(job.checkpoints / "right.jsonl", step_of(checkpoint) if checkpoint else 0)
    # TRL's loss multiplies with the ratio where vLLM samples; at the start it would look for a server
    trainer.use_vllm = section.engine is not None
    trainer.mismatch = Mismatch(section.mismatch, trainer.vllm_importance_sampling_clip_max or math.inf)
    trainer.eos_token_ids = sorted(turn_stops(job.tokenizer).union(trainer.eos_token_ids))
    for name, weight in policy.named_parameters():
        if f".{REFERENCE}." in name:
            weight.requires_grad_(False)
    freeze_below(policy, config.lora.layers)  # adding a reference made every block trainable
    return trainer


def _rewarded_elsewhere(**_: Any) -> list[float | None]:
    """TRL wants a reward function; ours are scored where the episodes are played."""
    raise RuntimeError("steprag.agent.rewards scores episodes; TRL has no reason to ask here")
