"""The libraries that read Japanese: haqumei by default, pyopenjtalk-plus in its place.

Both are OpenJTalk inside and give its full-context labels. Neither is asked for its own prosody symbols, which differ.
"""

import contextlib
import importlib.metadata
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.user_dictionary import UserWord, compile_user_words

ENGINES = ("haqumei", "pyopenjtalk-plus")

# What an engine says instead of phones: pause, space, unknown.
_NO_PHONES = frozenset(("pau", "sp", "unk"))


class Word(NamedTuple):
    """A piece of the sentence as the engine cut it.

    Attributes:
      text: how it is written; ASCII comes back as full-width characters.
      spoken: whether phones came of it.
      in_dictionary: False if the engine had to guess.
    """

    text: str
    spoken: bool
    in_dictionary: bool


class Analysis(NamedTuple):
    """What an engine makes of one sentence: full-context labels, none if nothing is spoken, and its words."""

    labels: list[str]
    words: list[Word]


class Engine(Protocol):
    """What reads sentences."""

    @property
    def version(self) -> str:
        """Name and version: whatever is computed with another one may differ."""
        ...

    def analyse(self, sentences: Sequence[str]) -> list[Analysis]:
        """Reads sentences without line feeds, of any length that `split_sentences` gives."""
        ...


def make_engine(name: str, user_words: Sequence[UserWord] = ()) -> Engine:
    """The engine of that name (see `ENGINES`) with the user's words in its dictionary.

    Raises:
      UserError: no such engine, or its dictionary cannot be loaded.
      MissingExtraError: its library is not installed.
    """
    match name:
        case "haqumei":
            return Haqumei(user_words)
        case "pyopenjtalk-plus":
            return OpenJTalkPlus(user_words)
    raise UserError(f"front end {name!r} is not one of {', '.join(ENGINES)}")


class Haqumei:
    """haqumei: OpenJTalk in Rust, sentences in parallel."""

    def __init__(self, user_words: Sequence[UserWord] = ()) -> None:
        try:
            import haqumei
        except ImportError as error:
            raise MissingExtraError("haqumei", "speech", "reading Japanese text") from error
        self.version = _version("haqumei")
        try:
            self._haqumei: Any = haqumei.Haqumei()
            if user_words:
                with tempfile.TemporaryDirectory() as folder:
                    words = compile_user_words(user_words, Path(folder))
                    dictionary = haqumei.Dictionary.from_path(str(_unpacked_dictionary()), str(words))
                    self._haqumei = haqumei.Haqumei.from_dictionary(dictionary)
        except (RuntimeError, OSError) as error:
            raise UserError(
                f"haqumei cannot load its dictionary ({error}): it unpacks 103 MB to {_unpacked_dictionary().parent};"
                " XDG_CACHE_HOME names another folder"
            ) from error

    def analyse(self, sentences: Sequence[str]) -> list[Analysis]:
        """See `Engine.analyse`."""
        texts = list(sentences)
        labels: list[list[str]] = self._haqumei.extract_fullcontext_string_batch(texts)
        words = self._haqumei.g2p_mapping_batch(texts)
        return [
            Analysis(of_text, [Word(word.word, _spoken(word.phonemes), not word.is_unknown) for word in its_words])
            for of_text, its_words in zip(labels, words, strict=True)
        ]


class OpenJTalkPlus:
    """pyopenjtalk-plus: OpenJTalk in C, with corrections in Python."""

    def __init__(self, user_words: Sequence[UserWord] = ()) -> None:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints advice there, where a wav may be on its way
                import pyopenjtalk
                from pyopenjtalk.openjtalk import OpenJTalk
        except ImportError as error:
            raise MissingExtraError("pyopenjtalk-plus", "speech", "reading Japanese text") from error
        self.version = _version("pyopenjtalk-plus")
        self._library: Any = pyopenjtalk
        with tempfile.TemporaryDirectory() as folder:
            words = str(compile_user_words(user_words, Path(folder))) if user_words else ""
            self._open_jtalk = OpenJTalk(
                dn_mecab=pyopenjtalk.OPEN_JTALK_DICT_DIR,
                userdic=words.encode(),
                userdic_reading_protection=[True] if words else None,
            )

    def analyse(self, sentences: Sequence[str]) -> list[Analysis]:
        """See `Engine.analyse`."""
        with warnings.catch_warnings():
            # It uses a name of SudachiPy's that is on its way out.
            warnings.simplefilter("ignore", DeprecationWarning)
            return [self._analyse(sentence) for sentence in sentences]

    def _analyse(self, sentence: str) -> Analysis:
        # Its correction of known kanji by SudachiPy changes nothing measurable and takes time.
        features, morphs = self._library.run_frontend_detailed(
            sentence, use_sudachi_kanji_yomi=False, jtalk=self._open_jtalk
        )
        mapping = self._library.make_phoneme_mapping(features, morphs, jtalk=self._open_jtalk)
        words = [Word(word["surface"], _spoken(word["phonemes"]), not word["is_unknown"]) for word in mapping]
        # With nothing to say it would warn on the standard error.
        spoken = any(word.spoken for word in words)
        return Analysis(self._library.make_label(features, jtalk=self._open_jtalk) if spoken else [], words)


def _spoken(phones: Sequence[str]) -> bool:
    return not _NO_PHONES.issuperset(phones)


def _version(library: str) -> str:
    return f"{library} {importlib.metadata.version(library)}"


def _unpacked_dictionary() -> Path:
    """Where haqumei unpacks its dictionary; it has no function that tells."""
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        cache = named if named.is_absolute() else Path.home() / ".cache"
    return cache / "haqumei" / "decompressed"
