"""Text to speech, sentence by sentence: what is read, in which order, and the silence between.

The work on the device is in `synthesis`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from hayakuchi.errors import UserError
from hayakuchi.infer.speak_options import SpeakOptions
from hayakuchi.infer.synthesis import MAX_SYMBOLS, Utterance, synthesize
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.speech.frontend import FrontEnd, Unread
from hayakuchi.speech.sentences import split_sentences
from hayakuchi.speech.spoken_form import spoken_form
from hayakuchi.speech.symbols import END, PAUSE, PHRASE, START

# Sentences that the front end reads at once: it reads in parallel, and far faster than anyone listens.
_READ_AHEAD = 16


class Spoken(NamedTuple):
    """A stretch of speech.

    Attributes:
      text: the sentence; "" for the rest of one too long for one go.
      audio: float32 [S] in [-1, 1], with the silence before it; empty for a sentence without anything to say.
      unread: what of the sentence was not, or not surely, read.
    """

    text: str
    audio: np.ndarray
    unread: list[Unread]


def speak(
    run: VoiceRun,
    text: str,
    speaker: str = "",
    options: SpeakOptions | None = None,
    *,
    front_end: FrontEnd | None = None,
    batch: int = 1,
) -> Iterator[Spoken]:
    """Speaks a text sentence by sentence; what is not taken is not computed.

    Args:
      run: the voice.
      text: of any length. A sentence of signs alone, such as …, adds nothing but the pause between its neighbours.
      speaker: name or index; "" is the first.
      options: see `SpeakOptions`.
      front_end: what reads the text; None for the voice's own.
      batch: sentences computed at once after the first. The speech does not depend on it, but for rounding.

    Raises:
      UserError: at the call, not at the first sentence: an unknown speaker, or a text with nothing to say.
      MissingExtraError: the voice's front end is not installed.
    """
    speaker_id = run.speaker_id(speaker)
    # The front end is given a few sentences at a time, so that a long text begins at once.
    sentences = split_sentences(spoken_form(text))
    if not sentences:
        raise UserError("TEXT is empty: give something to say")
    pieces = _pieces(front_end or run.front_end(), sentences)
    silent: list[_Piece] = []
    for piece in pieces:
        silent.append(piece)
        if piece.ids:
            break
    else:
        raise UserError(f"TEXT has nothing to say: no word of {text.strip()[:20]!r} can be read; give words")
    return _spoken(run, chain(silent, pieces), speaker_id, options or SpeakOptions(), batch)


class _Piece(NamedTuple):
    """As much of a sentence as is spoken at one go; no ids where there is nothing to say. Otherwise as `Spoken`."""

    text: str
    ids: list[int]
    unread: list[Unread]


def _pieces(front_end: FrontEnd, sentences: Sequence[str]) -> Iterator[_Piece]:
    for first in range(0, len(sentences), _READ_AHEAD):
        for reading in front_end.read_all(sentences[first : first + _READ_AHEAD]):
            unread = reading.unread
            for text, symbols in reading.sentences:
                for number, part in enumerate(cut_symbols(symbols, MAX_SYMBOLS)):
                    yield _Piece("" if number else text, front_end.inventory.encode(part), unread)
                    unread = []
            if unread:
                yield _Piece(unread[0].sentence, [], unread)


def cut_symbols(symbols: list[str], limit: int) -> Iterator[list[str]]:
    """A sentence as pieces of at most `limit` symbols, cut at the last pause, else at the last accent phrase."""
    inner, end = symbols[1:-1], symbols[-1]
    while len(inner) > limit - 2:
        window = inner[: limit - 2]
        places = (_last(mark, window) for mark in (PAUSE, PHRASE))
        place = next(filter(None, places), len(window))
        yield [START, *window[:place], END]
        # The mark at which it is cut has become the end.
        inner = inner[place + (place < len(window)) :]
    yield [START, *inner, end]


def _last(mark: str, symbols: list[str]) -> int:
    """The last place of a mark in the second half; 0 if it has none."""
    return max((place for place in range(len(symbols) // 2, len(symbols)) if symbols[place] == mark), default=0)


def _spoken(
    run: VoiceRun, pieces: Iterator[_Piece], speaker_id: int, options: SpeakOptions, batch: int
) -> Iterator[Spoken]:
    nothing, pause = _silence(run, 0), _silence(run, options.silence)
    said = 0
    for group in _groups(pieces, batch):
        spoken = [piece for piece in group if piece.ids]
        utterances = [Utterance(piece.ids, said + number) for number, piece in enumerate(spoken)]
        waveforms = iter(synthesize(run, utterances, speaker_id, options) if utterances else [])
        for piece in group:
            audio = nothing
            if piece.ids:
                audio = np.concatenate([pause if said else nothing, next(waveforms)])
                said += 1
            yield Spoken(piece.text, audio, piece.unread)


def _groups(pieces: Iterator[_Piece], batch: int) -> Iterator[list[_Piece]]:
    """The first piece alone, so that it is heard soon, then `batch` at a time."""
    size = 1
    while group := list(islice(pieces, size)):
        yield group
        size = batch


def _silence(run: VoiceRun, seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * run.sample_rate_hz), np.float32)
