"""`open_retriever`: opens an index, a service or a file of tools for the other stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from indexes.addons.bm25 import Bm25Searcher, has_bm25
from indexes.addons.links import LinkedSearcher
from indexes.corpora.document_list import Originals
from indexes.encoding.again import check_known, say_unknown
from indexes.encoding.embed import Encoder
from indexes.encoding.encoders import EncoderSpec, encoder_here
from indexes.encoding.runtimes import QueryBackend, check_backend
from indexes.folder.manifest import MEND, IndexManifest, fingerprint, read_index_manifest
from indexes.interop.bge import bge_at
from indexes.ranking.cross_encoder import CrossEncoder
from indexes.ranking.rankings import ALONE, RowSearcher, TextEncoder, VectorIndex, named
from indexes.ranking.searchers import DenseSearcher, HybridSearcher, RerankedSearcher
from indexes.retrieval.elastic import SCHEMES, ElasticRetriever
from indexes.retrieval.folder_retriever import MAX_BATCH, FolderRetriever
from indexes.retrieval.milvus import PREFIXES, CollectionFacts, open_milvus
from indexes.retrieval.remote import RemoteRetriever
from indexes.rows.passage_store import PASSAGES, PassageStore
from indexes.tools.callables import FunctionRetriever
from indexes.tools.toolbox import open_toolbox
from indexes.vectors.index_types import is_exact, open_index
from indexes.vectors.recall import bound_faiss
from steprag.agent.retriever import GIVEN, Retriever
from steprag.config.sections import RetrieverConfig
from steprag.errors import ConfigError, DataError, StepragError
from steprag.records.jsonl import existing
from steprag.records.sealed import check_files
from steprag.records.yaml_files import read_yaml

SERVICES = ("http://", "https://")
FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""module:function"""


@dataclass(frozen=True)
class Machine:
    """What a retriever may use. One core by default: the others belong to the engine that serves the policy."""

    threads: int = 1
    device: str = "cpu"
    batch: int = MAX_BATCH
    backend: QueryBackend = "torch"


def open_retriever(path_or_url: str | Path, config: RetrieverConfig | None = None) -> Retriever:
    """The retriever of an index folder, of a service by its URL, of a Milvus collection (milvus://HOST:PORT/NAME), of
    an Elasticsearch index (elastic://HOST:PORT/NAME), of a Python function (module:function), or of what a YAML file
    names: tools, or the web. files:FOLDER takes files that people give one by one
    (`steprag.agent.retriever.TakesFiles`).

    Raises ConfigError or DataError where folder and manifest do not agree, where the folder lacks what the mode needs,
    or where no service answers.
    """
    config = config or RetrieverConfig()
    if str(path_or_url).startswith(SERVICES):
        if "," in str(path_or_url):
            raise ConfigError(f"{path_or_url} names several services; put them behind one URL, by a load balancer"
                              " such as nginx (docs/scaling.md)")  # fmt: skip
        return RemoteRetriever(str(path_or_url), config)
    if str(path_or_url).startswith(tuple(SCHEMES)):
        return ElasticRetriever(str(path_or_url), config)
    if str(path_or_url).startswith(PREFIXES):
        return _open_collection(str(path_or_url), config)
    if str(path_or_url).startswith(GIVEN):
        from indexes.retrieval.given_files import GivenFiles

        return GivenFiles(Path(str(path_or_url).removeprefix(GIVEN)))
    if str(path_or_url).endswith((".yaml", ".yml")):
        file, opened = existing(path_or_url, "tools or web file"), partial(open_retriever, config=config)
        if "web" not in read_yaml(file):
            return open_toolbox(file, opened)
        from indexes.web.sources import open_web

        return open_web(file, opened)
    if FUNCTION.fullmatch(str(path_or_url)) and not Path(path_or_url).exists():
        return FunctionRetriever(str(path_or_url), config)
    return open_folder(path_or_url, config)


def _open_collection(url: str, config: RetrieverConfig) -> Retriever:
    machine = Machine()

    def encoder(facts: CollectionFacts) -> Callable[[], TextEncoder]:
        if not facts.encoder.config_hash:
            say_unknown(url)
        return partial(_load_encoder, encoder_here(facts.encoder, facts.given), facts.encoder, machine)

    return open_milvus(url, config, encoder, machine.batch)


def open_folder(path: str | Path, config: RetrieverConfig, machine: Machine | None = None) -> FolderRetriever:
    """Searches in this process.

    Files are checked before it returns; the weights load meanwhile in the worker thread (a few seconds), or from the
    first search on where `preload` is off. The first search waits for them.
    """
    machine = machine or Machine()
    check_backend(machine.backend)
    folder = existing(path, "index folder")
    manifest = read_index_manifest(folder)
    check_files(folder, manifest.files, MEND)
    store = PassageStore(folder)
    place = cache(partial(encoder_here, manifest.encoder, manifest.config))
    encoder = cache(partial(_encoder_of, folder, manifest, place, machine))
    try:
        searcher = _searcher(folder, manifest, store, config, machine, place, encoder)
    except StepragError:
        store.close()
        raise
    originals = Originals(folder, manifest.corpus.path)
    return FolderRetriever(
        searcher, store, batch=machine.batch, preload=config.preload, originals=originals,
        encoder=encoder if manifest.encoder.dense else None,
    )  # fmt: skip


def _searcher(
    folder: Path, manifest: IndexManifest, store: PassageStore, config: RetrieverConfig, machine: Machine,
    place: Callable[[], Path], encoder: Callable[[], Encoder],
) -> RowSearcher:  # fmt: skip
    """What the configuration asks for: the mode's ranking, read again by a cross-encoder where one is named."""
    mode = mode_of(folder, manifest, config)
    parts: list[RowSearcher] = []
    if mode in ("dense", "hybrid"):
        made = manifest.encoder
        index = open_index(folder, manifest.index, manifest.corpus.rows, made.dimension)
        _check_agreement(folder, manifest, index, store)
        name = manifest.fingerprint if is_exact(manifest.index.type) else named(manifest.fingerprint, ALONE)
        place()  # an encoder that is not here, or another one, is told of at once
        parts.append(DenseSearcher(name, index, encoder))
    if mode in ("sparse", "hybrid"):
        has_bm25(folder)
        parts.append(Bm25Searcher(folder, manifest))
    weights = config.dense_weight, 1 - config.dense_weight
    base = parts[0] if len(parts) == 1 else HybridSearcher(parts, weights, config.fusion)
    if config.links:
        base = LinkedSearcher(base, folder, manifest, config.links)
    if config.reranker is None:
        return base
    model = bge_at(config.reranker, machine.device) or CrossEncoder(config.reranker, device=machine.device)
    return RerankedSearcher(base, store, model, config.candidates)


def mode_of(folder: Path, manifest: IndexManifest, config: RetrieverConfig) -> str:
    """The mode in words: auto is sparse where there are no vectors, hybrid where there is BM25 too, else dense.

    Raises ConfigError where the mode wants vectors that are not there, or the folder ranks by what is no longer read.
    """
    if not manifest.encoder.dense:
        if config.mode not in ("auto", "sparse"):
            raise ConfigError(f"{folder} has no vectors (--encoder none) for retriever.mode {config.mode};"
                              " leave the mode at auto, or build an index with an encoder")  # fmt: skip
        return "sparse"
    if config.mode != "auto":
        return config.mode
    return "hybrid" if has_bm25(folder) else "dense"


def _load_encoder(folder: Path, spec: EncoderSpec, machine: Machine) -> Encoder:
    """Called in the thread that searches, whose FAISS threads are bounded too."""
    bound_faiss(machine.threads)
    return Encoder(folder, spec, device=machine.device, threads=machine.threads, backend=machine.backend)


def _encoder_of(folder: Path, manifest: IndexManifest, at: Callable[[], Path], machine: Machine) -> Encoder:
    encoder = _load_encoder(at(), manifest.encoder, machine)
    check_known(folder, manifest, encoder)
    return encoder


def _check_agreement(folder: Path, manifest: IndexManifest, index: VectorIndex, store: PassageStore) -> None:
    rows, remedy = manifest.corpus.rows, "build the index again"
    if not index.ntotal == len(store) == rows:
        problem = f"{index.ntotal} vectors, {len(store)} passages, and the manifest says {rows}"
        raise DataError(folder, problem, remedy=remedy)
    if fingerprint(manifest.encoder, manifest.index, manifest.files[PASSAGES].sha256) != manifest.fingerprint:
        raise DataError(folder / "manifest.json", "was changed: its fingerprint does not fit", remedy=remedy)
