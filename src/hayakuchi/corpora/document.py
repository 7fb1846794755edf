"""What every reader gives: documents, or the reason why there is none.

A reader works in two halves so that the slow half can run in worker processes: `records` streams raw pieces
(bytes of one file, one XML page, one JSON line) in bounded memory from the parent process, and `parse` turns one
piece into documents. `parse` is pure, and the reader itself can be pickled by `multiprocessing`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus.

    Attributes:
      text: the body, lines ended by line feeds; not yet normalised.
      origin: where it stands, for reports: "PATH", "PATH:LINE" or "ARCHIVE!MEMBER".
      code: name of its control code.
      title: title, or "" where the source has none.
      author: author, or "".
    """

    text: str
    origin: str
    code: str
    title: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A piece that gave no document.

    Attributes:
      origin: where it stands (see `Document.origin`).
      reason: a short fixed phrase that reports count by ("empty", "in copyright", "redirect", "not text" ...).
      detail: what exactly was wrong with this one; may be "".
    """

    origin: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A raw piece of a source: the unit of work of one `Reader.parse` call.

    Attributes:
      origin: where it stands (see `Document.origin`).
      data: its content.
      title: title, or "".
      damage: why an archive among others has no (more) content; such a record is reported and not parsed. Else "".
    """

    origin: str
    data: bytes
    title: str = ""
    damage: str = ""


class Reader(Protocol):
    """One source of documents (see the module's docstring)."""

    @property
    def code(self) -> str:
        """Control code of the documents that have none of their own."""
        ...

    def records(self) -> Iterator[Record]:
        """Streams the raw pieces.

        Raises:
          UserError: the source is missing, unreadable or empty.
        """
        ...

    def size_bytes(self) -> int | None:
        """Sum of `len(record.data)` over `records`, where it is cheap to know; for the progress bar."""
        ...

    def parse(self, record: Record) -> list[Document | Dropped]:
        """Turns one piece into documents. Pure: no input or output, no state."""
        ...
