"""What published encoders leave out of their files: how to pool, and what to put before queries and passages.

The facts are those of the models' cards. `FAMILIES` is asked where a folder does not say it itself; `prompts_taken`
reads what it does say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """`pooling` is "" where only a model's own files can say it."""

    pooling: str
    query: str = ""
    passage: str = ""


_BGE = "Represent this sentence for searching relevant passages: "
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_INSTRUCT = f"Instruct: {_TASK}\nQuery: "
FAMILIES = {
    r"bge-(multilingual-gemma2|en-icl)": Family("lasttoken", f"<instruct>{_TASK}.\n<query>"),
    r"bge-(m3|(small|base|large)-zh-noinstruct)": Family("cls"),
    r"bge-(small|base|large)-zh": Family("cls", "为这个句子生成表示以用于检索相关文章："),
    r"bge-(small|base|large)-en": Family("cls", _BGE),
    r"e5-(small|base|large)-instruct": Family("mean", _INSTRUCT),
    r"(e5(-r)?-mistral|sfr-embedding|linq-embed|gte-qwen\d|inf-retriever)": Family("lasttoken", _INSTRUCT),
    r"qwen3-embedding": Family("lasttoken", _INSTRUCT.rstrip()),
    r"stella-en": Family("mean", f"Instruct: {_TASK}.\nQuery: "),
    r"kalm-embedding-.*instruct": Family(
        "mean", "Instruct: Given a query, retrieve documents that answer the query \n Query: "
    ),
    r"e5-(small|base|large)": Family("mean", "query: ", "passage: "),
    r"arctic-embed-[ml]-v2": Family("cls", "query: "),
    r"arctic-embed-(xs|s|m|l)": Family("cls", _BGE),
    r"mxbai-embed-de": Family("mean", "query: ", "passage: "),
    r"(mxbai-embed-(2d-)?large|uae-large)": Family("cls", _BGE),
    r"(nomic-embed-text|modernbert-embed|cde-small)": Family("mean", "search_query: ", "search_document: "),
    r"nomic-embed-code": Family("lasttoken", "Represent this query for searching relevant code: "),
    r"embeddinggemma": Family("mean", "task: search result | query: ", "title: none | text: "),
    r"gte-((small|base|large)-zh|(base|large)-en|multilingual|modernbert)": Family("cls"),
    r"piccolo-(base|large)-zh-v2": Family("mean"),
    r"piccolo-(base|large)-zh": Family("mean", "查询: ", "结果: "),
    r"ruri-v3": Family("mean", "検索クエリ: ", "検索文書: "),
    r"ruri-(small|base|large)": Family("mean", "クエリ: ", "文章: "),
    r"(granite-embedding|bce-embedding|dmeta-embedding|multi-qa-.*dot|.*tas-b)": Family("cls"),
    r"(gte-(tiny|small|base|large)|m?contriever|m3e|text2vec|minilm|mpnet-base|mxbai-embed-xsmall)": Family("mean"),
    r"jina-embeddings-v2": Family("mean"),
    r".*instruct": Family("", _INSTRUCT),
}
"""By a pattern of whole words of the model's name (`words`), first match first."""

_NAMELESS = re.compile(
    r"[0-9a-f]{7,64}|\d*|v\d+|snapshots|refs|main|master|model|encoder|onnx|final|best|checkpoint-?\d+"
)
"""Parts of a path that name no model: a hub's commit, a training's step, …; the part before them does."""


LONGEST = 200
"""Characters of a model's name that are looked at."""


def words(name: str) -> str:
    """A name in lower case, its words joined by hyphens: `BAAI--bge_base_en` is `baai-bge-base-en`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def model_names(*given: str) -> Iterator[str]:
    """The model's name in each of these names and paths, in `words`: of a hub's cache, that of the repository."""
    for path in given:
        parts = [part for part in re.split(r"[\\/]", path) if not _NAMELESS.fullmatch(part.lower())]
        yield words(parts[-1][-LONGEST:]) if parts else ""


def is_called(pattern: str, name: str) -> bool:
    """Whether the pattern is found in a name as whole words of it (`words`)."""
    return re.search(rf"(^|-)({pattern})(-|$)", name) is not None


def family_of(*given: str) -> Family | None:
    """The family of the first of these names and paths that belongs to one."""
    for name in model_names(*given):
        for pattern, family in FAMILIES.items():
            if is_called(pattern, name):
                return family
    return None


_ANOTHER = "give an encoder of texts, such as BAAI/bge-base-en-v1.5"
UNREAD = {
    r"\w*colbert\w*|colpali|colqwen\d?|multivectorencoder|pylate": (
        f"makes a vector of every token (late interaction, as ColBERT does), not of a text; {_ANOTHER}"
    ),
    r"splade\w*|sparseencoder|sparse-encoder": (
        f"makes weights of words (sparse, as SPLADE does), no vectors; {_ANOTHER}, or rank by words with --hybrid"
    ),
    r"crossencoder|cross-encoder|\w*forsequenceclassification": (
        f"is a reranker: it reads query and passage together; give it as --retriever.reranker, and {_ANOTHER}"
    ),
    r"dpr\w*|(query|question|ctx|context|article|passage|doc|document)-encoder|router|asym": (
        f"encodes queries and passages by a model each; {_ANOTHER}, which reads both"
    ),
    r"static(embedding|model)": f"looks its words up in a table (static embeddings), which is not read; {_ANOTHER}",
}
"""By a pattern of whole words of what a folder's files, or its name, call it: why it cannot encode."""


def unread(said: Iterable[str]) -> str:
    """Why a model that is called so makes no vectors of texts; "" where nothing speaks against it."""
    named = [words(one) for one in said]
    return next((reason for pattern, reason in UNREAD.items() for one in named if is_called(pattern, one)), "")


ROLES = {"query": {"query", "queries", "question"},
         "passage": {"passage", "passages", "document", "documents", "doc", "docs", "corpus", "context"}}  # fmt: skip
SEARCH = {"search", "retrieval", "retrieve", "web", "s2p", "ir", "qa", "nq", "msmarco", "prompt", "prefix", "for"}
"""Words that a prompt's name may have beside its role; any other is of another task (`sts_query`, `code_query`)."""


def _role(name: str, beside: set[str] | None) -> str | None:
    """query or passage, where the prompt's name says one of them and beside it only words of `beside` (None: any)."""
    said = set(words(re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)).split("-"))
    roles = [role for role, named in ROLES.items() if said & named]
    if len(roles) != 1 or (beside is not None and said - ROLES[roles[0]] - beside):
        return None
    return roles[0]


def prompts_taken(config: dict[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Of `config_sentence_transformers.json`: role (query, passage) → prompt, and the names of prompts not taken.

    A prompt is taken by its name, the plainest name first (`query`, then `web_search_query`). The default prompt fills
    what is left: its own role, or both where its name says none. Empty prompts say nothing: sentence-transformers
    writes them for every model.
    """
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text and isinstance(text, str)}
    default = str(config.get("default_prompt_name", ""))
    taken: dict[str, str] = {}
    for name in sorted(prompts, key=lambda name: words(name).count("-")):
        if role := _role(name, SEARCH):
            taken.setdefault(role, prompts[name])
    if default in prompts:
        own = _role(default, None)
        for role in (own,) if own else ROLES:
            taken.setdefault(role, prompts[default])
    return taken, tuple(name for name, text in prompts.items() if text not in taken.values())
