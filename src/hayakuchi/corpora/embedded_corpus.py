"""The corpus inside the package: prose written for this project, under CC0 (see `embedded/LICENSE`)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.plain import split_title


@dataclass(frozen=True)
class EmbeddedReader:
    """Reads `embedded/CODE.txt`: documents parted by a blank line, each begun by "# title".

    Attributes:
      code: control code of all documents; "" gives each the code its file is named after.
    """

    code: str = ""

    def records(self) -> Iterator[Record]:
        """Streams the files, one a code."""
        for name, data in _files():
            yield Record(f"embedded/{name}.txt:1", data)

    def size_bytes(self) -> int | None:
        return sum(len(data) for _, data in _files())

    def parse(self, record: Record) -> list[Document | Dropped]:
        path, _, line = record.origin.rpartition(":")
        code = self.code or path.rpartition("/")[2].removesuffix(".txt")
        number = int(line)
        documents: list[Document | Dropped] = []
        for part in re.split(r"(\n{2,})", record.data.decode("utf-8")):
            if part.strip():
                title, body = split_title(part)
                documents.append(Document(body, f"{path}:{number}", code, title))
            number += part.count("\n")
        return documents


def _files() -> list[tuple[str, bytes]]:
    """(code, content) of every file, in the order of the codes."""
    folder = resources.files("hayakuchi.corpora") / "embedded"
    texts = [file for file in folder.iterdir() if file.name.endswith(".txt")]
    return sorted((file.name.removesuffix(".txt"), file.read_bytes()) for file in texts)
