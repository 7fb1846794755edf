"""JSON lines: one object a line with `text` and, if wanted, `code`, `title` and `author`.

Its streams and lines (compressed or not, of any length, in bounded memory) serve the dump readers too.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.text.codes import check_code_name

LINE_LIMIT_BYTES = 64 << 20
GROUP_BYTES = 256 << 10  # small lines travel to the worker processes together
COMPRESSED = r"(\.(gz|bz2|xz|zst))?"  # end of a pattern for `data_files`

_FILE_NAME = re.compile(r".*\.(jsonl|ndjson|json)" + COMPRESSED, re.IGNORECASE)
# 1 KiB of zstd is at most 32 MiB of data, so that not even a crafted file fills the memory.
_ZSTD_STEP_BYTES = 1 << 10


@dataclass(frozen=True)
class JsonlReader:
    """Reads a file of JSON lines, plain or compressed, or all such files of a folder."""

    path: Path
    code: str = "jsonl"

    def records(self) -> Iterator[Record]:
        """Streams groups of whole lines.

        Raises:
          UserError: nothing there, damaged compression, or one JSON array instead of lines.
        """
        return read_lines(data_files(self.path, _FILE_NAME, ".jsonl, .ndjson or .json (also .gz .bz2 .xz .zst)"))

    def size_bytes(self) -> int | None:
        return plain_size(data_files(self.path, _FILE_NAME, ".jsonl"))

    def parse(self, record: Record) -> list[Document | Dropped]:
        return [self._document(origin, parse_line(line)) for origin, line in numbered_lines(record)]

    def _document(self, origin: str, values: dict[str, Any] | str) -> Document | Dropped:
        if isinstance(values, str):
            return Dropped(origin, "not JSON", values)
        # `null` says the same as a missing key.
        given = {key: value for key in ("text", "code", "title", "author") if (value := values.get(key)) is not None}
        if "text" not in given:
            keys = whole_characters(", ".join(list(values)[:10]))
            return Dropped(origin, "no text", f"its keys are {keys[:200]}")
        for key, value in given.items():
            if not isinstance(value, str):
                return Dropped(origin, "not a string", f"{key} is of type {type(value).__name__}")
        text = whole_characters(given["text"])
        if not text.strip():
            return Dropped(origin, "empty")
        try:
            code = check_code_name(given["code"], origin) if "code" in given else self.code
        except UserError as error:
            return Dropped(origin, "bad code name", str(error))
        title, author = (whole_characters(given.get(key, "")).strip() for key in ("title", "author"))
        return Document(text, origin, code, title, author)


def data_files(path: Path, pattern: re.Pattern[str], expected: str) -> list[Path]:
    """The file itself, or the files of a folder and its folders whose whole name fits, in the order of their names.

    Raises:
      UserError: no such file or folder, a folder that cannot be read, or one without a fitting file.
    """
    if path.is_dir():
        fitting = (file for file in files_below(path) if pattern.fullmatch(file.name) and not file.name.startswith("."))
        files = sorted(file for file in fitting if file.is_file())
        if not files:
            raise UserError(f"{path}: the folder has no file ending in {expected}")
        return files
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    return [path]


def files_below(folder: Path) -> Iterator[Path]:
    """All files of a folder and its folders; links to folders are not followed.

    Raises:
      UserError: one of the folders cannot be read (`Path.rglob` would pass over it without a word).
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot read the folder ({error.strerror})") from error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent, name) for name in names)


def plain_size(files: list[Path]) -> int | None:
    """Bytes in all, or None where a file is compressed."""
    if any(re.search(r"\.(gz|bz2|xz|zst)$", file.name, re.IGNORECASE) for file in files):
        return None
    return sum(file.stat().st_size for file in files)


@contextmanager
def open_stream(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file for reading; gzip, bzip2, xz and zstd are known by their first bytes and decompressed.

    Raises:
      UserError: on opening or inside the `with`: unreadable, damaged or cut off.
    """
    try:
        with path.open("rb") as file:
            magic = file.peek(6)[:6]
            for beginning, opener in _OPENERS.items():
                if magic.startswith(beginning):
                    with cast("io.BufferedReader", opener(file)) as stream:
                        yield stream
                    return
            yield file
    # None of these is raised by what callers do with the bytes, so every one of them is about the file.
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path}: cannot read on ({cause}); is it damaged or cut off?") from error


def _open_zstd(file: io.BufferedReader) -> io.BufferedReader:
    return io.BufferedReader(_ZstdStream(file), 1 << 20)


class _ZstdStream(io.RawIOBase):
    """Decompresses zstd frames; unlike `zstandard.stream_reader` it notices a file that ends inside a frame."""

    def __init__(self, file: io.BufferedReader) -> None:
        try:
            import zstandard  # of the extra `corpora`
        except ImportError as error:
            raise MissingExtraError("zstandard", "corpora", f"reading {file.name}") from error
        self._error: type[Exception] = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._file = file
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            ended = self._frame is None or self._frame.eof
            given = (self._frame.unused_data if self._frame and ended else b"") or self._file.read(_ZSTD_STEP_BYTES)
            if not given:
                if not ended:
                    raise EOFError("it ends inside a zstd frame")
                return 0
            if ended:
                self._frame = self._new_frame()
            try:
                self._ready = memoryview(self._frame.decompress(given))
            except self._error as error:
                raise OSError(str(error)) from error
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


_OPENERS: dict[bytes, Callable[[io.BufferedReader], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def read_lines(files: list[Path]) -> Iterator[Record]:
    """Streams groups of whole lines; `Record.origin` is "PATH:LINE" of the first.

    A line over `LINE_LIMIT_BYTES` is cut off one byte beyond, by which `parse_line` knows it.

    Raises:
      UserError: every file is empty, one is damaged, or one begins as a JSON array.
    """
    empty = True
    for path in files:
        name = whole_characters(str(path))
        with open_stream(path) as stream:
            first, number, size = 1, 0, 0
            group: list[bytes] = []
            while line := stream.readline(LINE_LIMIT_BYTES + 1):
                number += 1
                if number == 1 and line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                    raise UserError(f"{path}: a JSON array; write one object a line instead (`jq -c '.[]'`)")
                group.append(line)
                size += len(line)
                while len(line) > LINE_LIMIT_BYTES and not line.endswith(b"\n"):
                    line = stream.readline(LINE_LIMIT_BYTES + 1)
                if size >= GROUP_BYTES:
                    yield Record(f"{name}:{first}", b"".join(group))
                    first, size, group = number + 1, 0, []
            if group:
                yield Record(f"{name}:{first}", b"".join(group))
            empty = empty and not number
    if empty:
        raise UserError(f"{files[0]}: empty")


def numbered_lines(record: Record) -> Iterator[tuple[str, bytes]]:
    """("PATH:LINE", line) of every line of a record of `read_lines` that is not blank."""
    path, _, first = record.origin.rpartition(":")
    for number, line in enumerate(record.data.split(b"\n"), start=int(first)):
        if line.strip():
            yield f"{path}:{number}", line


def parse_line(line: bytes) -> dict[str, Any] | str:
    """The object on a line, or what is wrong with the line."""
    if len(line) > LINE_LIMIT_BYTES:
        return f"the line is longer than {LINE_LIMIT_BYTES >> 20} MiB"
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        return f"{error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        return str(error)
    return values if isinstance(values, dict) else f"a {type(values).__name__}, not an object"


def whole_characters(text: str) -> str:
    r"""`text` with U+FFFD for lone surrogates, which JSON ("\ud800") and file names can hold, and UTF-8 cannot."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
