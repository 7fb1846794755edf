"""The front end: text to sentences of symbols, and a report of what could not be read.

`make_front_end().read("はい。😀")` gives the sentence `^ h a ] i $`, and the report that 😀 has no reading.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hayakuchi.errors import UserError
from hayakuchi.speech.engines import Analysis, Engine, Word, make_engine
from hayakuchi.speech.labels import symbols_of_labels
from hayakuchi.speech.sentences import MAX_CHARACTERS, split_sentences
from hayakuchi.speech.spoken_form import spoken_form
from hayakuchi.speech.symbols import DEVOICED_VOWELS, END, INVENTORY, PAUSE, Inventory
from hayakuchi.speech.user_dictionary import load_user_words

Devoiced = Literal["keep", "fold"]
Reason = Literal["no reading", "guessed", "nothing to say", "unknown phone", "engine failed"]


class Unread(NamedTuple):
    """Something that is not, or not surely, said as it is written.

    Attributes:
      text: the word; for "nothing to say" and "engine failed" the sentence, for "unknown phone" the phone.
      reason: "no reading": nothing is said for it; "guessed": it is in no dictionary, and kanji or letters were read
        one by one or by a model; "nothing to say": the sentence holds only signs; "unknown phone": the inventory lacks
        it and a pause stands in; "engine failed": the sentence is left out.
      sentence: the sentence that it stands in.
    """

    text: str
    reason: Reason
    sentence: str


class Sentence(NamedTuple):
    """A sentence and its symbols, all of them in the inventory: `^`, phones and marks, `$` or `?`."""

    text: str
    symbols: list[str]


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of a text.

    Attributes:
      sentences: those with something to say, in their order; none for a text of signs or an empty one.
      unread: what could not be read, in its order; never empty if `sentences` is.
    """

    sentences: list[Sentence]
    unread: list[Unread]

    @property
    def utterance(self) -> list[str]:
        """The symbols of all sentences as one utterance, with pauses between them: a clip's transcript."""
        joined: list[str] = []
        for sentence in self.sentences:
            if not joined:
                joined.extend(sentence.symbols)
                continue
            if joined[-1] == END:  # the rise of a question is heard before the pause too
                joined.pop()
            joined.extend((PAUSE, *sentence.symbols[1:]))
        return joined


class FrontEnd:
    """Text to symbols.

    Attributes:
      inventory: the symbols that come out.
      version: name and version of the engine.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        devoiced: Devoiced = "keep",
        inventory: Inventory = INVENTORY,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        """Puts a front end together; `make_front_end` does it by names.

        Args:
          engine: what reads the sentences.
          devoiced: "keep" tells devoiced vowels (`A I U E O`) from others, "fold" writes them as others.
          inventory: that of the model; phones it lacks become their fallbacks.
          max_characters: see `split_sentences`.

        Raises:
          UserError: `devoiced` is neither.
        """
        if devoiced not in get_args(Devoiced):
            raise UserError(f"devoiced {devoiced!r} is not one of {', '.join(get_args(Devoiced))}")
        self.inventory = inventory
        self.version = engine.version
        self._engine = engine
        self._fold = devoiced == "fold"
        self._max_characters = max_characters

    def read(self, text: str) -> Reading:
        """The symbols of a text. No text raises, whatever its characters and its length."""
        return self.read_all([text])[0]

    def read_all(self, texts: Sequence[str]) -> list[Reading]:
        """`read` of each text; faster than one by one, for the engine reads in parallel."""
        split = [split_sentences(spoken_form(text), self._max_characters) for text in texts]
        analyses = iter(self._analyses([sentence for sentences in split for sentence in sentences]))
        return [
            self._reading(text, [(sentence, next(analyses)) for sentence in sentences])
            for text, sentences in zip(texts, split, strict=True)
        ]

    def _analyses(self, sentences: list[str]) -> list[Analysis | None]:
        try:
            return list(self._engine.analyse(sentences))
        except (RuntimeError, ValueError):
            if len(sentences) == 1:
                return [None]
            # One sentence must not take the others with it.
            return [analysis for sentence in sentences for analysis in self._analyses([sentence])]

    def _reading(self, text: str, analysed: list[tuple[str, Analysis | None]]) -> Reading:
        sentences: list[Sentence] = []
        unread: list[Unread] = []
        for sentence, analysis in analysed:
            if analysis is None:
                unread.append(Unread(sentence, "engine failed", sentence))
                continue
            raw = symbols_of_labels(analysis.labels)
            problems = list(_unread_words(sentence, analysis.words))
            problems += [Unread(phone, "unknown phone", sentence) for phone in raw if self._unknown(phone)]
            if raw:
                sentences.append(Sentence(sentence, self._resolved(raw)))
            elif not problems:
                problems = [Unread(sentence, "nothing to say", sentence)]
            unread.extend(problems)
        if not sentences and not unread:
            shown = spoken_form(text[: self._max_characters])
            unread.append(Unread(shown, "nothing to say", shown))
        return Reading(sentences, unread)

    def _resolved(self, symbols: list[str]) -> list[str]:
        if self._fold:
            symbols = [symbol.lower() if symbol in DEVOICED_VOWELS else symbol for symbol in symbols]
        return [part for symbol in symbols for part in self.inventory.resolve(symbol)]

    def _unknown(self, symbol: str) -> bool:
        return not self.inventory.known((symbol,)) and symbol not in self.inventory.fallbacks


def make_front_end(
    engine: str = "haqumei",
    *,
    user_dictionary: Path | None = None,
    devoiced: Devoiced = "keep",
    inventory: Inventory = INVENTORY,
) -> FrontEnd:
    """A front end by the engine's name (see `engines.ENGINES`), with a user dictionary (see `load_user_words`).

    Raises:
      UserError: no such engine or option, or a user dictionary that cannot be used.
      MissingExtraError: a library of the extra "speech" is not installed.
    """
    words = load_user_words(user_dictionary) if user_dictionary else ()
    return FrontEnd(make_engine(engine, words), devoiced=devoiced, inventory=inventory)


def _unread_words(sentence: str, words: Sequence[Word]) -> Iterator[Unread]:
    for word in words:
        text = unicodedata.normalize("NFKC", word.text).replace("−", "-")  # the engines' form of a hyphen
        if not word.spoken and any(map(_says_something, text)):
            yield Unread(text, "no reading", sentence)
        elif word.spoken and not word.in_dictionary and not all(map(_kana, text)):
            yield Unread(text, "guessed", sentence)


def _says_something(character: str) -> bool:
    """Whether a character is more than punctuation or white space."""
    return unicodedata.category(character)[0] not in "PZ"


def _kana(character: str) -> bool:
    return "ぁ" <= character <= "ヿ"
