"""What the verbs `speak` and `convert` do: a WAV file that grows while it is made, and a summary of plain values."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hayakuchi import progress
from hayakuchi.errors import UserError
from hayakuchi.infer.convert import convert
from hayakuchi.infer.speak import speak
from hayakuchi.infer.speak_options import SpeakOptions
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.speech.audio import read_audio
from hayakuchi.speech.frontend import Unread
from hayakuchi.speech.wav_stream import stream_wav

logger = logging.getLogger(__name__)

# Sentences computed at once. A processor gains nothing by more than one.
_ACCELERATOR_BATCH = 8
_LONGEST_RECORDING_SECONDS = 7_200.0
_UNREAD_SHOWN = 5


def speak_to_wav(
    run: VoiceRun,
    text: str,
    out: Path,
    speaker: str = "",
    options: SpeakOptions | None = None,
    *,
    user_dictionary: Path | None = None,
) -> dict[str, Any]:
    """Speaks a text to a WAV file sentence by sentence; what was not read is told in a warning.

    Args:
      run: the voice.
      text: of any length.
      out: the file; - for standard output.
      speaker: name or index; "" is the first.
      options: see `SpeakOptions`.
      user_dictionary: see `load_user_words`.

    Returns:
      Plain values: "speaker", "seconds", "sentences" with the "text" and "seconds" of each, "unread", and others.

    Raises:
      UserError: see `speak`; or the file cannot be written.
    """
    front_end = run.front_end(user_dictionary)
    batch = 1 if jax.default_backend() == "cpu" else _ACCELERATOR_BATCH
    spoken = speak(run, text, speaker, options, front_end=front_end, batch=batch)
    sentences: list[dict[str, Any]] = []
    unread: list[Unread] = []

    def audio() -> Iterator[np.ndarray]:
        for part in spoken:
            if len(part.audio):
                seconds = round(len(part.audio) / run.sample_rate_hz, 3)
                sentences.append({"text": part.text, "seconds": seconds})
            unread.extend(part.unread)
            yield part.audio
            bar.advance(len(part.text))

    with progress.bar("speaking", len(text)) as bar:
        samples = stream_wav(out, audio(), run.sample_rate_hz)
    if unread:
        logger.warning("%s", _note(unread))
    return {
        **_summary(run, out, samples),
        "speaker": run.info.speakers[run.speaker_id(speaker)],
        "sentences": sentences,
        "unread": [word._asdict() for word in unread],
    }


def convert_to_wav(
    run: VoiceRun, recording: Path, out: Path, source: str, target: str, *, seed: int = 0
) -> dict[str, Any]:
    """Converts a recording of any format to a WAV file.

    Args:
      run: a voice of several speakers.
      recording: the sound file.
      out: the file to write; - for standard output.
      source: the speaker heard, by name or index.
      target: the speaker wanted.
      seed: the same seed gives the same result.

    Returns:
      Plain values: "from", "to", "seconds" and others.

    Raises:
      UserError: see `convert` and `read_audio`; or the file cannot be written.
    """
    if out.exists() and recording.exists() and out.samefile(recording):
        raise UserError(f"--out {out}: is the recording itself; name another file")
    audio = read_audio(recording, run.sample_rate_hz, _LONGEST_RECORDING_SECONDS)
    pieces = convert(run, audio, source, target, seed=seed)

    def shown() -> Iterator[np.ndarray]:
        for piece in pieces:
            yield piece
            bar.advance(len(piece))

    with progress.bar("converting", len(audio)) as bar:
        samples = stream_wav(out, shown(), run.sample_rate_hz)
    names = run.info.speakers
    ends = {"from": names[run.speaker_id(source)], "to": names[run.speaker_id(target)]}
    return {**_summary(run, out, samples), **ends}


def _summary(run: VoiceRun, out: Path, samples: int) -> dict[str, Any]:
    return {
        "out": str(out),
        "recipe": run.recipe.name,
        "step": run.step,
        "sample_rate_hz": run.sample_rate_hz,
        "seconds": round(samples / run.sample_rate_hz, 3),
    }


def _note(unread: Sequence[Unread]) -> str:
    """One line on what was not read."""
    told = [f"{word.text[:20]!r} ({word.reason})" for word in unread[:_UNREAD_SHOWN]]
    more = f" and {len(unread) - len(told)} more; --json lists them" if len(unread) > len(told) else ""
    return f"not read as written: {', '.join(told)}{more}"
