"""Plain text files: one document a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.archives import iter_files, total_size
from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.shift_jis import decode_shift_jis, is_damaged_utf8

_SUFFIXES = (".txt", ".md")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class PlainReader:
    """Reads .txt and .md files: one, or those of a folder, zip or tar. A first line "# ..." is the title."""

    path: Path
    code: str = "plain"

    def records(self) -> Iterator[Record]:
        """Streams whole files.

        Raises:
          UserError: nothing there, or a damaged archive.
        """
        return iter_files(self.path, _SUFFIXES)

    def size_bytes(self) -> int | None:
        return total_size(self.path, _SUFFIXES)

    def parse(self, record: Record) -> list[Document | Dropped]:
        try:
            text = decode(record.data)
        except UnicodeDecodeError as error:
            return [Dropped(record.origin, "not text", f"byte {error.start} is not {error.encoding}")]
        if "\0" in text:
            return [Dropped(record.origin, "not text", f"character {text.index(chr(0))} is NUL")]
        title, body = split_title(text)
        return [Document(body, record.origin, self.code, title) if body else Dropped(record.origin, "empty")]


def decode(data: bytes) -> str:
    r"""Japanese text in UTF-8, UTF-16 (with its mark), ISO-2022-JP, EUC-JP or Shift_JIS, lines ended by "\n".

    Raises:
      UnicodeDecodeError: damaged UTF-8, or none of them fits; the error is that of the encoding which came furthest.
    """
    if data.startswith(_UTF_16_MARKS):
        encodings = ["utf-16"]
    else:
        # EUC-JP before Shift_JIS: the kana of Shift_JIS are errors in EUC-JP, but not the other way round.
        encodings = ["iso2022_jp"] * (b"\x1b$" in data) + ["utf-8-sig", "euc_jp", "cp932"]
    errors = []
    for encoding in encodings:
        try:
            text = decode_shift_jis(data) if encoding == "cp932" else data.decode(encoding)
            return text.replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            if encoding == "utf-8-sig" and is_damaged_utf8(data, error.start):
                raise
            errors.append(error)
    raise max(errors, key=lambda error: error.start)


def split_title(text: str) -> tuple[str, str]:
    """Title and body of a text whose first line may be "# title"."""
    text = text.strip("\n")
    first, _, rest = text.partition("\n")
    if first.startswith("# "):
        return first.removeprefix("# ").strip(), rest.strip("\n") if rest.strip() else ""
    return "", text if text.strip() else ""
