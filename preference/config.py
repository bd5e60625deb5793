"""The keys of `steprag pairs`, and its presets."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from steprag.config.load import StageConfig, with_preset
from steprag.config.sections import Positive, RetrieverConfig, Section
from steprag.errors import nearest, quoted
from steprag.extras import code_hash
from steprag.records.jsonl import existing, file_hash

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    # The published builder (arXiv 2505.14069 and its code): any two rewarded siblings with a gap of 0.01, nothing else.
    "reasonrag": {
        # searches of 7 or 8 steps force the answer of the 7th, which the published builder does not pay
        "label": {"name": "reasonrag", "metric": "f1_with_articles", "alpha": 0.9, "unpaid_from": 7},
        "pairs": {
            "margin": 0.01, "errors": 0.0, "cross_action": True, "different": "exact",
            "unbroken": True, "per_node": None,
        },
        "balance": {"unsolved_first": False},
        "filters": {"malformed": False, "leaked": False, "duplicates": False, "contradictions": False},
        "validation": 0.0,
    },
}  # fmt: skip
"""What each preset sets; keys that the user gives win."""

NO_REWARD = "steprag pairs calls this section label (label.name, label.alpha, …); reward is the search's"
"""Said where somebody sets `reward`, the name of `label` in earlier versions."""


Part = Literal["spre", "first_answer", "judge", "gold", "cover", "gain", "reasonrag"]
LABELS = (*get_args(Part), "evidence", "mixed")
Product = Literal["pairs", "sft", "steps", "rankings"]


class LabelConfig(Section):
    """What a step of a finished tree is worth (`preference.rewards`)."""

    name: str = Field(
        default="evidence",
        description="evidence: gold where the question marks passages, else cover, chained; gold: marked passages "
        "found and kept; cover: the golden answer was met; spre: mean over the answers below of metric × alpha^steps; "
        "first_answer: the first of them; judge: its scores; gain: the policy's belief in the golden answer "
        "(search.score or steprag trees belief); reasonrag: the published recursion; mixed: see mix; "
        "module:function: yours, of a tree and its grammar",
    )
    chained: bool = Field(
        default=False, description="cover: a name that leads to the golden answer counts too, half as much"
    )
    metric: Literal["f1", "em", "f1_with_articles"] = Field(default="f1", description="what an answer is worth")
    alpha: float = Field(default=0.9, gt=0, le=1, description="discount a step")
    unpaid_from: Positive | None = Field(
        default=None,
        description="depth from which answers have no score, as the search's bound forced them; none: all have one",
    )
    grounded: bool = Field(
        default=False,
        description="a right answer counts only where the episode found and kept the facts it needs; a lucky one has "
        "no score",
    )
    mix: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={"spre": 0.5, "judge": 0.5}, min_length=1, description="weights of the rewards that mixed adds up"
    )

    @field_validator("name")
    @classmethod
    def _known_or_own(cls, name: str) -> str:
        if name not in LABELS and ":" not in name:
            raise ValueError(f"unknown label {quoted(name)}{nearest(name, LABELS)}; yours is named module:function")
        return name

    @field_validator("mix")
    @classmethod
    def _parts_known(cls, mix: dict[str, float]) -> dict[str, float]:
        for name in mix:
            if cls._known_or_own(name) in ("evidence", "mixed"):
                raise ValueError(f"{name} is no part of a mix; name what it is made of")
        return mix

    @property
    def own(self) -> tuple[str, ...]:
        """The user's functions that it names."""
        return tuple(name for name in (self.mix if self.name == "mixed" else (self.name,)) if ":" in name)

    @model_validator(mode="after")
    def _chains_what_it_covers(self) -> LabelConfig:
        parts = self.mix if self.name == "mixed" else {self.name}
        if self.chained and not {"cover", "evidence"} & set(parts):
            raise ValueError(f"chained is a key of cover, and name is {self.name}; give --label.name cover beside it")
        return self


class PairsConfig(Section):
    """Which siblings make a pair (`preference.pairs`)."""

    cross_action: bool = Field(
        default=False, description="pair siblings of different actions too (query against answer)"
    )
    different: Literal["normalised", "exact"] = Field(
        default="normalised", description="how contents must differ: after normalisation, or in any character"
    )
    margin: float = Field(default=0.1, gt=0, le=1, description="least gap between the rewards of chosen and rejected")
    errors: float = Field(
        default=1.0, ge=0, description="the gap must also exceed so many of its standard errors; 0 does not ask"
    )
    per_node: Positive | None = Field(default=4, description="pairs from one prompt at most, widest margin first")
    unbroken: bool = Field(
        default=False, description="only where every node above has two children too (as the published builder)"
    )
    new: bool = Field(
        default=True, description="leave out pairs of two steps that an earlier round held (steprag generate --after)"
    )
    smoothing: bool = Field(
        default=False,
        description="write label_smoothing, the rejected step's share of the pair's visits, and drop pairs in which it "
        "is one half or more",
    )


class FilterConfig(Section):
    """Which pairs are dropped once they are made (`preference.filters`, `preference.candidates`)."""

    malformed: bool = Field(default=True, description="drop pairs with a step that the grammar refuses")
    leaked: bool = Field(default=True, description="drop pairs whose chosen query holds an answer not read before")
    repeating: bool = Field(
        default=False, description="drop pairs and supervised episodes that prefer a step which repeats itself"
    )
    again: bool = Field(
        default=False,
        description="drop pairs and supervised episodes that prefer a search which the episode made before",
    )
    unread: bool = Field(
        default=False,
        description="drop pairs and supervised episodes that prefer an answer which nothing read before holds",
    )
    made_up: bool = Field(
        default=False,
        description="drop pairs and supervised episodes that prefer evidence which does not stand in what was read",
    )
    max_tokens: Positive | None = Field(
        default=None, description="drop pairs longer than the training cut-off, in tokens of `tokenizer`"
    )
    tokenizer: str = Field(
        default="smollm2-135m-instruct", description="the model to be trained: embedded name, folder or hub id"
    )
    marked: str | None = Field(
        default=None, description="file of pairs that people marked as wrong in steprag view (wrong.jsonl); drop them"
    )
    duplicates: bool = Field(default=True, description="keep the same preference from the same prompt once")
    contradictions: bool = Field(default=True, description="drop preferences of one prompt that run in a circle")


class BalanceConfig(Section):
    """How many pairs stay (`preference.candidates`)."""

    most: Positive | None = Field(default=None, description="pairs at most; none: all")
    unsolved_first: bool = Field(
        default=True, description="pairs of trees without a right answer are the last that the cap drops"
    )


class SftConfig(Section):
    """Which right episodes become supervised steps (`preference.supervised`)."""

    paths: Literal["shortest", "longest", "best", "surest", "all"] = Field(
        default="shortest",
        description="right episodes kept from each tree; surest: greatest mean reward of their steps",
    )
    per_tree: Positive = Field(default=1, description="episodes kept from each tree at most, unless all are")
    min_f1: float = Field(default=1.0, ge=0, le=1, description="answer F1 from which an episode counts as right")
    partial: Literal["none", "believed", "kept"] = Field(
        default="none",
        description="where fewer than per_tree episodes are right, also ways to states that can answer: believed: the "
        "policy believes in the golden answer there (trees with beliefs); kept: it stands in what was kept. Not on "
        "questions that can be guessed",
    )


class LeakageConfig(Section):
    """What `steprag pairs leakage` compares the questions with (`preference.report.leakage`)."""

    against: tuple[str, ...] = Field(default=(), description="evaluation files that no question may come from")
    encoder: str | None = Field(
        default="minilm",
        description="finds near duplicates: minilm, a sentence-transformers folder; none: not looked for",
    )
    similarity: float = Field(
        default=0.9, gt=0, le=1, description="cosine from which two questions are near duplicates"
    )


class LeakageStageConfig(StageConfig):
    """The keys of `steprag pairs leakage`."""

    leakage: LeakageConfig = Field(default_factory=LeakageConfig)


class CardConfig(Section):
    """What the data card says and nobody can compute."""

    name: str = Field(default="Step-level preferences for agentic RAG", description="title of the data card")
    license: str = Field(default="unknown", description="licence of the data, as the hub spells it")
    sources: dict[str, str] = Field(default={}, description="licences of the sources: {name: licence}")
    plots: bool = Field(default=True, description="draw the plots")


class FolderConfig(StageConfig):
    """What decides a pairs folder, wherever its pairs come from."""

    filters: FilterConfig = Field(default_factory=FilterConfig)
    balance: BalanceConfig = Field(default_factory=BalanceConfig)
    leakage: LeakageConfig = Field(default_factory=LeakageConfig)
    card: CardConfig = Field(default_factory=CardConfig)
    validation: float = Field(default=0.1, ge=0, lt=1, description="share of questions kept for validation")
    seed: int = Field(default=0, description="decides which questions are kept for validation, and what balance keeps")

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the folder's rows: of the marked pairs their file's hash, nothing where none are given.
        `assignment`: what decides a question's side of the split.

        Raises ConfigError where that file, or one of `leakage.against`, is missing.
        """
        for file in self.leakage.against:
            existing(file, "evaluation file")
        decides = self.model_dump(exclude={"card": True, "leakage": True, "retriever": True, "filters": {"marked"}})
        decides["assignment"] = "by words"
        if decides.get("label", {}).get("unpaid_from", 1) is None:  # as in folders older than the key
            del decides["label"]["unpaid_from"]
        if (label := getattr(self, "label", None)) and label.own:
            codes = [code_hash(name, "label.name") for name in label.own]
            decides["label"]["code"] = codes[0] if label.name != "mixed" else codes
        if self.filters.marked is not None:
            decides["filters"]["marked"] = file_hash(existing(self.filters.marked, "file of pairs marked as wrong"))
        return decides


class PairsStageConfig(FolderConfig):
    """The keys of `steprag pairs`."""

    preset: Literal["default", "reasonrag"] = Field(
        default="default", description="reasonrag: the published builder's rules; keys given beside it win"
    )
    products: tuple[Product, ...] = Field(
        default=("pairs", "sft"), description="what to make: pairs, sft, steps (for a critic), rankings"
    )
    label: LabelConfig = Field(default_factory=LabelConfig)
    pairs: PairsConfig = Field(default_factory=PairsConfig)
    sft: SftConfig = Field(default_factory=SftConfig)
    retriever: RetrieverConfig = Field(default_factory=RetrieverConfig)
    guessable: Literal["keep", "drop"] = Field(
        default="keep",
        description="questions whose golden answer is yes, no or words of the question, where luck makes wrong steps "
        "right: learnt from, or left out",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "reward" in given:
            raise ValueError(NO_REWARD)
        return with_preset(cls, given, PRESETS, given.get("preset"))
