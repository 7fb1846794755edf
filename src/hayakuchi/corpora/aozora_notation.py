"""Plain text from the notation of Aozora Bunko (https://www.aozora.gr.jp/annotation/).

The bulk is removed by regular expressions whose time is linear in the text. The `aozora` library sees only the short
pieces that need its tables, because on hostile whole texts it overflows the stack (nested ruby) or does not return
(nested gaiji notes), and because its HTML breaks paragraphs where a note changes the size of the letters.
"""

import re
from functools import lru_cache
from typing import Any, Literal

from hayakuchi.errors import MissingExtraError

Ruby = Literal["drop", "keep", "inline"]

GETA = "〓"
"""Stands for a gaiji that has no Unicode character we can find: what a printer sets for a missing type."""

# Characters of the text that must not be read as notation wait as noncharacters, which no text file holds.
_QUOTED = "《》｜［］〔〕※／＼"
_SHIELD = str.maketrans({char: chr(0xFDD0 + index) for index, char in enumerate(_QUOTED)})
_UNSHIELD = {chr(0xFDD0 + index): char for index, char in enumerate(_QUOTED)}
_SHIELDED = re.compile("[\ufdd0-\ufdd9]")

# Some notes lack their ※. The length cap keeps what the library is given small.
_GAIJI = re.compile(r"(?:※［＃|［＃(?=「[^「」［］\n]{1,60}」、第[34]水準))([^［］\n]{1,200})］")
_JIS_CODE = re.compile(r"(?<![\d-])([12])-(\d{1,2})-(\d{1,2})(?![\d-])")
_CODE_POINT = re.compile(r"U\+([0-9A-Fa-f]{4,6})")
# "２［＃「２」はローマ数字、1-13-22］": the note replaces what stands before it.
_ROMAN = re.compile(r"(.{1,4})［＃(「\1」はローマ数字、[^［］\n]{1,40})］")

_NOTE = re.compile(r"［＃[^［］\n]*］")
_NOTE_LINE = re.compile(r"^[ 　]*+(?:［＃[^［］\n]*］)++[ 　]*\n", re.MULTILINE)
_STRAY_NOTE = re.compile(r"［＃(?:[^［］\n]*］)?")
_NOTE_DEPTH = 4

_ACCENTED = re.compile(r"〔([^〔〕\n]{1,400})〕")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
# "l'homme", "qu'il" and a comma before a space are no accents, though the table knows ĺ, ú and ţ.
_NO_ACCENT = re.compile(r"(?<=\b[cdjlmnstCDJLMNST])'|(?<=\b[qQ]u)'|(?<=[A-Za-z]),(?![A-Za-z])")
_NO_ACCENT_SHIELD = {"'": "\ufdda", ",": "\ufddb"}

_READING = r"[^《》\n]*+(?:《[^《》\n]*》[^《》\n]*+)*+"
_EXPLICIT_RUBY = re.compile(rf"｜([^｜《》\n]*+)《({_READING})》")
# With nothing before it that could carry a reading, 《》 is a quotation mark.
_QUOTATION = re.compile(r"《(?:(?<=^《)|(?<=[　、。，．・！？：；「『（〈【…―]《))([^《》\n]*)》", re.MULTILINE)
_IMPLICIT_RUBY = re.compile(rf"《({_READING})》")
# The base without ｜ is one run of one class of characters; spaces may follow Latin letters.
_BASE_CLASSES = (
    "々〆〇〻〓仝ヵヶ㐀-䶿一-鿿豈-﫿\U00020000-\U0003ffff",
    "ぁ-ゖゝゞ",
    "ァ-ヺー-ヾ",
    "0-9A-Za-zÀ-ɏ'’-",
    "０-９Ａ-Ｚａ-ｚ",
    "Ͱ-ϿЀ-ӿ",
)
_BASE_RUN = "|".join(f"(?<![{letters}])[{letters}]++" for letters in _BASE_CLASSES)
_IMPLICIT_BASE = re.compile(rf"((?:{_BASE_RUN}) *+|.)《({_READING})》")

_BLANK_RUN = re.compile(r"\n(?:[ 　\t]*+\n){3,}")


def plain_text(source: str, ruby: Ruby = "drop") -> str:
    """What a reader of the page sees, with no notation left.

    Notes are removed; gaiji become characters or `GETA`; the repetition marks ／＼ and ／″＼ become 〳〵 and 〴〵;
    〔e'tude〕 becomes étude; three or more blank lines become one.

    Args:
      source: text in Aozora Bunko notation, its lines ended by LF.
      ruby: "drop" leaves the base, "keep" marks every base (｜朝《あさ》), "inline" gives 朝（あさ）.

    Raises:
      MissingExtraError: the `aozora` library is needed and not installed.
    """
    text = source
    if "［＃" in text:
        text = _remove_notes(_replace_gaiji(text))
    if "〔" in text:
        text = _ACCENTED.sub(_accented, text)
    # Notes that are not closed, nested too deep, or came together only now lose at least their mark.
    text = _STRAY_NOTE.sub("", _set_ruby(text, ruby))
    text = text.replace("／″＼", "〴〵").replace("／゛＼", "〴〵").replace("／＼", "〳〵")
    text = _BLANK_RUN.sub("\n\n", text)
    return _SHIELDED.sub(lambda match: _UNSHIELD[match[0]], text)


@lru_cache(maxsize=1 << 14)
def resolve_gaiji(note: str) -> str:
    """The character that a gaiji note describes, or `GETA`.

    A code in the note decides; without one the library is asked for the description ("謎", "巾＋兌").

    Args:
      note: what stands between ※［＃ and ］, such as "「弓＋椁のつくり」、第3水準1-84-22".

    Raises:
      MissingExtraError: the `aozora` library is needed and not installed.
    """
    if code_point := _CODE_POINT.search(note):
        found = int(code_point[1], 16)
        return chr(found) if found <= 0x10FFFF and chr(found).isprintable() else GETA
    if code := _JIS_CODE.search(note):
        plane, row, cell = (int(number) for number in code.groups())
        try:
            return (b"\x8f" * (plane - 1) + bytes([0xA0 + row, 0xA0 + cell])).decode("euc_jis_2004")
        except ValueError:
            return GETA
    # Its table has Windows' look-alike of the minus sign (see `shift_jis`).
    gaiji = require_library().Document(f"※［＃{note.replace('−', '－')}］").gaiji()
    resolved: str | None = gaiji[0].resolved if gaiji else None
    # Its table holds some private-use and control characters.
    return resolved if resolved and resolved.isprintable() else GETA


def require_library() -> Any:
    """The `aozora` module.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        import aozora
    except ImportError as error:
        raise MissingExtraError("aozora", "corpora", "reading Aozora Bunko notation") from error
    return aozora


def _replace_gaiji(text: str) -> str:
    for _ in range(_NOTE_DEPTH):
        text, replaced = _GAIJI.subn(lambda match: resolve_gaiji(match[1]).translate(_SHIELD), text)
        if not replaced:
            break
    if "」はローマ数字、" in text:
        text = _ROMAN.sub(lambda match: resolve_gaiji(match[2]).translate(_SHIELD), text)
    return text


def _remove_notes(text: str) -> str:
    text = text.replace("［＃改行］", "\n")
    for _ in range(_NOTE_DEPTH):
        # A line of nothing but notes goes with its end, so that no blank line is left in its place.
        text = _NOTE_LINE.sub("", text)
        text, removed = _NOTE.subn("", text)
        if not removed:
            break
    return text


def _accented(match: re.Match[str]) -> str:
    if not _ASCII_LETTER.search(match[1]):
        return match[0]
    accented = _decompose(match[1])
    return match[0] if accented == match[1] else accented


@lru_cache(maxsize=1 << 12)
def _decompose(latin: str) -> str:
    shielded = _NO_ACCENT.sub(lambda match: _NO_ACCENT_SHIELD[match[0]], latin)
    accented: str = require_library().Document(f"〔{shielded}〕").to_source()
    for char, stand_in in _NO_ACCENT_SHIELD.items():
        accented = accented.replace(stand_in, char)
    return accented[1:-1]


def _set_ruby(text: str, ruby: Ruby) -> str:
    if "《" not in text:
        return text
    opened, closed = "《".translate(_SHIELD), "》".translate(_SHIELD)
    explicit = {"drop": r"\1", "keep": rf"｜\1{opened}\2{closed}", "inline": r"\1（\2）"}[ruby]
    text = _EXPLICIT_RUBY.sub(explicit, text)
    text = _QUOTATION.sub(rf"{opened}\1{closed}", text)
    if ruby == "drop":
        return _IMPLICIT_RUBY.sub("", text)
    if ruby == "inline":
        return _IMPLICIT_RUBY.sub(r"（\1）", text)
    return _IMPLICIT_BASE.sub(r"｜\1《\2》", text)
