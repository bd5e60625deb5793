"""`steprag pairs export --format embedding`: what trees teach the retriever.

A row is a query of a tree, or the question itself; passages that answer it; and passages that were found in their place
and misled. Texts are those of the corpus, since trees keep none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path

from preference.build import one_prompt, read_trees
from preference.config import FolderConfig
from preference.pairs_folder import SPLITS, split_of
from steprag.agent.facts import facts_about, retrieving
from steprag.agent.grammar import Grammar
from steprag.errors import ConfigError
from steprag.records.inputs import read_passages
from steprag.records.jsonl import dump_line, written_whole
from steprag.runs.run import run_of
from steprag.scores.gold import Gold, gold_of, holds_golden
from steprag.scores.metrics import guessable, normalise
from steprag.tree import Node, Tree
from steprag.types import Passage, Question

HARD = 8
"""Hard negatives of a row, at most; FlagEmbedding's recipes draw 7 of them."""
SAME = 0.8
"""Share of words that two passages have in common from which they are one passage in two spellings."""
Texts = dict[str, Passage]
"""The passages of a corpus that trees speak of, by id."""


@dataclass(frozen=True)
class PairDraft:
    """A row to be, in ids of passages. `found`: what the query found; `wanted`: marks of gold passages, one of which it
    must have meant (all, of the question itself); `others`: what it and its siblings found, worst misleaders first.
    """

    query: str
    question: Question
    found: tuple[str, ...]
    wanted: frozenset[str]
    others: tuple[str, ...]


@dataclass(frozen=True)
class EmbeddingRow:
    """A query, texts of passages that answer it, and of passages that do not, in FlagEmbedding's words."""

    query: str
    pos: tuple[str, ...]
    neg: tuple[str, ...]
    question_id: str


def export_embedding(trees: list[Path], corpus: Path, out: Path) -> Counter[str]:
    """Writes FlagEmbedding's rows (`train.jsonl`, `val.jsonl`) and sentence-transformers' (`triplets.….jsonl`), split
    by question as a pairs folder is; returns rows by file, and by reason what was left out.

    Raises ConfigError where the corpus lacks the trees' passages, or no row comes of them.
    """
    _, grammar = one_prompt(trees, [run_of(file) for file in trees])
    made = [draft for tree, _ in read_trees(*trees) for draft in drafts(tree, grammar)]
    texts, counts = gathered(corpus, made), Counter[str]()
    if made and not texts:
        raise ConfigError(f"{corpus} holds none of the passages that the trees found; give the corpus of their index")
    rows = list(rows_of(made, texts, counts))
    if not rows:
        told = ", ".join(f"{why} {count}" for why, count in counts.items()) or "there are none"
        raise ConfigError(f"no query of the trees has a gold passage and a hard negative ({told})")
    asked = {draft.question.id: draft.question for draft in made}
    with ExitStack() as stack:
        names = [f"{kind}{split}.jsonl" for split in SPLITS for kind in ("", "triplets.")]
        streams = {name: stack.enter_context(written_whole(out / name)) for name in names}
        for row in rows:
            split = SPLITS[split_of(asked[row.question_id], FolderConfig())]
            for name, lines in ((f"{split}.jsonl", [row]), (f"triplets.{split}.jsonl", triplets(row))):
                counts[name] += len(lines)
                streams[name].writelines(dump_line(line) + "\n" for line in lines)
    return counts


def drafts(tree: Tree, grammar: Grammar) -> Iterator[PairDraft]:
    """The question's row first, then one for each query. A query that found no gold passage meant the one that its
    episode still lacked, where that is a single one.
    """
    queries = [node for node in tree.nodes if node.action in retrieving(grammar) and not node.failure and node.content]
    facts = facts_about(tree, grammar)
    gold = facts.gold
    marks = gold.titles or gold.ids if gold else frozenset[str]()
    yield PairDraft(tree.question.question, tree.question, (), marks, _misled(queries, gold))
    for node in queries:
        left = marks - facts.seen[node.parent or 0].found.keys() if gold else marks
        wanted = left if len(left) == 1 and gold and not gold.any_is_enough else frozenset[str]()
        siblings = [node, *(other for other in queries if other.parent == node.parent and other is not node)]
        found = tuple(passage.id for passage in node.passages)
        yield PairDraft(node.content or "", tree.question, found, wanted, _misled(siblings, gold))


def _misled(queries: Sequence[Node], gold: Gold | None) -> tuple[str, ...]:
    """The passages that are not gold, by how many of the queries found them in place of a gold one."""
    missed: Counter[str] = Counter()
    for node in queries:
        others = [passage.id for passage in node.passages if not (gold and gold.matches(passage))]
        missed.update(dict.fromkeys(others, int(len(others) == len(node.passages))))
    return tuple(one for one, _ in missed.most_common())


def gathered(corpus: Path, made: Iterable[PairDraft]) -> Texts:
    """The passages that drafts name, from one reading of the corpus."""
    gold = [gold for draft in made if (gold := gold_of(draft.question))]
    ids = {one for draft in made for one in (*draft.found, *draft.others)} | {one for each in gold for one in each.ids}
    titles = {title for each in gold for title in each.titles}
    return {p.id: p for p in read_passages(corpus) if p.id in ids or (titles and normalise(p.title) in titles)}


def rows_of(made: Sequence[PairDraft], texts: Texts, counts: Counter[str]) -> Iterator[EmbeddingRow]:
    """The rows of drafts, one for each wording; `counts` gets why drafts and negatives were left out. What is gold for
    a wording in one tree is a negative of it in none.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for draft in made:
        found[draft.question.id] |= {*draft.found, *draft.others}
    golden = {draft.question.id: (draft.question, found[draft.question.id]) for draft in made}
    titles: dict[str, list[Passage]] = defaultdict(list)
    for passage in texts.values():
        titles[normalise(passage.title)].append(passage)
    golden = {key: gold_passages(*given, texts, titles) for key, given in golden.items()}
    rows: dict[str, tuple[PairDraft, dict[str, None], dict[str, None]]] = {}
    for draft in made:
        right, mark = golden[draft.question.id], gold_of(draft.question)
        meant = [right[one] for one in draft.found if one in right]
        meant = meant or [p for p in right.values() if mark and mark.matches(p) in draft.wanted]
        if not meant:
            counts["no gold passage"] += 1
            continue
        _, pos, neg = rows.setdefault(normalise(draft.query), (draft, {}, {}))
        others = [texts[one] for one in draft.others if one in texts and one not in right]
        hard = [passage for passage in others if not gold_in_disguise(passage, [*right.values()], draft.question)]
        counts["gold under another name"] += len(others) - len(hard)
        pos.update(dict.fromkeys(map(text_of, meant)))
        neg.update(dict.fromkeys(map(text_of, hard)))
    for draft, pos, neg in rows.values():
        hardest = tuple(islice((text for text in neg if text not in pos), HARD))
        counts["no hard negative"] += not hardest
        if hardest:
            yield EmbeddingRow(draft.query, tuple(pos), hardest, draft.question.id)


def gold_passages(question: Question, found: set[str], texts: Texts, titles: dict[str, list[Passage]]) -> Texts:
    """The question's gold passages by id. Of several that bear one marked title: those that were found, or else hold
    the golden answer. Without marks: those found that hold the golden answer, unless it can be guessed.
    """
    gold, golden = gold_of(question), question.golden_answers
    if gold is None:
        lucky = guessable(question.question, golden)
        holders = [texts[one] for one in sorted(found) if one in texts and not lucky]
        return {p.id: p for p in holders if holds_golden(p.text, golden)}
    titled = [titles.get(title, []) for title in sorted(gold.titles)]
    held: list[Passage] = []
    for part in titled or [[texts[one]] for one in sorted(gold.ids) if one in texts]:
        own = [p for p in part if p.id in found]
        held += own or [p for p in part if len(part) == 1 or holds_golden(p.text, golden)]
    return {p.id: p for p in held}


def gold_in_disguise(passage: Passage, golden: Sequence[Passage], question: Question) -> bool:
    """Whether a passage may be gold though no mark says so: it bears a mark or a gold passage's title, has nearly its
    words, or holds the golden answer, unless that can be guessed.
    """
    gold, words = gold_of(question), words_of(passage.text)
    open_ended = not guessable(question.question, question.golden_answers)
    if (gold and gold.matches(passage)) or (open_ended and holds_golden(text_of(passage), question.golden_answers)):
        return True
    theirs = (words_of(other.text) for other in golden)
    alike = any(len(words & other) >= SAME * len(words | other) for other in theirs)
    return alike or normalise(passage.title) in {normalise(other.title) for other in golden} - {""}


@lru_cache(1 << 14)
def words_of(text: str) -> frozenset[str]:
    """The words of a text, normalised as for a score."""
    return frozenset(normalise(text).split())


def text_of(passage: Passage) -> str:
    """What an index encodes of a passage: title, newline, text."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def triplets(row: EmbeddingRow) -> list[dict[str, str]]:
    """sentence-transformers' rows: every positive and every negative once or more, not each with each."""
    pairs = islice(zip(cycle(row.pos), cycle(row.neg), strict=False), max(len(row.pos), len(row.neg)))
    return [{"anchor": row.query, "positive": pos, "negative": neg} for pos, neg in pairs]
