"""Wikipedia's CirrusSearch dumps: a line for the index, a line for the page, and so on, as JSON."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.jsonl import (
    COMPRESSED,
    data_files,
    numbered_lines,
    parse_line,
    plain_size,
    read_lines,
    whole_characters,
)
from hayakuchi.corpora.wikipedia import PAGE_LIMIT_BYTES, article
from hayakuchi.corpora.wikitext import is_dropped_section

_FILE_NAME = re.compile(r".*\.json" + COMPRESSED, re.IGNORECASE)
_INDEX_LINE = b'{"index":'
# [1], [注 2], [注釈 3], [a 4], [要出典], [いつ?] ...
_MARK = re.compile(
    r"[\[［]\s*+(?:(?:注|注釈|註|註釈|脚注|出典|資料|[a-zA-Z]\s)?\s*+[0-9０-９]{1,3}|[a-z]"
    r"|要出典|要検証|要説明|要ページ番号|要文献特定詳細情報|独自研究\?|疑問点|信頼性要検証|いつ\?|誰\?|誰によって\?|どこ\?|編集)"
    r"(?:\s*[–-]\s*ノート)?\s*[\]］]"
)
# "^ 著者『書名』": the little arrow before each note leads back to where it is cited.
_NOTE = re.compile(r"(?:^|(?<=[\s。」』）)]))[\^↑](?=\s|[a-z]\s|[“「『])")
_POWER_BASE = re.compile(r"[A-Za-zＡ-Ｚａ-ｚΑ-Ωα-ω0-9０-９)）]\Z")  # x ^ 2
_LOOK_BACK_CHARS = 40  # longer than the heading of a section of notes


@dataclass(frozen=True)
class CirrusReader:
    """Reads a CirrusSearch dump (`...-cirrussearch-content.json.gz`), or a folder of its parts."""

    path: Path
    code: str = "wikipedia"

    def records(self) -> Iterator[Record]:
        """Streams groups of whole lines.

        Raises:
          UserError: nothing there, or damaged compression.
        """
        return read_lines(data_files(self.path, _FILE_NAME, ".json (also .gz .bz2 .xz .zst)"))

    def size_bytes(self) -> int | None:
        return plain_size(data_files(self.path, _FILE_NAME, ".json"))

    def parse(self, record: Record) -> list[Document | Dropped]:
        return [
            self._document(origin, parse_line(line))
            for origin, line in numbered_lines(record)
            if not line.startswith(_INDEX_LINE)
        ]

    def _document(self, origin: str, values: dict[str, Any] | str) -> Document | Dropped:
        if isinstance(values, str):
            return Dropped(origin, "not JSON", values)
        if values.get("namespace", 0) != 0:
            return Dropped(origin, "not an article")
        title = values.get("title")
        title = whole_characters(title).strip() if isinstance(title, str) else ""
        source, text = values.get("source_text"), values.get("text")
        if isinstance(source, str) and source.strip():
            if len(source.encode("utf-8", "replace")) > PAGE_LIMIT_BYTES:
                return Dropped(origin, "page too long", f"over {PAGE_LIMIT_BYTES >> 20} MiB")
            return article(whole_characters(source), origin, self.code, title)
        if not isinstance(text, str):
            return Dropped(origin, "no text", "neither source_text nor text is a string")
        text = drop_references(whole_characters(text))
        return Document(text, origin, self.code, title) if text else Dropped(origin, "empty")


def drop_references(text: str) -> str:
    """Rendered text without the marks of notes, the notes, and the sections that hold them.

    Such text mostly stands on one line without headings, so where notes begin, the rest is taken for notes.
    """
    kept: list[str] = []
    for line in text.split("\n"):
        if is_dropped_section(line.strip(" =\t　")):
            break
        notes = _notes_begin(line)
        prose = _MARK.sub("", line[:notes]).strip()
        if notes is not None:  # "... 脚注 ^ 著者": the heading before the first note
            sentence, _, last = prose.rpartition(" ")
            prose = sentence.strip() if is_dropped_section(last) else prose
        if prose or notes is None:
            kept.append(prose)
    return "\n".join(kept).strip()


def _notes_begin(line: str) -> int | None:
    """Where the notes of a line begin; None if it has none, but a formula perhaps."""
    marks = [mark.start() for mark in _NOTE.finditer(line)]
    for at in marks:
        before = _MARK.sub("", line[max(at - _LOOK_BACK_CHARS, 0) : at]).rstrip()
        after_heading = not before or before.endswith("。") or is_dropped_section(before.split()[-1])
        if after_heading or (len(marks) > 1 and not _POWER_BASE.search(before)):
            return at
    return None
