"""Reader of Aozora Bunko files: Shift_JIS or UTF-8 text in the notation of `aozora_notation`.

A file is a header (title, subtitle, author, translators), an optional legend between dashed lines, the body, and a
footer that begins with 底本： and says what the text was made from and who made it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.aozora_notation import Ruby, plain_text, require_library
from hayakuchi.corpora.archives import iter_files, total_size
from hayakuchi.corpora.document import Document, Dropped, Record
from hayakuchi.corpora.shift_jis import decode_shift_jis, is_damaged_utf8

_SUFFIXES = (".txt", ".zip")

# The longest header of 1,010 works has six lines; a longer first block is the text itself.
_HEADER = re.compile(r"\A\n*((?:[^　\n][^\n]{0,119}\n){1,8}+)\n")
_LEGEND = re.compile(r"\A((?:[^\n]*\n){1,12}?)-{10,}+[ 　]*+\n((?:[^\n]*\n){0,80}?)-{10,}+[ 　]*+\n")
_CONTRIBUTOR = re.compile(r"(?:訳|譯|訳註|訳注|編|選|校訂|校註|校注|監修|画|絵)$")

_FOOTER = re.compile(r"\n底本(?:・初出)?[：:]")
# Early files name the work's source in free words.
_EARLY_FOOTER = re.compile(r"\n(?:入力者注|(?:テキスト)?入力者?[：:])")
_FOOTER_CHARS = 3_000
# One of these stands in every longer footer, and hardly in a text that has a line 底本： of its own.
_CREDITS = re.compile(r"\n(?:入力|校正)[：:]|青空文庫")
_BODY_END = "［＃本文終わり］"

_IN_COPYRIGHT = re.compile(
    r"クリエイティブ[・･]?\s*コモンズ|creative\s*commons|ライセンスされています|利用許諾条項|著作権[^。\n]{0,12}存続"
    r"|自由に複製・再配布",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class AozoraReader:
    """Works of Aozora Bunko as distributed: a .txt, one .zip a work, a folder of them, or a tar.

    Attributes:
      path: file, folder, zip or tar.
      code: name of the control code of its documents.
      ruby: readings 《》: "drop" them, "keep" them with their bases marked, or "inline" them as 朝（あさ）.
      in_copyright: also take works whose footer names a Creative Commons licence or an existing copyright.
    """

    path: Path
    code: str = "aozora"
    ruby: Ruby = "drop"
    in_copyright: bool = False

    def records(self) -> Iterator[Record]:
        """Streams one record a file.

        Raises:
          UserError: the path holds no .txt, is itself a damaged archive, or something in it is too large.
          MissingExtraError: the `aozora` library is not installed.
        """
        require_library()
        yield from iter_files(self.path, _SUFFIXES)

    def size_bytes(self) -> int | None:
        """Bytes of all files; None for tars and nested zips."""
        return total_size(self.path, _SUFFIXES)

    def parse(self, record: Record) -> list[Document | Dropped]:
        """One work, or why it is left out: "undecodable", "in copyright" or "empty"."""
        try:
            text = decode(record.data)
        except UnicodeError as error:
            return [Dropped(record.origin, "undecodable", str(error))]
        header, body, footer = split_work(text)
        notice = _IN_COPYRIGHT.search(footer or body[-_FOOTER_CHARS:]) or _IN_COPYRIGHT.search(header)
        if notice and not self.in_copyright:
            return [Dropped(record.origin, "in copyright", f"it says {notice[0]!r}")]
        body = plain_text(body, self.ruby).strip("\n")
        if not body.strip():
            return [Dropped(record.origin, "empty", "no text between header and footer")]
        title, author = _title_and_author(plain_text(header))
        return [Document(body, record.origin, self.code, title, author)]


def decode(data: bytes) -> str:
    """Text of a file in UTF-8 or Shift_JIS, its lines ended by LF.

    Raises:
      UnicodeError: it is neither; the message names the byte.
    """
    if (nul := data.find(b"\0")) >= 0:
        raise UnicodeError(f"byte {nul} (0x00) does not occur in text")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if is_damaged_utf8(data, error.start):
            raise UnicodeError(f"byte {error.start} (0x{data[error.start]:02x}) breaks the UTF-8") from error
        try:
            text = decode_shift_jis(data)
        except UnicodeDecodeError as sjis_error:
            at = sjis_error.start
            raise UnicodeError(f"byte {at} (0x{data[at]:02x}) is neither UTF-8 nor Shift_JIS") from sjis_error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split_work(text: str) -> tuple[str, str, str]:
    """Header (without legend), body and footer of a work, any of which may be empty.

    A text with neither legend nor footer has no header: its first lines may be those of a poem.
    """
    header, start = "", 0
    if (legend := _LEGEND.match(text)) and "について" in legend[2]:
        header, start = legend[1], legend.end() - 1
    end = _body_end(text, start)
    if not start and end < len(text) and (block := _HEADER.match(text, 0, end + 1)):
        header, start = block[1], block.end() - 1
    return header, text[start:end], text[end:]


def _body_end(text: str, start: int) -> int:
    """Where the footer begins in a text whose body begins at `start`; the length of the text if there is none."""
    footers = [match.start() for match in _FOOTER.finditer(text, start)]
    if footers and (len(text) - footers[-1] <= _FOOTER_CHARS or _CREDITS.search(text, footers[-1])):
        end = footers[-1]
    else:
        early = _EARLY_FOOTER.search(text, max(start, len(text) - _FOOTER_CHARS))
        end = early.start() if early else len(text)
    body_end = text.find(_BODY_END, start, end)
    return body_end if body_end >= 0 else end


def _title_and_author(header: str) -> tuple[str, str]:
    """Title with its subtitles, and the last name that is no translator's or editor's."""
    title, *names = [line.strip() for line in header.split("\n") if line.strip()] or [""]
    if not names:
        return title, ""
    authors = [index for index, name in enumerate(names) if not _CONTRIBUTOR.search(name)]
    author = authors[-1] if authors else len(names) - 1
    return "　".join([title, *names[:author]]), names[author]
