"""The recipe of a training run: what `configs/training/*.yaml` and the options of `steprag train` may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steprag.config.load import StageConfig
from steprag.config.sections import (
    EpisodeConfig,
    JudgeConfig,
    Positive,
    PromptConfig,
    RetrieverConfig,
    Section,
    names_in,
)
from steprag.policy.budget import BudgetConfig

Share = Annotated[float, Field(ge=0)]


def _trackers(said: Any) -> Any:
    """As `Names`; "none" is none, as transformers has it."""
    names = names_in([] if said is None else said)
    return [name for name in names if name != "none"] if isinstance(names, list) else names


Optimiser = Literal[
    "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "lion_32bit",
    "lion_8bit", "adafactor", "sgd",
]  # fmt: skip


class LoraSection(Section):
    """Adapters of low rank (LoRA, arXiv 2106.09685), where finetuning is lora."""

    rank: Positive = Field(default=8, description="rank of the two matrices added to each linear layer")
    alpha: Positive = Field(default=16, description="scale of what LoRA adds, divided by the rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout before the added matrices")
    layers: Positive | None = Field(default=None, description="train only the top N blocks; below them backward stops")
    target: str = Field(default="all-linear", description="all-linear, or names of linear layers with commas between")


class DpoSection(Section):
    """Stage dpo (arXiv 2305.18290): the loss over pairs."""

    beta: float = Field(default=0.1, gt=0, description="how closely the policy is held to its reference")
    loss: tuple[str, ...] = Field(default=("sigmoid",), description="TRL's preference losses, summed")
    sft_weight: Share = Field(default=0.0, description="weight of the chosen step's own likelihood, added to the loss")
    smoothing: bool = Field(default=True, description="smooth pairs that have label_smoothing; false ignores it")


class EncoderSection(Section):
    """Stage retriever: how an encoder learns."""

    temperature: float = Field(default=0.05, gt=0, description="cosines are divided by it; lower: sharper choices")
    query_prefix: str | None = Field(default=None, description="words before every query; none: the model's own")
    passage_prefix: str | None = Field(default=None, description="words before every passage; none: the model's own")


class GrpoSection(Section):
    """Stage grpo (arXiv 2402.03300): episodes of the model's own, rewarded and compared within a question."""

    rewards: dict[str, float] = Field(
        default={"f1": 1.0, "format": 0.1},
        description="reward: weight, such as em, f1, judge, format, evidence, recall, faithfulness, cost, all in "
        "docs/training.md; 0 only logs it",
    )
    questions: Positive = Field(default=8, description="questions whose episodes make one step")
    episodes: int = Field(default=8, ge=2, description="episodes a question: the group that advantages compare")
    temperature: float = Field(default=1.0, gt=0, le=5, description="sampling temperature of the episodes")
    max_tokens: Positive = Field(default=128, description="longest completion, in tokens")
    scale: Literal["group", "none"] = Field(
        default="group", description="divide a group's advantages by its standard deviation, or not (Dr. GRPO)"
    )
    beta: Share = Field(default=0.0, description="weight of the divergence from where training starts; 0: none")
    log_kl: bool = Field(
        default=False, description="log that divergence with beta 0 too, from a reference (finetuning full: a model)"
    )
    gain: Share = Field(
        default=0.0, description="weight of turn rewards: what a step adds to the belief in the golden answer; 0: none"
    )
    turns: Literal["gold", "chained"] | None = Field(
        default=None,
        description="label that rewards each turn beside its episode: gold, marked passages found and kept; chained, "
        "the golden answer met, or a name that leads to it",
    )
    credit: Literal["episode", "kept", "state"] = Field(
        default="episode",
        description="kept: no praise for what a later step took back (biased); state: steps said to the same prompt "
        "are compared with each other; episode: all alike",
    )
    branch: int = Field(
        default=0, ge=0, description="episodes more a question, played on from states of the first; 0: none"
    )
    weigh: Literal["token", "episode"] = Field(
        default="token", description="token: long episodes weigh more; episode: each episode of a group weighs the same"
    )
    judge_gold: bool = Field(default=True, description="show the judge the golden answers")
    engine: str | None = Field(
        default=None, pattern=r"^(vllm|https?://\S+)$",
        description="what samples: none, this process (only there a resumed run repeats exactly); vllm, started here; "
        "or the URL of a vLLM that loads adapters from this disk",
    )  # fmt: skip
    engine_args: dict[str, Any] = Field(
        default={}, description="more flags of the vLLM started here, such as {gpu_memory_utilization: 0.4}"
    )
    mismatch: float = Field(
        default=0.02, gt=0, description="KL divergence a token of engine and trainer above which the run ends"
    )

    @property
    def at_once(self) -> int:
        """Episodes of a step that are played at the same time."""
        return self.questions * max(self.episodes, self.branch)

    @property
    def holds_reference(self) -> bool:
        """Whether the policy that training starts from is kept, to measure the divergence from it."""
        return self.log_kl or self.beta > 0


class LlamaFactorySection(Section):
    """Where LLaMA-Factory is, where trainer is llamafactory."""

    executable: str = Field(
        default=".venv-llamafactory/bin/llamafactory-cli",
        description="its command; scripts/setup_llamafactory.sh makes the environment",
    )


class TrainConfig(StageConfig):
    """`steprag train`. A value that a recipe leaves out has the default below, not TRL's."""

    trainer: Literal["trl", "llamafactory"] = Field(
        default="trl", description="what trains: TRL, or LLaMA-Factory in an environment of its own"
    )
    stage: Literal["sft", "dpo", "grpo", "critic", "retriever"] = Field(
        default="dpo",
        description="sft: steps; dpo: preferences; grpo: its own episodes; critic: what steps are worth; retriever: "
        "an encoder, from the trees' searches",
    )
    model: str = Field(
        default="smollm2-135m-instruct",
        description="base weights: embedded name, folder or hub id; stage retriever: minilm, if none is given",
    )
    adapter: str | None = Field(
        default=None, description="PEFT folder to start from, or a shipped one; none: a new one"
    )
    finetuning: Literal["lora", "full"] = Field(default="lora", description="train a LoRA adapter, or every weight")
    quantization: Literal["nf4", "int8"] | None = Field(
        default=None, description="the base in 4 bits (nf4, QLoRA) or 8 (int8), by bitsandbytes; the adapter is whole"
    )
    deepspeed: Literal["zero2", "zero3"] | None = Field(
        default=None, description="shards optimiser (zero2), and weights too (zero3), over the processes or GPUs"
    )
    processes: Positive = Field(
        default=1, description="processes of a machine that train side by side, one a GPU or a share of the cores (trl)"
    )
    nodes: Positive = Field(default=1, description="machines that train side by side, each with these processes (trl)")
    rendezvous: str | None = Field(default=None, pattern=r"^[^\s:]+:\d+$", description="HOST:PORT here where they meet")
    merge: bool = Field(default=False, description="after LoRA also write base and adapter as one model, CKPT/merged")
    lora: LoraSection = Field(default_factory=LoraSection)
    dpo: DpoSection = Field(default_factory=DpoSection)
    encoder: EncoderSection = Field(default_factory=EncoderSection)
    grpo: GrpoSection = Field(default_factory=GrpoSection)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    optim: Optimiser | None = Field(
        default=None,
        description="transformers' optimiser, such as adamw_8bit, paged_adamw_8bit, adafactor; none: AdamW",
    )
    learning_rate: float = Field(default=2e-4, gt=0, description="peak learning rate of the optimiser")
    epochs: float = Field(default=1.0, gt=0, description="passes over the rows or questions; max_steps overrides it")
    max_steps: Positive | None = Field(default=None, description="optimiser steps; none: as many as the epochs need")
    minutes: float | None = Field(default=None, gt=0, description="end the loop at the first step past this time")
    batch_size: Positive = Field(default=8, description="sequences (sft, grpo) or pairs (dpo) a device takes at once")
    accumulation: Positive = Field(default=1, description="batches whose gradients make one step")
    share_prefix: bool = Field(
        default=True,
        description="compute what sequences begin with once: same loss, less work (trl: dpo, grpo; sft by question)",
    )
    row_tokens: Positive = Field(default=1024, description="tokens that share_prefix puts into one row of input")
    side_by_side: Literal["prompt", "question"] = Field(
        default="prompt",
        description="batch rows by prompt or by question; by question shares more, mixes batches less (trl: sft, dpo)",
    )
    max_length: Positive = Field(
        default=1024, description="rows with more tokens are left out, never cut; grpo ends episodes there"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="values for the chat template, such as {enable_thinking: false}: policy's in inference"
    )
    warmup: Share = Field(default=0.05, description="steps of rising learning rate; below 1 a share of all steps")
    scheduler: Literal["linear", "cosine", "constant_with_warmup"] = Field(default="cosine", description="after warmup")
    weight_decay: Share = Field(default=0.0, description="AdamW's weight decay")
    max_grad_norm: float = Field(default=1.0, ge=0, description="gradients are scaled down to this norm; 0: never")
    held_out: int = Field(default=64, ge=0, description="rows of the val file scored after training; 0 scores none")
    collapse: bool = Field(
        default=True,
        description="end a run that collapses, with its weights from before (trl: grpo; lora: sft, dpo)",
    )
    save_steps: Positive = Field(default=50, description="steps between checkpoints, from which a killed run resumes")
    seed: int = Field(default=0, ge=0, description="order of the rows, first values of LoRA, sampling of episodes")
    threads: Positive | None = Field(default=None, description="CPU threads; none takes every core")
    bf16: bool = Field(default=False, description="compute in bfloat16 (for GPUs; many CPUs get slower)")
    report_to: Annotated[tuple[str, ...], BeforeValidator(_trackers)] = Field(
        default=(), description="trackers of the Hugging Face Trainer: tensorboard, wandb, swanlab, trackio, ..."
    )
    license: str = Field(default="unknown", description="licence on the model card, as the hub spells it")
    llamafactory: LlamaFactorySection = Field(default_factory=LlamaFactorySection)
    gradient_checkpointing: bool = Field(default=False, description="less memory for about a third more time")

    @property
    def shares(self) -> bool:
        """Whether this run computes what sequences begin with once."""
        alone = self.stage == "critic" or (self.stage == "sft" and self.side_by_side == "prompt")
        return self.share_prefix and self.trainer == "trl" and not alone

    @property
    def step_rows(self) -> int:
        """Rows that make one step, over all processes."""
        return self.batch_size * self.accumulation * self.workers

    @property
    def workers(self) -> int:
        """Processes that train side by side, on all machines."""
        return self.processes * self.nodes

    @property
    def launched(self) -> bool:
        """Whether torchrun starts the processes: several, or one that DeepSpeed joins."""
        return self.workers > 1 or self.deepspeed is not None


NEUTRAL = frozenset({"budget", "rendezvous", "threads", "save_steps", "report_to", "llamafactory", "license"})
"""Keys that do not decide the result, so that an interrupted run may resume with others."""

ENGINE = ("engine", "engine_args", "mismatch")
"""Keys of grpo of which a run's identity says only whether an engine sampled."""

ONLINE = frozenset({"episode", "retriever", "prompt", "judge"})
"""Sections that, with `grpo`, only stage grpo reads. What of them decides its result is in `World.identity`."""
