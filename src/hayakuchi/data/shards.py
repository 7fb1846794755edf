"""The files of a prepared text data set (ARCHITECTURE.md, "A data set directory").

Shards are plain `.npy` files: token ids one document after another, and one record a document. They are written as a
stream under a temporary name and renamed when whole; they are read through a memory map.
"""

import bisect
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

import numpy as np
from numpy.lib import format as npy_format

from hayakuchi import config, strict_json
from hayakuchi.data.verification import check_sha256, file_sha256, short, verify_once
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS, CodeBook

FORMAT_VERSION = 1
SHARD_TOKENS = 1 << 28
"""A shard that holds this many tokens is closed: 512 MiB of uint16."""

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
INFO_FILE, TOKENIZER_FILE = "dataset.json", "tokenizer.model"
_AGAIN = "prepare the data set again"

DOCUMENT_DTYPE = np.dtype(
    [("offset", "<u8"), ("tokens", "<u4"), ("characters", "<u4"), ("bytes", "<u4"), ("code", "<u2")]
)
"""One document: where its ids start in the shard, how many they are with <eos>, size of its text, slot of its code."""


_TOKEN_DTYPES = (np.dtype("<u2"), np.dtype("<u4"))


def token_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest of uint16 and uint32 that holds every id."""
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")


@dataclass
class Counts:
    """Size of the documents of one code in one split; tokens count <eos>, bytes are UTF-8."""

    documents: int = 0
    tokens: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, tokens: int, characters: int, size: int) -> None:
        self.documents += 1
        self.tokens += tokens
        self.characters += characters
        self.bytes += size


@dataclass(frozen=True)
class DatasetInfo:
    """What `dataset.json` says of a data set.

    Attributes:
      codes: names and slots of the control codes.
      tokenizer_sha256: hash of the tokenizer the ids belong to.
      vocabulary_size: V.
      normalisation: name of the policy all text went through; prompts must too.
      subcodes: which of "title" and "author" stand as text before a document.
      counts: size of each split by name of code.
      checksums: SHA-256 of each shard file by its path in the data set; empty in those of earlier versions.
    """

    codes: CodeBook
    tokenizer_sha256: str
    vocabulary_size: int
    normalisation: str
    subcodes: tuple[str, ...]
    counts: dict[Split, dict[str, Counts]]
    checksums: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        values = {"format_version": FORMAT_VERSION, **asdict(self), "codes": self.codes.to_dict()}
        path.write_text(strict_json.dumps(values) + "\n", encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> "DatasetInfo":
        """Reads `dataset.json` of a data set or a run, and checks that its ids belong to the tokenizer beside it.

        Raises:
          UserError: as of `load`; `tokenizer.model` cannot be read or is another one.
        """
        info = cls.load(folder / INFO_FILE)
        model = folder / TOKENIZER_FILE
        try:
            found = file_sha256(model)
        except OSError as error:
            raise UserError(f"{model}: cannot read it ({error.strerror}); {_AGAIN}") from error
        if found != info.tokenizer_sha256:
            raise UserError(
                f"{model}: not the tokenizer of {folder / INFO_FILE}: its SHA-256 is {short(found)}, the ids belong to "
                f"{short(info.tokenizer_sha256)}; copy the right file there, or {_AGAIN}"
            )
        return info

    @classmethod
    def load(cls, path: Path) -> "DatasetInfo":
        """Reads `dataset.json`.

        Raises:
          UserError: missing, not JSON, of another format version, or not what `save` wrote.
        """
        if not path.is_file():
            raise UserError(f"{path.parent}: not a data set directory; make one with `hayakuchi prepare text`")
        values = config.load_json(path)
        if not isinstance(values, dict) or "format_version" not in values:
            raise UserError(f"{path}: not the dataset.json of a text data set; make one with `hayakuchi prepare text`")
        if values.get("kind") == "speech":
            raise UserError(f"{path.parent}: a speech data set; a language model needs one of `hayakuchi prepare text`")
        if values["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"{path}: format version {values['format_version']!r}, this program reads {FORMAT_VERSION}: {_AGAIN}"
            )
        try:
            return cls(
                codes=CodeBook.from_dict(values["codes"], f"{path}: codes"),
                tokenizer_sha256=str(values["tokenizer_sha256"]),
                vocabulary_size=int(values["vocabulary_size"]),
                normalisation=str(values["normalisation"]),
                subcodes=tuple(map(str, values["subcodes"])),
                counts={
                    split: {
                        name: config.from_dict(Counts, counts, f"{path}: counts of {name}")
                        for name, counts in values["counts"][split].items()
                    }
                    for split in SPLITS
                },
                checksums={str(name): str(sha256) for name, sha256 in values.get("checksums", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: missing or malformed entry ({error!r}); {_AGAIN}") from error


class _NpyStream:
    """Writes a one-dimensional `.npy` whose length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._dtype = dtype
        self.length = 0
        self._file: BinaryIO = self._partial.open("wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def finish(self) -> None:
        """Writes the final length and gives the file its name."""
        # NumPy pads the header so that the first axis can grow in place.
        self._file.seek(0)
        self._write_header()
        self._file.close()
        self._partial.replace(self._path)

    def abandon(self) -> None:
        # Closing flushes, which fails again on a full disk.
        with suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def _write_header(self) -> None:
        description = npy_format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (self.length,)}
        npy_format.write_array_header_1_0(self._file, header)


class ShardWriter:
    """Writes the documents of one split; a context manager that leaves only whole shards behind.

    Even a split without documents has one (empty) shard, so that a missing file is told from a missing split.

    Args:
      folder: made if missing.
      vocabulary_size: V, decides between uint16 and uint32.
      shard_tokens: a shard is closed after the document that reaches this many tokens.
    """

    def __init__(self, folder: Path, vocabulary_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._dtype = token_dtype(vocabulary_size)
        self._shard_tokens = shard_tokens
        self._shards = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._open()

    def add(self, ids: np.ndarray, *, characters: int, size: int, code: int) -> None:
        """Appends a document.

        Args:
          ids: [n] token ids, the last one <eos>.
          characters: length of its text in code points.
          size: length of its text in bytes of UTF-8.
          code: slot of its control code.
        """
        if self._tokens.length >= self._shard_tokens:
            self._finish()
            self._open()
        record = np.array([(self._tokens.length, len(ids), characters, size, code)], DOCUMENT_DTYPE)
        self._tokens.append(ids)
        self._documents.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        else:
            self._tokens.abandon()
            self._documents.abandon()

    def _open(self) -> None:
        self._tokens = _NpyStream(self._folder / f"tokens-{self._shards:05}.npy", self._dtype)
        self._documents = _NpyStream(self._folder / f"documents-{self._shards:05}.npy", DOCUMENT_DTYPE)
        self._shards += 1

    def _finish(self) -> None:
        self._tokens.finish()
        self._documents.finish()


class TokenShards:
    """The documents of one split, read through a memory map.

    Attributes:
      documents: [N] records of `DOCUMENT_DTYPE` of all shards; `offset` is within a document's own shard.
    """

    def __init__(self, documents: list[np.ndarray], tokens: list[np.ndarray]) -> None:
        self.documents: np.ndarray = np.concatenate(documents)
        self._tokens = tokens
        self._ends = np.cumsum([len(part) for part in documents]).tolist()

    @classmethod
    def open(cls, folder: Path) -> "TokenShards":
        """Opens all shards of a folder.

        Raises:
          UserError: a shard is missing, truncated or not a shard.
        """
        count = len(list(folder.glob("tokens-*.npy")))
        documents, tokens = [], []
        for shard in range(max(count, 1)):
            documents_path = folder / f"documents-{shard:05}.npy"
            tokens_path = folder / f"tokens-{shard:05}.npy"
            part = np.array(_map(documents_path, (DOCUMENT_DTYPE,)))
            ids = _map(tokens_path, _TOKEN_DTYPES)
            ends = part["offset"] + part["tokens"]
            # Documents lie one after another, so each end is the next offset: anything else is damage.
            contiguous = np.array_equal(part["offset"][1:], ends[:-1]) and not part["offset"][:1].any()
            if not contiguous or (part["code"] >= CODE_SLOTS).any():
                raise UserError(f"{documents_path}: damaged document records; {_AGAIN}")
            if (ends[-1] if len(part) else 0) != len(ids):
                raise UserError(f"{tokens_path}: does not fit {documents_path.name}; {_AGAIN}")
            documents.append(part)
            tokens.append(ids)
        return cls(documents, tokens)

    def __len__(self) -> int:
        return len(self.documents)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token ids [stop - start] of a document, from its own `start` to before `stop`; a view of the file."""
        record = self.documents[document]
        offset, length = int(record["offset"]), int(record["tokens"])
        shard = bisect.bisect_right(self._ends, document)
        return self._tokens[shard][offset + start : offset + (length if stop is None else min(stop, length))]


def checksums(dataset: Path) -> dict[str, str]:
    """The checksums of all shard files of a data set directory, for `DatasetInfo.checksums`."""
    files = sorted(file for split in SPLITS for file in (dataset / split).glob("*.npy"))
    return {file.relative_to(dataset).as_posix(): file_sha256(file) for file in files}


def open_split(dataset: Path, split: Split, *, verify: bool = False) -> TokenShards:
    """Opens one split of a data set directory and checks it against `dataset.json`.

    The checksums and the range of the ids are checked once per data set and machine (`verification`).

    Args:
      dataset: the directory.
      split: which one.
      verify: check those in any case.

    Raises:
      UserError: not a data set directory, its tokenizer is another one, or a file of it is missing or damaged.
    """
    info = DatasetInfo.open(dataset)
    counts = info.counts[split].values()
    shards = TokenShards.open(dataset / split)
    expected = sum(count.documents for count in counts), sum(count.tokens for count in counts)
    found = len(shards), int(shards.documents["tokens"].sum(dtype=np.int64))
    if found != expected:
        raise UserError(
            f"{dataset / split}: holds {found[0]} documents of {found[1]} tokens, dataset.json says {expected[0]} of "
            f"{expected[1]}: a shard is missing; copy the data set again or {_AGAIN}"
        )
    slots = np.unique(shards.documents["code"])
    if strange := np.setdiff1d(slots, [0, *info.codes.slots.values()]).tolist():
        raise UserError(
            f"{dataset / split}: documents with code slot {strange[0]}, which no code in {dataset / INFO_FILE} has; "
            f"{_AGAIN}"
        )
    _verify(dataset, split, info, always=verify)
    return shards


def _verify(dataset: Path, split: Split, info: DatasetInfo, *, always: bool) -> None:
    listed = {dataset / name: sha256 for name, sha256 in info.checksums.items()}
    files = sorted((dataset / split).glob("*-[0-9]*.npy"))

    def check(file: Path) -> None:
        if listed:
            if file not in listed:
                raise UserError(f"{file}: not listed in {dataset / INFO_FILE}; delete it, or {_AGAIN}")
            check_sha256(file, listed[file], _AGAIN)
        if file.name.startswith("tokens-"):
            largest = int(_map(file, _TOKEN_DTYPES).max(initial=0))
            if largest >= info.vocabulary_size:
                raise UserError(
                    f"{file}: token id {largest}, but the vocabulary of {dataset / INFO_FILE} has "
                    f"{info.vocabulary_size} ids; {_AGAIN}"
                )

    verify_once({file: [listed.get(file), info.vocabulary_size] for file in files}, check, always=always)


def _map(path: Path, dtypes: tuple[np.dtype, ...]) -> np.ndarray:
    """Memory-maps a one-dimensional `.npy` of one of `dtypes`."""
    try:
        # Unlike np.load it knows no other format: nothing is ever unpickled or unzipped.
        array = npy_format.open_memmap(path, mode="r")
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error}); {_AGAIN}") from error
    except ValueError as error:
        raise UserError(f"{path}: damaged or cut short ({error}); {_AGAIN}") from error
    if array.ndim != 1 or array.dtype not in dtypes:
        raise UserError(f"{path}: not a shard of a text data set; {_AGAIN}")
    return array
