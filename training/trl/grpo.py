"""Reinforcement learning with TRL's GRPOTrainer, from episodes of our own agent (`training.episodes`).

A step plays a group of episodes for each of its questions with the weights as they stand, and learns from all of their
completions at once. TRL brings the loss (DAPO's normalisation: the mean over all sampled tokens of the step), the
divergence from the reference, the fused LM head and the loop. Its own rollouts are not used: they see an episode as one
growing sequence, and a prompt profile need not grow (`transcript` drops passages that were read).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import GenerationConfig, Trainer
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from steprag.agent.verdicts import TOKENS, VerdictFormat
from steprag.batch.journal import JOURNAL, Journal, QuestionCalls
from steprag.errors import ConfigError
from steprag.files import LineJournal
from steprag.policy.budget import Spending
from steprag.policy.client import open_model
from steprag.types import Question
from training.config import TrainConfig
from training.episodes import APART, Group, Judged, Sampling, StepRow, numbers_of, play, rows_of
from training.job import Job, Outcome
from training.judging import episode_judge, judged_terms
from training.model import freeze_below, load_policy
from training.trl.common import Refreezing, common_arguments, run_trainer, save
from training.trl.scoring import score_texts
from training.trl.shared_prefix import sharing_if_asked
from training.turn_gains import Scored
from training.world import World

EPISODES = "episodes.jsonl"
REFERENCE = "ref"
"""TRL's name for the frozen copy of the adapter that training starts from."""


class EpisodeGRPOTrainer(Refreezing, GRPOTrainer):
    """TRL's trainer; a step's rows come from episodes, and there may be any number of them.

    One update for one set of episodes: the weights that play are the weights that learn, and no ratio is ever clipped.
    Of several processes each plays its share of the questions; then all learn from all rows, dealt out in batches.
    """

    stage: GrpoStage

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Plays, and adds up the gradients of all rows. Without a row no weight has a gradient, and none moves."""
        numbers = [row["number"] for row in inputs[:: self.num_generations]]
        groups: list[Group] = gather_object(self.stage.play(self, numbers))
        if self.accelerator.is_main_process:
            self.stage.note(self.state.global_step + 1, groups)
        rows = rows_of(groups)
        for name, value in {**numbers_of(groups), "rows": len(rows)}.items():
            self._metrics["train"][name].append(float(value))
        total = torch.zeros((), device=self.accelerator.device)
        learnt = sum(len(row.completion) for row in rows)
        size = self.stage.job.config.batch_size
        with sharing_if_asked(self.model, self.stage.job.config):
            for part, count in dealt(rows, size, self.accelerator.process_index, self.accelerator.num_processes):
                batch = self.batch(part, learnt)
                batch["completion_mask"][count:] = 0
                total += Trainer.training_step(self, model, batch)
        return total

    def batch(self, rows: Sequence[StepRow], learnt: int) -> dict[str, torch.Tensor]:
        """TRL's columns for some rows of a step with `learnt` sampled tokens in all: prompts end, completions begin,
        in the same column.
        """
        prompts = [torch.tensor(row.prompt) for row in rows]
        completions = [torch.tensor(row.completion) for row in rows]
        fill = int(self.processing_class.pad_token_id)  # pyright: ignore
        return {
            "prompt_ids": pad(prompts, fill, "left"),
            "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], 0, "left"),
            "completion_ids": pad(completions, fill),
            "completion_mask": pad([torch.ones_like(ids) for ids in completions], 0),
            "advantages": torch.tensor([row.advantage for row in rows]),
            "num_items_in_batch": torch.tensor(learnt),
        }

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch on its device, with the reference's log-probabilities where the loss asks for them."""
        batch = Trainer._prepare_inputs(self, inputs)
        if self.beta:
            batch["ref_per_token_logps"] = self._reference(batch)
        return batch

    def _reference(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        model = self.ref_model or self.model
        frozen = nullcontext() if self.ref_model else use_adapter(self.accelerator.unwrap_model(model), REFERENCE)
        with torch.no_grad(), frozen:
            scores = self._get_per_token_logps_and_entropies(model, ids, mask, batch["completion_ids"].size(1))[0]
        freeze_below(self.model, self.layers)  # pyright: ignore[reportArgumentType]  # PEFT's switch thaws all blocks
        return scores

    def sample(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Completions of a batch of prompts, from the weights as they stand, each up to the token that ends it."""
        section = self.stage.job.config.grpo
        fill = self.processing_class.pad_token_id  # pyright: ignore
        how = {
            "do_sample": True,
            "temperature": section.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "max_new_tokens": section.max_tokens,
            "eos_token_id": self.eos_token_ids,
            "pad_token_id": fill,
        }
        given = [torch.tensor(ids) for ids in prompts]
        device = self.accelerator.device
        ids = pad(given, fill, "left").to(device)  # pyright: ignore
        mask = pad([torch.ones_like(each) for each in given], 0, "left").to(device)
        self.model.eval()  # pyright: ignore
        with (
            torch.no_grad(),
            torch.random.fork_rng(),
            self.accelerator.autocast(),
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                generation_kwargs=how,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,  # pyright: ignore[reportArgumentType]
            ) as model,
        ):
            torch.manual_seed(seed)
            config = GenerationConfig(**how, disable_compile=True)
            made: Any = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)  # pyright: ignore
        self.model.train()  # pyright: ignore
        return [_ended(row, self.eos_token_ids) for row in made[:, ids.size(1) :].tolist()]

    def score(self, texts: list[Scored]) -> list[float]:
        """The log-probability of each text behind its prompt, by the weights as they stand."""
        fill, size = int(self.processing_class.pad_token_id), self.stage.job.config.batch_size  # pyright: ignore
        self.model.eval()  # pyright: ignore
        with self.accelerator.autocast():
            told = score_texts(self.model, texts, size, fill)
        self.model.train()  # pyright: ignore
        return told


def dealt(rows: Sequence[StepRow], size: int, process: int, processes: int) -> Iterator[tuple[list[StepRow], int]]:
    """A process's batches of at most `size` rows, and how many of a batch's rows are to be learnt.

    Every process has as many batches, of as many rows, as the others: they meet after each. Where rows are missing, the
    first one stands in at the end of a batch, and is not to be learnt there.
    """
    for start in range(0, len(rows), size * processes):
        now = rows[start : start + size * processes]
        width = -(-len(now) // processes)
        mine = now[process * width : (process + 1) * width]
        yield [*mine, *[rows[0]] * (width - len(mine))], len(mine)


def _ended(ids: list[int], ends: list[int]) -> list[int]:
    """Up to the first token that ends a turn; what comes after it is padding."""
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: end + 1]


class GrpoStage:
    """What episodes need beside the weights: the world, one event loop for retriever and judge, and the journal of
    searches and of the judge's replies, so that a run that goes on makes none twice.
    """

    def __init__(
        self, job: Job, world: World, runner: asyncio.Runner, journal: Journal, judge: Judged | None = None
    ) -> None:
        self.job, self.world, self._runner, self.journal, self._judge = job, world, runner, journal, judge
        self._calls: dict[str, QuestionCalls] = {}

    def _calls_of(self, question: Question) -> QuestionCalls:
        if question.id not in self._calls:
            self._calls[question.id] = self.journal.question(question)
        return self._calls[question.id]

    def play(self, trainer: EpisodeGRPOTrainer, numbers: Sequence[int]) -> list[Group]:
        """The groups of the questions with these numbers; the step's number and the run's seed decide the samples."""
        config, step = self.job.config, trainer.state.global_step
        how = Sampling(
            trainer.sample,
            self.job.tokenizer,
            frozenset(trainer.eos_token_ids),
            config.grpo.max_tokens,
            config.max_length,
            trainer.score,
        )
        seed = random.Random(f"{config.seed} {step}").getrandbits(48)
        seed += APART * trainer.accelerator.process_index * len(numbers) * config.grpo.episodes
        questions = [self.world.questions[number] for number in numbers]
        return self._runner.run(
            play(
                questions,
                self.world.environment,
                how,
                config.grpo,
                seed=seed,
                calls=self._calls_of,
                judge=self._judge,
            )
        )

    def note(self, step: int, groups: Sequence[Group]) -> None:
        """Writes the episodes of a step down."""
        with LineJournal(self.job.run.path / EPISODES) as journal:
            for group in groups:
                for line in _lines(step, group):
                    journal.append(line)


def _lines(step: int, group: Group) -> Iterator[dict[str, Any]]:
    """What one reads to see what is being rewarded."""
    for number, episode in enumerate(group.episodes):
        yield {
            "step": step,
            "question": group.question.id,
            "finish": episode.finish,
            "steps": [each.text for each in episode.state.steps],
            "refused": episode.refused,
            "prediction": episode.prediction,
            "rewards": {name: values[number] for name, values in group.terms.items()},
            "reward": group.totals[number],
            "advantage": group.advantages[number] if group.advantages else None,
            **({"gains": group.gains[number]} if group.gains else {}),
        }


def _journal_name() -> str:
    """Each process that plays has a journal of its own."""
    return f"{_rank()}-{JOURNAL}" if _rank() else JOURNAL


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


@contextmanager
def staged(job: Job) -> Iterator[GrpoStage]:
    """The stage of a run; closes the retriever, and the judge's engine where it started one, with the block."""
    world, config = job.world, job.config
    if world is None:
        raise ConfigError("stage grpo learns from --questions and --index")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        stack.push_async_callback(world.environment.retriever.aclose)
        try:
            terms, judge = judged_terms(config.grpo.rewards, world.questions), None
            if terms:
                asked = config.judge.model_copy(update={"max_tokens": max(config.judge.max_tokens, TOKENS)})
                model = runner.run(stack.enter_async_context(open_model(asked, VerdictFormat())))
                greedy = config.judge.temperature == 0
                judge = episode_judge(model, terms, gold=config.grpo.judge_gold, greedy=greedy).read
            spending = Spending(config.budget.share(_rank(), config.workers), {"judge": config.judge.price})
            journal = runner.run(stack.enter_async_context(Journal(job.run.path / _journal_name(), spending)))
            try:
                yield GrpoStage(job, world, runner, journal, judge)
            finally:
                if terms:
                    job.run.set(spent=spending.summary())
        finally:
            runner.run(stack.aclose())


def train(job: Job) -> Outcome:
    """Trains and saves."""
    policy = load_policy(job.files, job.config)
    with staged(job) as stage:
        trainer = build(policy, stage)
        outcome = run_trainer(trainer, job)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    job.run.set(reward_first=rewards[0], reward_last=rewards[-1])
    save(policy, job)
    return outcome


def build(policy: Any, stage: GrpoStage) -> EpisodeGRPOTrainer:
    """The trainer, its questions in the order of training."""
    config = stage.job.config
    section, order = config.grpo, question_order(config, len(stage.world.questions))
    arguments = {
        **common_arguments(config, stage.job.checkpoints),
        # TRL counts episodes; we batch rows
        "per_device_train_batch_size": section.questions // config.workers * section.episodes,
        "max_steps": len(order) // section.questions,
        "num_generations": section.episodes,
        "shuffle_dataset": False,
        "temperature": section.temperature,
        "max_completion_length": section.max_tokens,
        "beta": section.beta,
        "loss_type": "dapo",
    }
    trainer = EpisodeGRPOTrainer(
        model=policy,
        reward_funcs=[_rewarded_elsewhere],
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": "", "number": number} for number in order]),
        processing_class=stage.job.tokenizer,
    )
    trainer.stage, trainer.layers = stage, config.lora.layers
    for name, weight in policy.named_parameters():
        if f".{REFERENCE}." in name:
            weight.requires_grad_(False)
    freeze_below(policy, config.lora.layers)  # adding a reference made every block trainable
    return trainer


def _rewarded_elsewhere(**_: Any) -> list[float | None]:
    """TRL wants a reward function; ours are scored where the episodes are played."""
    raise RuntimeError("training.rewards scores episodes; TRL has no reason to ask here")


def question_order(config: TrainConfig, count: int) -> list[int]:
    """Numbers of the questions for the whole run, epochs laid end to end, each shuffled anew; whole steps."""
    a_step = config.grpo.questions
    steps = config.max_steps or max(1, round(config.epochs * count / a_step))
    shuffle, order = random.Random(config.seed), []
    while len(order) < steps * a_step:
        epoch = list(range(count))
        shuffle.shuffle(epoch)
        order += epoch
    return order[: steps * a_step]
