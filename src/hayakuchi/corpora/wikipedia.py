"""Wikipedia's pages-articles dumps (XML, plain or compressed), one document an article.

The XML is read by expat directly, in pieces of 256 KiB: memory stays that of one page however the dump is broken
into lines, a page's size is bounded while it is read, declarations of entities are refused, and an error has its
place. mwxml bounds and refuses neither, and is little more than half as fast.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from hayakuchi.corpora import wikitext
from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.jsonl import COMPRESSED, data_files, open_stream, whole_characters
from hayakuchi.errors import UserError

PAGE_LIMIT_BYTES = 2 << 20  # what MediaWiki itself accepts ($wgMaxArticleSize)

_FILE_NAME = re.compile(r".*\.xml(-p\d+p\d+)?" + COMPRESSED, re.IGNORECASE)
_PIECE_BYTES = 256 << 10
_REDIRECT = re.compile(r"\s*#\s*(redirect|転送|リダイレクト)\b", re.IGNORECASE)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:template:)?(?:aimai|disambig|disambiguation|dab|hndis|geodis|曖昧さ回避|\w+の曖昧さ回避)\s*[|}]"
    r"|__DISAMBIG__|__曖昧さ回避__",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WikipediaReader:
    """Reads a pages-articles dump: one file (.xml, .xml.bz2 ...), or a folder of its parts."""

    path: Path
    code: str = "wikipedia"

    def records(self) -> Iterator[Record]:
        """Streams the wikitext of the articles (namespace 0), redirects among them.

        Raises:
          UserError: not a MediaWiki dump, broken or cut-off XML (after the articles before it), or no article.
        """
        articles = 0
        files = data_files(self.path, _FILE_NAME, ".xml (also .gz .bz2 .xz .zst)")
        for path in files:
            with open_stream(path) as stream:
                pages = _Pages(path)
                while piece := stream.read(_PIECE_BYTES):
                    yield from pages.feed(piece)
                yield from pages.feed(b"", final=True)
                articles += pages.articles
        if not articles:
            raise UserError(f"{self.path}: no article in it (a <page> of namespace 0); take a pages-articles dump")

    def size_bytes(self) -> int | None:
        return None

    def parse(self, record: Record) -> list[Document | Dropped]:
        if len(record.data) > PAGE_LIMIT_BYTES:
            return [Dropped(record.origin, "page too long", f"over {PAGE_LIMIT_BYTES >> 20} MiB")]
        return [article(record.data.decode("utf-8", "replace"), record.origin, self.code, record.title)]


def article(source: str, origin: str, code: str, title: str) -> Document | Dropped:
    """The document of a page's wikitext."""
    if _REDIRECT.match(source):
        return Dropped(origin, "redirect")
    if _DISAMBIGUATION.search(source):
        return Dropped(origin, "disambiguation page")
    text = wikitext.clean(source)
    return Document(text, origin, code, title) if text else Dropped(origin, "empty")


class _Pages:
    """Picks the articles out of a dump that is fed in pieces."""

    def __init__(self, path: Path) -> None:
        self.articles = 0
        self._path = path
        self._ready: list[Record] = []
        self._depth = 0
        self._field: list[str] | None = None  # where the text of the element being read goes
        self._size = 0
        self._page: dict[str, list[str]] = {}
        # MediaWiki writes UTF-8 only; naming it keeps expat from asking Python for whatever a file claims.
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.buffer_size = 64 << 10
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def feed(self, piece: bytes, *, final: bool = False) -> Iterator[Record]:
        """The articles that end in this piece."""
        failure: UserError | None = None
        try:
            self._parser.Parse(piece, final)
        except expat.ExpatError as error:
            failure = UserError(
                f"{self._path}: broken XML at line {error.lineno}, column {error.offset} "
                f"({expat.ErrorString(error.code)}), after {self.articles} articles; is it damaged or cut off?"
            )
        ready, self._ready = self._ready, []
        yield from ready
        if failure:
            raise failure

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != "mediawiki":
            raise UserError(f"{self._path}: the outermost element is <{name}>: not a dump of MediaWiki")
        if name == "page":
            self._page = {}
        elif name in ("title", "ns", "text"):
            # Of several revisions the last one, the newest, stays.
            self._field = self._page[name] = []
            self._size = 0

    def _characters(self, text: str) -> None:
        if self._field is not None and self._size <= PAGE_LIMIT_BYTES:
            self._field.append(text)
            self._size += len(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._field = None
        if name == "page" and "".join(self._page.get("ns", ["0"])).strip() == "0":
            title = "".join(self._page.get("title", [])).strip()
            data = "".join(self._page.get("text", [])).encode()
            self._ready.append(Record(whole_characters(f"{self._path}!{title}"), data, title))
            self.articles += 1
            self._page = {}

    def _refuse_doctype(self, *_declaration: object) -> None:
        raise UserError(f"{self._path}: declares a document type, which no dump does, and which is not read")
