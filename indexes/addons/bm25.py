"""BM25 beside the vectors: the folder `bm25/` of an index folder, memory-mapped, with a manifest of its own.

Passages and queries go through one function, `Analyser`, whose settings are in that manifest. Its files are those of
`bm25s`, which keep every term's contribution to every passage ready (Lucene's formula).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import Field

from indexes.addons.postings import Counted, count_terms, write_arrays
from indexes.folder.manifest import IndexManifest, open_add_on, write_add_on
from indexes.ranking.rankings import Ranking, SearchKey, best_rows
from indexes.rows.passage_store import PassageStore, mapped_list
from steprag.config.sections import Positive, Section
from steprag.console.progress import Progress
from steprag.engines.threads import return_freed_memory
from steprag.errors import ConfigError, DataError, quoted
from steprag.records.json_text import NotJson, decoded
from steprag.records.normal_form import normal_form
from steprag.types import Passage

FOLDER = "bm25"
FORMER = "lexical"
"""Token weights of BGE-M3, which earlier versions could rank by in BM25's place."""
ANALYSER = 3
"""Version of how text becomes terms. It is in the settings by the key VERSION; those that lack it are of version 1.

1: marks are dropped in every script. 2: each script has its own rule. 3: letters that do not decompose are folded,
underscores divide words, and passages hold stop words and single syllables.
"""
VERSION = "analyser"
_ENGLISH = """a an and are as at be but by for if in into is it no not of on or such that the their then there these
they this to was will with"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""Lucene's for English: part of what an analyser's version means, whatever list a package has."""
OFTEN, COLUMNS = 16, 1 << 24
"""A term that stands in one row of so many may be kept as a column; bytes of all columns of a searcher."""
_WIDE = "぀-ヿ㐀-䶿一-鿿豈-﫿가-힯"
_FIRST = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+")
"""Versions 1 and 2: a run of letters, digits and underscores; in Chinese, Japanese and Korean each character."""
_ASCII = re.compile(r"[a-z0-9]+")
_LATIN = re.compile(r"LATIN SMALL (?:LETTER|LIGATURE) (?:DOTLESS |OPEN )?([A-Z]{1,2})(?: WITH .+)?")
_LETTERS = {"ð": "d", "þ": "th", "ŋ": "n", "ə": "a", "ĸ": "q", "ƿ": "w", "ȝ": "z",
            "\u0671": "\u0627", "\u0649": "\u064a", "\u06cc": "\u064a", "\u06a9": "\u0643"}  # fmt: skip
"""Letters whose names do not tell; of Arabic the alef, yeh and kaf that keyboards write in two ways."""


class Bm25Config(Section):
    """What decides a BM25 score. Defaults were chosen on training splits, see docs/indexes.md."""

    language: str = Field(default="english", description="stemmer (Snowball's name), or none")
    title_weight: Positive = Field(default=4, description="how many times a title counts beside its text")
    k1: float = Field(default=1.5, ge=0, description="saturation of repeated words")
    b: float = Field(default=0.75, ge=0, le=1, description="how much long passages are discounted")


class Analyser:
    """Text to terms: folded to lower case without accents, split into words, stemmed."""

    def __init__(self, language: str, version: int = ANALYSER) -> None:
        """Raises ConfigError where there is no such stemmer. Only English has stop words."""
        import Stemmer

        known = Stemmer.algorithms()
        if language not in (*known, "none"):
            raise ConfigError(f"no stemmer for {quoted(language)}; known: {', '.join(known)}, none")
        self._stem = Stemmer.Stemmer(language).stemWords if language != "none" else list[str]
        self._stop = STOP_WORDS if language == "english" else frozenset()
        self._version = version

    def __call__(self, text: str) -> list[str]:
        """The terms of a query, without stop words unless it has no others."""
        words = list(_words(text, self._version))
        rare = [word for word in words if word not in self._stop]
        return self._stem(rare if rare or self._version < 3 else words)

    def passage(self, text: str) -> list[str]:
        """The terms of a passage: stop words too, which versions 1 and 2 left out."""
        return self(text) if self._version < 3 else self._stem(list(_words(text, self._version, singles=True)))


def _words(text: str, version: int, *, singles: bool = False) -> Iterator[str]:
    """Words in lower case; accents and vowel points are dropped where a word is read without them, and are letters
    elsewhere. Of scripts without spaces: each character of Chinese, Japanese and Korean, each pair of neighbouring
    syllables of Thai, Lao, Khmer, Burmese and their like, with `singles` each syllable too.
    """
    if text.isascii():
        yield from (_FIRST if version < 3 else _ASCII).findall(text.lower())
        return
    if version == 1:  # every script without its marks, which are vowels in many
        bare = "".join(c for c in normal_form("NFKD", text.casefold()) if not unicodedata.combining(c))
        yield from _FIRST.findall(normal_form("NFC", bare))
        return
    accents, terms = _patterns(version)
    bare = accents.sub(r"\1", normal_form("NFKD", text.casefold()))
    if version > 2:
        bare = _folded(bare)
    for found in terms.finditer(normal_form("NFC", bare)):
        syllables = found.captures("syllable")
        if len(syllables) < 2:
            yield found[0]
            continue
        yield from map("".join, pairwise(syllables))
        yield from syllables if singles else ()


@cache
def _patterns(version: int) -> tuple[Any, Any]:
    """Marks that are dropped, behind their letter; and a term, or a run of syllables."""
    import regex

    accents = regex.compile(r"([\p{Latin}\p{Greek}\p{Cyrillic}\p{Arabic}\p{Hebrew}])\p{M}+")
    wide, spaceless, line = rf"[{_WIDE}]", r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}", "_"
    if version > 2:
        wide = r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}\p{Yi}\u30fc]&&\p{L}]"
        spaceless += r"\p{Tai_Tham}\p{New_Tai_Lue}\p{Tai_Le}\p{Tai_Viet}\p{Javanese}\p{Balinese}"
        line = ""
    syllable = rf"(?P<syllable>[[{spaceless}]&&\p{{L}}]\p{{M}}*)"
    other = rf"[[{wide}{spaceless}]&&\p{{L}}]"
    word = rf"[[\p{{L}}\p{{N}}{line}]--{other}][[\p{{L}}\p{{M}}\p{{N}}{line}]--{other}]*"
    return accents, regex.compile(rf"{wide}|{syllable}+|{word}", regex.V1)


def _folded(text: str) -> str:
    """The text with letters and digits that do not decompose as their plain ones (ł l, æ ae, ٣ 3), and without what
    only joins or lengthens: soft hyphens, joiners, tatweel, ʻ; zero-width spaces where a script has no others.
    """
    import regex

    pattern = r"[[\p{Latin}--[a-z]]\p{Nd}\p{Cf}\u02b9-\u02df\u0640\u0671\u0649\u06cc\u06a9--[0-9\u200b]]"
    joined = regex.sub(r"(?<=[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])\u200b", "", text)
    return regex.sub(pattern, lambda found: _plain(found[0]), joined, flags=regex.V1)


@cache
def _plain(letter: str) -> str:
    """A letter by its name in Unicode: LATIN SMALL LETTER L WITH STROKE is l; others by ASCIIFoldingFilter's choice."""
    if letter.isdecimal():
        return str(unicodedata.decimal(letter))
    if letter in _LETTERS:
        return _LETTERS[letter]
    name = _LATIN.fullmatch(unicodedata.name(letter, ""))
    return name[1].lower() if name else "" if unicodedata.category(letter) in ("Cf", "Lm", "Sk") else letter


def has_bm25(folder: Path) -> bool:
    """Whether an index folder has BM25. Raises ConfigError where it has learned weights of earlier versions."""
    there = (folder / FOLDER).exists()
    if not there and (folder / FORMER).exists():
        raise ConfigError(f"{folder / FORMER} holds token weights of BGE-M3, which this version does not read; delete"
                          " that folder and add BM25: the command that built the index, with --hybrid")  # fmt: skip
    return there


def add_bm25(folder: Path, index: IndexManifest, config: Bm25Config) -> bool:
    """Adds BM25 to a finished index folder, as `write_add_on` says; False where it is there already."""
    settings = {**config.model_dump(), VERSION: ANALYSER}
    return write_add_on(folder, index, FOLDER, settings, partial(_write, config))


def _write(config: Bm25Config, folder: Path, store: PassageStore) -> None:
    analyse = Analyser(config.language)
    with Progress("BM25", len(store), "passages") as progress:

        def documents() -> Iterator[list[str]]:
            for row in range(len(store)):
                yield terms_of(store.read(row), analyse, config.title_weight)
                progress.advance(1)

        if not write_bm25(folder, documents(), config):
            raise ConfigError(f"{folder.parent} holds no word that BM25 could index (bm25.language {config.language})")


def write_bm25(folder: Path, documents: Iterable[Sequence[str]], config: Bm25Config) -> bool:
    """Writes the files of a `bm25s` index of documents, each given by its terms; False where none has any.

    Memory grows with the vocabulary and not with the documents.
    """
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".postings-") as scratch:
        counted = count_terms(documents, Path(scratch))
        if counted.tokens:
            _write_frame(folder, counted, config)
            write_arrays(folder, Path(scratch), counted, config.k1, config.b)
    return_freed_memory()
    return counted.tokens > 0


def _write_frame(folder: Path, counted: Counted, config: Bm25Config) -> None:
    """Vocabulary and settings by `bm25s`'s own hand; its arrays are empty, and ours take their places."""
    import bm25s

    model = bm25s.BM25(method="lucene", k1=config.k1, b=config.b, backend="numpy")
    model.vocab_dict = {**counted.vocabulary, "": len(counted.vocabulary)}  # as its own build ends it
    model.nonoccurrence_array = None
    empty = np.empty(0, dtype=np.float32)
    model.scores = {"data": empty, "indices": empty, "indptr": empty, "num_docs": counted.rows}
    model.save(folder, show_progress=False)


def _read_vocabulary(folder: Path) -> dict[str, int]:
    """The number of each term. Raises DataError."""
    file = folder / "vocab.index.json"
    try:
        vocabulary: Any = decoded(file.read_bytes())
    except NotJson as error:
        raise DataError(file, str(error), line=error.line + 1, remedy=_mend(folder)) from None
    if not isinstance(vocabulary, dict) or not set(map(type, vocabulary.values())) <= {int}:
        raise DataError(file, "is no list of terms and their numbers", remedy=_mend(folder))
    return vocabulary


def _mend(folder: Path) -> str:
    return f"delete {folder} and add it again"


def terms_of(passage: Passage, analyse: Analyser, title_weight: int) -> list[str]:
    """A passage's terms, those of the title repeated: a field weight in the manner of BM25F."""
    return analyse.passage(passage.title) * title_weight + analyse.passage(passage.text)


class Bm25Searcher:
    """Ranks by BM25. Rows that share no term with the query are not found."""

    def __init__(self, folder: Path, index: IndexManifest) -> None:
        """Maps the files after checking them. Raises ConfigError or DataError."""
        add_on = open_add_on(folder, index, FOLDER)
        settings = dict(add_on.settings)
        version = settings.pop(VERSION, 1)
        try:
            config = Bm25Config.model_validate(settings)
            if version not in range(1, ANALYSER + 1):
                raise ValueError(f"analyser {version!r:.20}")
        except ValueError:  # pydantic's ValidationError is one
            file = folder / FOLDER / "manifest.json"
            raise DataError(file, "its settings are not those of BM25 here", remedy=_mend(file.parent)) from None
        self.fingerprint = add_on.fingerprint
        self._analyse = Analyser(config.language, version)
        self._folder = folder / FOLDER
        self._vocabulary = _read_vocabulary(self._folder)
        self._shares, self._rows, self._starts = (
            mapped_list(self._folder / f"{name}.csc.index.npy", kind, _mend(self._folder))
            for name, kind in (("data", "f"), ("indices", "i"), ("indptr", "i"))
        )
        self._columns: dict[int, np.ndarray] = {}
        self._found = np.zeros(add_on.rows, dtype=np.float32)

    def load(self) -> None:
        """Nothing takes long: the scores are mapped, the vocabulary is read at opening."""

    def search(self, asked: Sequence[SearchKey]) -> list[Ranking]:
        """At most `top_k` rows a query, by BM25 score above 0; equal scores by row.

        Raises DataError where a term points beyond the arrays: to check all of them would take as long as to build.
        """
        try:
            return [self._rank(query, top_k) for query, top_k in asked]
        except (IndexError, ValueError):
            problem = "the arrays do not fit one another"
            raise DataError(self._folder, problem, remedy=_mend(self._folder)) from None

    def _rank(self, query: str, top_k: int) -> Ranking:
        terms = [self._vocabulary[term] for term in self._analyse(query) if term in self._vocabulary]
        return best_rows(self._scores(terms), top_k) if terms else []

    def _scores(self, terms: Sequence[int]) -> np.ndarray:
        """(rows,) float32, each row's sum in the order of the terms, to the bit `bm25s`'s; the next call overwrites it,
        since fresh memory costs as much as three terms. A term of many rows is kept as a whole column once it was
        asked, up to `COLUMNS` bytes of them: to add it is several times as fast then.
        """
        found, rows = self._found, len(self._found)
        found.fill(0)
        for term in terms:
            column = self._columns.get(term)
            if column is None:
                posted, shares = self._postings(term)
                if len(posted) * OFTEN < rows or 4 * rows * (len(self._columns) + 1) > COLUMNS:
                    np.add.at(found, posted, shares)
                    continue
                np.add.at(column := np.zeros(rows, dtype=np.float32), posted, shares)
                self._columns[term] = column
            found += column
        return found

    def _postings(self, term: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows that hold a term, and what it adds to the score of each."""
        span = slice(self._starts[term], self._starts[term + 1])
        return self._rows[span], self._shares[span]
