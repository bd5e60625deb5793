"""The options that both proofs share: sizes, engine, lanes, and folders."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from steprag.config.recipes import RECIPES
from steprag.engines.launch import vllm_is_for_cpus
from steprag.engines.threads import fast_dtype, usable_cores
from steprag.errors import ConfigError


@dataclass(frozen=True)
class ProofSizes:
    """How much of everything; every field is made by `size`."""


S = TypeVar("S", bound=ProofSizes)


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """Where a proof's runs go, what serves its policies, and how many stages run side by side."""

    out: Path
    engine: str = "llamacpp"
    lanes: int = 1

    @property
    def served(self) -> tuple[str, ...]:
        """Options that name the engine; llama.cpp is served without them, and vLLM is best with many requests."""
        many = ("--policy.concurrency", "24") if self.engine == "vllm" else ()
        return () if self.engine == "llamacpp" else ("--policy.engine", self.engine, *many)


def size(usual: int, quick: int, words: str, least: int = 1) -> Any:
    """A field of a class of sizes: its value, that of `--quick`, what it counts, and the least that is allowed."""
    return field(default=usual, metadata={"quick": quick, "words": words, "least": least})


def proof_parser(prog: str, description: str, out: str, report: str, sizes: type[S]) -> argparse.ArgumentParser:
    """The options that both proofs have; `sizes` has its own."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--out", default=out, metavar="DIR", help=f"folder of the runs [{out}]")
    where = f"where the report goes, its plots beside it [DIR/{report}]"
    parser.add_argument("--report", metavar="FILE", help=where)
    parser.add_argument("--quick", action="store_true", help="sizes that show that it runs, and nothing else")
    for each in fields(sizes):
        text = f"{each.metadata['words']} [{each.default}; quick {each.metadata['quick']}]"
        parser.add_argument(f"--{each.name}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--engine", default="llamacpp", choices=("llamacpp", "vllm"), help="what serves the policies [llamacpp]"
    )
    parser.add_argument(
        "--lanes", type=int, metavar="N",
        help="stages that run side by side, each on its share of the cores [2 where there are as many; 1 on a GPU]",
    )  # fmt: skip
    return parser


def sizes_asked(given: argparse.Namespace, sizes: type[S]) -> S:
    """The sizes asked for, and the usual ones for the rest. Raises ConfigError."""
    values: dict[str, Any] = {}
    for each in fields(sizes):
        asked, least = getattr(given, each.name), each.metadata["least"]
        if asked is not None and asked < least:
            raise ConfigError(f"--{each.name} is {least} or more")
        values[each.name] = (each.metadata["quick"] if given.quick else each.default) if asked is None else asked
    return sizes(**values)


def lanes_asked(given: argparse.Namespace) -> int:
    """The lanes asked for; else two, or one on a GPU, because vLLM takes most of its memory. Raises ConfigError."""
    if given.lanes is not None and given.lanes < 1:
        raise ConfigError("--lanes is 1 or more")
    usual = 1 if given.engine == "vllm" and not vllm_is_for_cpus() else min(2, usable_cores())
    return given.lanes or usual


def fast() -> tuple[str, ...]:
    """Options that train in bfloat16, where this processor has instructions for it."""
    return ("--bf16", "true") if fast_dtype() == "bfloat16" else ()


def recipe(kind: str) -> Path:
    """The Atlas recipe of that kind (warmstart, sft, dpo or grpo)."""
    return RECIPES / f"training/atlas-{kind}.yaml"
