"""The two pieces of work that `prepare text` gives to its worker processes: parsing and encoding."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hayakuchi.corpora.document import Document, Dropped, Reader, Record
from hayakuchi.data import dedup
from hayakuchi.data.shards import token_dtype
from hayakuchi.data.split import TextHash, text_hash
from hayakuchi.data.staging import Stretch
from hayakuchi.data.workers import peak_memory_bytes
from hayakuchi.errors import UserError
from hayakuchi.text.codes import check_code_name
from hayakuchi.text.normalise import DEFAULT_POLICY, POLICIES, normalise
from hayakuchi.text.tokenizer import EOS_ID, FIRST_BYTE_ID, FIRST_LEARNT_ID, Tokenizer, check_vocabulary_size

SUBCODES = {"title": "題名：", "author": "作者："}
"""What stands before title and author where they are written in front of a document, a line each."""


@dataclass(frozen=True)
class PrepareOptions:
    """How documents become a data set.

    Attributes:
      vocabulary_size: V of the tokenizer to train; None chooses by the size of the corpus.
      tokenizer: model file to use instead of training one.
      workers: processes that parse and encode; None takes as many as there are cores.
      normalisation: policy of `text.normalise`.
      deduplicate: "none", "exact" or "near".
      heldout_fraction: share of all documents that is held out, in [0, 1).
      subcodes: which of "title" and "author" are written in front of a document.
      minimum_characters: shorter documents are dropped; one without a visible character always is.
    """

    vocabulary_size: int | None = None
    tokenizer: Path | None = None
    workers: int | None = None
    normalisation: str = DEFAULT_POLICY
    deduplicate: str = "near"
    heldout_fraction: float = 0.01
    subcodes: tuple[str, ...] = ()
    minimum_characters: int = 1

    def __post_init__(self) -> None:
        if self.vocabulary_size is not None and self.tokenizer is not None:
            raise UserError(f"--vocab-size {self.vocabulary_size} and --tokenizer {self.tokenizer}: give one of them")
        check_vocabulary_size(self.vocabulary_size)
        for name, value, known in (
            ("normalisation", self.normalisation, POLICIES),
            ("deduplicate", self.deduplicate, dedup.MODES),
            *(("subcodes", subcode, tuple(SUBCODES)) for subcode in self.subcodes),
        ):
            if value not in known:
                raise UserError(f"{name}: {value!r} is not one of {', '.join(known)}")
        if not 0 <= self.heldout_fraction < 1:
            raise UserError(f"--heldout {self.heldout_fraction}: must be in [0, 1)")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers={self.workers} must be 1 or more")


class Usage(NamedTuple):
    """Memory of the process that did a task."""

    process: int
    peak_bytes: int


class ParseTask(NamedTuple):
    """Some records of the source number `source`."""

    source: int
    reader: Reader
    records: list[Record]
    options: PrepareOptions


class Parsed(NamedTuple):
    """A normalised document, sub-codes in front; hashes and signature are those of the document alone."""

    text: bytes
    characters: int
    code: str
    origin: str
    hashes: TextHash
    signature: dedup.Signature


class ParseResult(NamedTuple):
    """What came of a `ParseTask`, and how many records and bytes it had."""

    source: int
    records: int
    size: int
    documents: list[Parsed | Dropped]
    usage: Usage


class EncodeTask(NamedTuple):
    """Some staged texts, and the file and hash of the tokenizer for them."""

    stretch: Stretch
    tokenizer: Path
    sha256: str


class EncodeResult(NamedTuple):
    """Token ids of the texts of an `EncodeTask` one after another, each ended by <eos>.

    Attributes:
      ids: token ids.
      lengths: ids of each text, <eos> counted.
      size: bytes of the texts.
      byte_tokens: how many of the ids stand for a byte of a character that the vocabulary lacks.
      usage: memory.
    """

    ids: np.ndarray
    lengths: list[int]
    size: int
    byte_tokens: int
    usage: Usage


def parse(task: ParseTask) -> ParseResult:
    """Parses, normalises and hashes."""
    documents = [
        _prepare(found, task.options) if isinstance(found, Document) else found
        for record in task.records
        for found in _parse_record(task.reader, record)
    ]
    size = sum(len(record.data) for record in task.records)
    return ParseResult(task.source, len(task.records), size, documents, usage())


def encode(task: EncodeTask) -> EncodeResult:
    """Encodes staged texts."""
    tokenizer = _tokenizer(task.tokenizer, task.sha256)
    dtype = token_dtype(tokenizer.vocabulary_size)
    encoded = tokenizer.encode_batch(task.stretch.read())
    end = np.array([EOS_ID])
    ids = np.concatenate([part for text in encoded for part in (text, end)]).astype(dtype)
    byte_tokens = int(np.count_nonzero((ids >= FIRST_BYTE_ID) & (ids < FIRST_LEARNT_ID)))
    return EncodeResult(ids, [len(text) + 1 for text in encoded], sum(task.stretch.sizes), byte_tokens, usage())


def usage() -> Usage:
    return Usage(os.getpid(), peak_memory_bytes())


def _parse_record(reader: Reader, record: Record) -> list[Document | Dropped]:
    if record.damage:
        return [Dropped(record.origin, "damaged archive", record.damage)]
    try:
        return reader.parse(record)
    except UserError as error:
        # A subclass may not survive the way back to the parent process; its message does.
        raise UserError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - one odd page must not end hours of work; the report names it
        return [Dropped(record.origin, "reader failed", repr(error))]


def _prepare(document: Document, options: PrepareOptions) -> Parsed | Dropped:
    body = normalise(document.text, options.normalisation)
    if not body.strip():
        return Dropped(document.origin, "empty")
    if len(body) < options.minimum_characters:
        return Dropped(document.origin, "too short", f"{len(body)} characters")
    try:
        code = check_code_name(document.code, document.origin)
    except UserError as error:
        return Dropped(document.origin, "bad code name", str(error))
    text = _subcodes(document, options) + body
    return Parsed(
        text.encode(), len(text), code, document.origin, text_hash(body), dedup.signature(body, options.deduplicate)
    )


def _subcodes(document: Document, options: PrepareOptions) -> str:
    """The asked-for sub-codes as lines of text and an empty line; "" where the document has none of them."""
    values = {"title": document.title, "author": document.author}
    lines = [
        f"{label}{' '.join(values[name].split())}\n"
        for name, label in SUBCODES.items()
        if name in options.subcodes and values[name].strip()
    ]
    return normalise("".join([*lines, "\n"]), options.normalisation) if lines else ""


@lru_cache(maxsize=1)
def _tokenizer(path: Path, sha256: str) -> Tokenizer:
    """The tokenizer, loaded once a process; the hash tells it from one that had the same path in an earlier run."""
    tokenizer = Tokenizer.load(path)
    assert tokenizer.sha256 == sha256
    return tokenizer
