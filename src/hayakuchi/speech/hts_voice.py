"""The HTS voice "Mei" of pyopenjtalk-plus as several speakers: a voice for tests and demonstrations.

Pitch, formants and speed are shifted, which gives speakers one can tell apart. The voice is Copyright (c) 2009-2013
Nagoya Institute of Technology, Department of Computer Science, and licensed under CC BY 3.0.
"""

import contextlib
import importlib
import io
import threading
from typing import Any, NamedTuple

import numpy as np

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.engines import make_engine
from hayakuchi.speech.spoken_form import spoken_form

SAMPLE_RATE_HZ = 24_000
_GAIN = 0.5  # the voice overshoots full scale; this puts it at the level of a recorded corpus
_PEAK = 0.95


class Manner(NamedTuple):
    """How the voice is changed into a speaker.

    Attributes:
      half_tones: added to the pitch.
      formants: factor of the frequencies of the vocal tract; below 1 for a longer one.
      speed: factor of the speed.
    """

    half_tones: float
    formants: float
    speed: float


SPEAKERS = {
    "jvs001": Manner(0, 1.0, 1.0),
    "jvs002": Manner(-6, 0.9, 1.0),
    "jvs003": Manner(4, 1.08, 1.0),
    "jvs004": Manner(-10, 0.84, 0.95),
    "jvs005": Manner(2, 0.94, 1.1),
    "jvs006": Manner(-3, 1.06, 0.92),
    "jvs007": Manner(-8, 0.96, 1.1),
    "jvs008": Manner(6, 1.14, 0.95),
}
"""Named as in JVS, since corpora of them are written in its layout."""


class HtsVoice:
    """Speaks. Several threads may use one at once, and then it speaks in parallel: the engine releases Python's lock.

    Raises:
      MissingExtraError: a library of the extra "speech" is not installed.
      UserError: the dictionary that it reads with cannot be loaded.
    """

    def __init__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints advice there, where a wav may be on its way
            hts = _library("pyopenjtalk.htsengine", "pyopenjtalk-plus")
            self._voice_file: bytes = _library("pyopenjtalk", "pyopenjtalk-plus").DEFAULT_HTS_VOICE
        self._new_engine: Any = hts.HTSEngine
        self._resample: Any = _library("soxr", "soxr").resample
        self._reader = make_engine("haqumei")
        self._thread = threading.local()

    def labels(self, sentences: list[str]) -> list[list[str]]:
        """Full-context labels of sentences; none where there is nothing to say."""
        spoken = [" ".join(spoken_form(sentence).splitlines()) for sentence in sentences]
        return [analysis.labels for analysis in self._reader.analyse(spoken)]

    def say(self, sentence: str, speaker: str = "jvs001") -> np.ndarray:
        """The sound of one sentence, always the same.

        Args:
          sentence: of a length that `split_sentences` gives.
          speaker: one of `SPEAKERS`.

        Returns:
          float32 [S] in [-1, 1] at `SAMPLE_RATE_HZ`, with a pause at both ends; empty if there is nothing to say.

        Raises:
          UserError: no such speaker.
        """
        return self.say_labels(self.labels([sentence])[0], speaker)

    def say_labels(self, labels: list[str], speaker: str) -> np.ndarray:
        """`say` of what `labels` gave."""
        if speaker not in SPEAKERS:
            raise UserError(f"speaker {speaker!r} is not one of {', '.join(SPEAKERS)}")
        if not labels:
            return np.zeros(0, np.float32)
        if not hasattr(self._thread, "engine"):
            self._thread.engine = self._new_engine(self._voice_file)
        engine: Any = self._thread.engine
        half_tones, formants, speed = SPEAKERS[speaker]
        # Played faster, by resampling from a false rate, the sound has its formants raised; and its pitch and speed,
        # which are set so as to come out right.
        engine.set_speed(speed / formants)
        engine.add_half_tone(half_tones - 12 * float(np.log2(formants)))
        sound = self._resample(engine.synthesize(labels), engine.get_sampling_frequency() * formants, SAMPLE_RATE_HZ)
        gain = min(_GAIN / (1 << 15), _PEAK / max(float(np.abs(sound).max(initial=0)), 1e-9))
        audio: np.ndarray = (sound * gain).astype(np.float32)
        return audio


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(package, "speech", "the embedded voice") from error
