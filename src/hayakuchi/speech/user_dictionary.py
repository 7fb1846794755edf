"""The user's own words: a CSV file of surface, reading and accent, compiled for the engines.

    surface,reading,accent
    嗤って,わらって,0
    早口,ハヤクチ,2

The reading is kana as pronounced, long vowels with ー (トーキョー); the accent is the number of the mora after which
the pitch falls, 0 for none. A word is taken as a proper noun, so that particles join it as they should.
"""

import contextlib
import csv
import importlib.util
import io
import re
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.spoken_form import spoken_form

HEADER = ["surface", "reading", "accent"]
_LIMIT_BYTES = 16 << 20
_LIMIT_CHARACTERS = 100
# Two kana that are one mora to OpenJTalk; any other kana is a mora of its own.
_MORA = re.compile(
    "[キギシジチヂニヒビピミリヴテデ][ャュョ]|フュ|[イキギシジチデニヒビピミリヴ]ェ|[ツフヴウ][ァィェォ]|[クグ][ァィゥェォヮ]"
    "|[シスズテデ]ィ|[トド]ゥ|[ァ-ヴー]"
)
_READING = re.compile("[ァ-ヴ][ァ-ヴー]*")
_HIRAGANA_TO_KATAKANA = {code: code + 0x60 for code in range(0x3041, 0x3097)}
# MeCab costs of words of one, two, and more characters: low enough that a word is preferred to the dictionary's own
# reading of the same characters, and the short ones high enough that 山 does not tear 山本 and 登山 apart.
_COSTS = (3_000, 0, -3_000)


class UserWord(NamedTuple):
    """A word: how it is written (as `spoken_form` gives it), its reading in katakana, and its accent in 0..moras."""

    surface: str
    reading: str
    accent: int

    @property
    def moras(self) -> int:
        """Moras of the reading."""
        return len(_MORA.findall(self.reading))


def load_user_words(path: Path) -> list[UserWord]:
    """Reads a user dictionary: UTF-8, with or without its header line; empty lines and lines that start with # pass.

    Raises:
      UserError: the file cannot be read, or a line of it cannot be used; the message names the line.
    """
    words: dict[str, UserWord] = {}
    rows = csv.reader(io.StringIO(_read(path), newline=""))
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#") or (not words and cells == HEADER):
                continue
            word = _parse(cells, f"{path}:{rows.line_num}")
            if word.surface in words:
                raise UserError(f"{path}:{rows.line_num}: {cells[0]!r} stands there twice; keep one of the lines")
            words[word.surface] = word
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: not a line of CSV ({error})") from error
    if not words:
        raise UserError(f"{path}: no words; each line holds surface,reading,accent")
    return list(words.values())


def compile_user_words(words: Sequence[UserWord], folder: Path) -> Path:
    """Writes the words as a dictionary of MeCab into `folder`; returns its path.

    Raises:
      MissingExtraError: pyopenjtalk-plus, which holds the compiler, is not installed.
      UserError: the compiler fails.
    """
    if importlib.util.find_spec("pyopenjtalk") is None:
        raise MissingExtraError("pyopenjtalk-plus", "speech", "a user dictionary")
    source, compiled = folder / "words.csv", folder / "words.dic"
    source.write_text("".join(map(_mecab_line, words)), encoding="utf-8")
    # In a process of its own: the compiler prints to the standard output, where a wav may be on its way.
    code = "import sys, pyopenjtalk; pyopenjtalk.mecab_dict_index(sys.argv[1], sys.argv[2])"
    command = [sys.executable, "-c", code, str(source), str(compiled)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 (no shell, fixed program)
    if done.returncode != 0 or not compiled.exists():
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the user dictionary of {len(words)} words cannot be compiled: {reason}")
    return compiled


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise UserError(f"{path}: larger than {_LIMIT_BYTES >> 20} MiB; this is not a user dictionary")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read the user dictionary ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}); save the user dictionary as UTF-8") from error


def _parse(cells: list[str], where: str) -> UserWord:
    if len(cells) != len(HEADER):
        raise UserError(f"{where}: {len(cells)} columns; a line holds surface,reading,accent")
    surface = spoken_form(cells[0]).strip()
    if not surface or len(surface) > _LIMIT_CHARACTERS or "\n" in surface:
        raise UserError(f"{where}: surface {cells[0][:20]!r} must have 1 to {_LIMIT_CHARACTERS} characters in one line")
    reading = unicodedata.normalize("NFKC", cells[1][:1_000]).translate(_HIRAGANA_TO_KATAKANA)
    if not _READING.fullmatch(reading) or len(reading) > _LIMIT_CHARACTERS:
        raise UserError(
            f"{where}: reading {cells[1][:20]!r} must be 1 to {_LIMIT_CHARACTERS} kana as pronounced (トーキョー)"
        )
    word = UserWord(surface, reading, accent=0)
    with contextlib.suppress(ValueError):
        word = word._replace(accent=int(cells[2]))
        if 0 <= word.accent <= word.moras:
            return word
    raise UserError(
        f"{where}: accent {cells[2][:20]!r} must be the mora after which the pitch falls (1..{word.moras}), or 0"
    )


def _mecab_line(word: UserWord) -> str:
    # OpenJTalk looks up ASCII as full-width characters; left and right context follow from the part of speech.
    surface = "".join(_full_width(character) for character in word.surface)
    cost = _COSTS[min(len(surface), len(_COSTS)) - 1]
    columns = [surface, "", "", cost, "名詞", "固有名詞", "一般", "*", "*", "*", surface, word.reading, word.reading]
    return ",".join(map(str, [*columns, f"{word.accent}/{word.moras}", "*"])) + "\n"


# What OpenJTalk makes of ASCII characters that is not just the full-width form.
_WIDE = {" ": "\u3000", '"': "”", "'": "’", "-": "−", "~": "〜", "`": "‘", "\\": "￥"}


def _full_width(character: str) -> str:
    if "!" <= character <= "~" or character == " ":
        return _WIDE.get(character, chr(ord(character) + 0xFEE0))
    return character
