"""Which entities belong to which split, and which questions are kept."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.atlas.model import AtlasWorld, plain
from benchmarks.atlas.questions import QuestionRow

SEED = 20
SHARES = {"train": 0.37, "dev": 0.14, "test": 0.23, "warmstart": 0.26}
QUOTAS: dict[str, dict[str, int]] = {
    "train": {"one-hop": 115, "bridge": 200, "comparison": 95, "yes-no": 70},
    "dev": {"one-hop": 37, "bridge": 60, "comparison": 31, "yes-no": 22},
    "test": {"one-hop": 62, "bridge": 105, "comparison": 53, "yes-no": 40},
    "warmstart": {"one-hop": 90, "bridge": 110, "comparison": 54, "yes-no": 46},
}
LATER: dict[str, dict[str, int]] = {"test": {"one-hop": 70, "bridge": 125, "comparison": 50, "yes-no": 35}}
"""Questions that came to a split later: behind the others, which stay what they were."""
PER_ROW = 3  # questions of one kind that may lean on one passage
PER_BRIDGE = 3
TOP_ANSWER = 0.025  # of a split's questions
# Codes are poor search words for dense vectors, and calendars all say the same.
DULL = frozenset(
    {
        "country.week",
        "country.domain",
        "country.letters",
        "airport.icao",
        "language.code",
        "state.zone",
        "element.period",
        "language.direction",
        "country.region",
        "currency.iso",
        "country.dialling",
        "state.postal",
        "airport.iata",
    }
)


def assign(world: AtlasWorld) -> dict[str, str]:
    """Each entity group's split; large and small groups of every kind are dealt out in the shares of `SHARES`."""
    sizes = Counter(entity.group for entity in world.entities.values())
    by_kind: dict[str, list[str]] = defaultdict(list)
    for group in sorted(sizes):
        by_kind[group.split(":")[0]].append(group)
    rng = random.Random(SEED)
    split_of: dict[str, str] = {}
    for kind in sorted(by_kind):
        groups = by_kind[kind]
        rng.shuffle(groups)
        groups.sort(key=lambda group: -sizes[group])
        held = dict.fromkeys(SHARES, 0.0)
        for group in groups:
            split = min(SHARES, key=lambda name: (held[name] + sizes[group] / 2) / SHARES[name])
            held[split] += sizes[group]
            split_of[group] = split
    return split_of


def home(question: QuestionRow, split_of: Mapping[str, str]) -> str | None:
    splits = {split_of[group] for group in question.groups}
    return splits.pop() if len(splits) == 1 else None


class _Limits:
    """What one split has used up: passages, bridges and answers."""

    def __init__(self, total: int) -> None:
        self.rows: Counter[tuple[str, int]] = Counter()
        self.bridges: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.texts: set[str] = set()
        self.total = total
        self.most = max(2, math.floor(TOP_ANSWER * total))

    def widen(self, more: int) -> None:
        """So many more questions are to be chosen."""
        self.total += more
        self.most = max(2, math.floor(TOP_ANSWER * self.total))

    def allow(self, question: QuestionRow) -> bool:
        answer = plain(question.answers[0])
        if plain(question.text) in self.texts:
            return False
        most = 2 if any(char.isdigit() for char in answer) else self.most
        if question.kind != "yes-no" and self.answers[answer] >= most:
            return False
        if question.bridge and self.bridges[question.bridge] >= PER_BRIDGE:
            return False
        return all(self.rows[question.kind, row] < PER_ROW for row in question.rows)

    def take(self, question: QuestionRow) -> None:
        self.texts.add(plain(question.text))
        self.answers[plain(question.answers[0])] += 1
        self.rows.update((question.kind, row) for row in question.rows)
        if question.bridge:
            self.bridges[question.bridge] += 1


def in_turns(candidates: Iterable[QuestionRow], rng: random.Random) -> list[QuestionRow]:
    """The candidates so ordered that the relations take turns; dull relations come once in three rounds."""
    by_pattern: dict[tuple[str, ...], list[QuestionRow]] = defaultdict(list)
    for question in candidates:
        by_pattern[question.relations].append(question)
    placed: list[tuple[float, float, QuestionRow]] = []
    for pattern in sorted(by_pattern):
        questions = sorted(by_pattern[pattern], key=lambda question: question.text)
        rng.shuffle(questions)
        dull = sum(relation in DULL or relation.removeprefix("of ") in DULL for relation in pattern)
        for turn, question in enumerate(questions):
            placed.append((turn * (1 + 2 * dull) + rng.random() * (1 + 2 * dull), rng.random(), question))
    return [question for _, _, question in sorted(placed, key=lambda item: item[:2])]


def choose(questions: Sequence[QuestionRow], split_of: Mapping[str, str]) -> dict[str, list[QuestionRow]]:
    """The kept questions of every split, in the order of `QUOTAS` and within the limits."""
    pool: dict[tuple[str, str], list[QuestionRow]] = defaultdict(list)
    for question in questions:
        if split := home(question, split_of):
            pool[split, question.kind].append(question)
    kept: dict[str, list[QuestionRow]] = {}
    for split, quotas in QUOTAS.items():
        limits = _Limits(sum(quotas.values()))
        kept[split] = _chosen(split, quotas, pool, limits, random.Random(f"{SEED}-{split}"))
        if more := LATER.get(split):
            limits.widen(sum(more.values()))
            kept[split] += _chosen(split, more, pool, limits, random.Random(f"{SEED}-{split}-later"))
    return kept


def _chosen(
    split: str,
    quotas: Mapping[str, int],
    pool: Mapping[tuple[str, str], list[QuestionRow]],
    limits: _Limits,
    rng: random.Random,
) -> list[QuestionRow]:
    """So many questions of each kind as the quotas say, or as there are, in a random order."""
    found: list[QuestionRow] = []
    for kind, quota in quotas.items():
        halves: Counter[str] = Counter()
        count = 0
        for question in in_turns(pool[split, kind], rng):
            if count == quota:
                break
            if kind == "yes-no" and halves[question.answers[0]] >= quota / 2:
                continue
            if limits.allow(question):
                limits.take(question)
                halves[question.answers[0]] += 1
                found.append(question)
                count += 1
    rng.shuffle(found)
    return found
