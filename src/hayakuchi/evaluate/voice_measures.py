"""How far two renderings of a sentence are apart, and whether a voice sounds like its speaker.

Both are analysed by WORLD every 5 ms: F0 by Harvest (Morise, Interspeech 2017), spectral envelopes by CheapTrick
(Morise, Speech Communication 67, 2015). Envelopes become mel-cepstra of the usual kind: ln|H| = c0 + sum of c_m
cos(m w'), where w' is the frequency warped by an all-pass filter (Tokuda et al., ICSLP 1994). Frames are brought
together by dynamic time warping. Mel-cepstral distortion is Kubichek's (IEEE Pacific Rim Conference 1993): for a pair
of frames 10 / ln 10 * sqrt(2 * sum over m >= 1 of (difference of c_m)^2) dB, without c0, which is the level.
"""

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hayakuchi.errors import MissingExtraError

ORDER = 34
"""Cepstral coefficients, as ESPnet counts them at 24 kHz; c0 not counted."""
FRAME_SECONDS = 0.005
# Of the loudest frame: below it stands silence, whose cepstrum means nothing.
_SOUNDING_POWER = 1e-4
_DB_OF_CEPSTRUM = 10 / np.log(10) * np.sqrt(2)
# WORLD wants a few periods of the lowest F0.
_LEAST_SECONDS = 0.1
_DIAGONAL, _UP, _LEFT = 0, 1, 2


@dataclass(frozen=True)
class Analysis:
    """Frames of a clip.

    Attributes:
      cepstra: float64 [T, ORDER], mel-cepstra without c0.
      f0_hz: float64 [T]; 0 where nothing is voiced, and where nothing sounds: Harvest hears voices in silence.
      sounding: bool [T], whether a frame is within 40 dB of the loudest.
    """

    cepstra: np.ndarray
    f0_hz: np.ndarray
    sounding: np.ndarray


class Measures(NamedTuple):
    """What `compare` finds.

    Attributes:
      mcd_db: mean mel-cepstral distortion of the pairs whose recorded frame sounds.
      log_f0_rmse: root mean square difference of ln F0 where both are voiced; None where that is nowhere.
      voicing_error: share of the pairs of which one is voiced and the other not.
      length_ratio: how much longer it is than the recording, silence included.
    """

    mcd_db: float
    log_f0_rmse: float | None
    voicing_error: float
    length_ratio: float


class SpeakerCheck(NamedTuple):
    """What `check_speakers` finds.

    Attributes:
      clips: how many could be judged.
      right: how many of them are nearest to their own speaker.
      own: mean distance to the own speaker.
      other: mean distance to the nearest other one.
    """

    clips: int
    right: int
    own: float
    other: float


def analyse(audio: np.ndarray, sample_rate_hz: int) -> Analysis:
    """Frames of float samples [S] in [-1, 1], however few.

    Raises:
      MissingExtraError: `pyworld` is not installed.
    """
    world = load_world()
    samples = np.zeros(max(len(audio), round(_LEAST_SECONDS * sample_rate_hz)))
    samples[: len(audio)] = audio
    f0_hz, times = world.harvest(samples, sample_rate_hz, frame_period=1000 * FRAME_SECONDS)
    envelopes = world.cheaptrick(samples, f0_hz, times, sample_rate_hz)
    power = envelopes.mean(axis=1)
    cepstra = mel_cepstra(envelopes, sample_rate_hz)
    sounding = power >= _SOUNDING_POWER * power.max()
    return Analysis(cepstra[:, 1:], np.where(sounding, f0_hz, 0), sounding)


def load_world() -> Any:
    """The library `pyworld`.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module("pyworld")
    except ImportError as error:
        raise MissingExtraError("pyworld-prebuilt", "speech", "measuring voices") from error


def mel_cepstra(envelopes: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    """c0 to c_ORDER, float64 [T, 1 + ORDER], of power spectra [T, F] that reach from 0 to half the sample rate."""
    cepstra: np.ndarray = np.log(envelopes) @ _cepstral_transform(envelopes.shape[1], sample_rate_hz)
    return cepstra


@lru_cache(maxsize=8)
def _cepstral_transform(bins: int, sample_rate_hz: int) -> np.ndarray:
    """[F, 1 + ORDER]: the integral over the warped frequency that gives each coefficient, by the trapezoid rule."""
    alpha = warping(sample_rate_hz)
    omega = np.linspace(0, np.pi, bins)
    density = (1 - alpha**2) / (1 - 2 * alpha * np.cos(omega) + alpha**2)
    widths = np.full(bins, np.pi / (bins - 1))
    widths[[0, -1]] /= 2
    waves = np.cos(np.outer(_warped(omega, alpha), np.arange(1 + ORDER)))
    # Half of a power's logarithm is that of the magnitude; c0 stands for itself, the others for both sides.
    transform: np.ndarray = (widths * density)[:, None] * waves / np.pi
    transform[:, 0] /= 2
    return transform


def _warped(omega: np.ndarray, alpha: float) -> np.ndarray:
    warped: np.ndarray = omega + 2 * np.arctan(alpha * np.sin(omega) / (1 - alpha * np.cos(omega)))
    return warped


@lru_cache(maxsize=8)
def warping(sample_rate_hz: int) -> float:
    """The all-pass constant whose warping is closest to the mel scale: 0.41 at 16 kHz, 0.466 at 24 kHz."""
    share = np.linspace(0, 1, 1_000, endpoint=False)
    mel = np.log1p(share * sample_rate_hz / 2_000)
    candidates = np.arange(0, 1, 0.001)
    # Both are compared as shares of where they end.
    errors = [np.square(mel / mel[-1] - (w := _warped(np.pi * share, alpha)) / w[-1]).mean() for alpha in candidates]
    return float(candidates[np.argmin(errors)])


def compare(recorded: Analysis, made: Analysis) -> Measures:
    """Measures how far a rendering is from the recording."""
    ours, theirs = align(recorded.cepstra, made.cepstra)
    difference = np.linalg.norm(recorded.cepstra[ours] - made.cepstra[theirs], axis=1)
    voiced, voiced_too = recorded.f0_hz[ours] > 0, made.f0_hz[theirs] > 0
    both = voiced & voiced_too
    interval = np.log(recorded.f0_hz[ours][both] / made.f0_hz[theirs][both])
    return Measures(
        mcd_db=float(_DB_OF_CEPSTRUM * difference[recorded.sounding[ours]].mean()),
        log_f0_rmse=float(np.sqrt(np.square(interval).mean())) if both.any() else None,
        voicing_error=float((voiced != voiced_too).mean()),
        length_ratio=len(made.f0_hz) / len(recorded.f0_hz),
    )


def align(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dynamic time warping of frames [N, C] and [M, C]: the path of the least sum of Euclidean distances.

    Returns:
      The frames of either that belong together, int [P] each; both go from the first frame to the last, by 0 or 1.
    """
    steps = np.empty((len(first), len(second)), np.int8)
    # Cost of the best path to each cell of the row before, with a column in front where the path comes in.
    previous = np.full(len(second) + 1, np.inf)
    previous[0] = 0
    for row, frame in enumerate(first):
        differences = second - frame
        costs = np.sqrt(np.einsum("tc,tc->t", differences, differences))
        diagonal, up = previous[:-1], previous[1:]
        # A row is entered from above at one column and followed to the right: with sums of the row's costs, the best
        # column to enter by is a running minimum.
        sums = np.cumsum(costs)
        entered = np.minimum(diagonal, up) - (sums - costs)
        best = np.minimum.accumulate(entered)
        steps[row] = np.where(best < entered, _LEFT, np.where(diagonal <= up, _DIAGONAL, _UP))
        previous[1:] = best + sums
        previous[0] = np.inf
    row, column = len(first) - 1, len(second) - 1
    path = [(row, column)]
    while row or column:
        step = steps[row, column]
        row, column = row - (step != _LEFT), column - (step != _UP)
        path.append((row, column))
    ours, theirs = np.array(path[::-1]).T
    return ours, theirs


def speaker_features(clip: Analysis) -> np.ndarray:
    """What tells speakers apart, float64 [ORDER + 1], such that distances are in dB of mel-cepstral distortion.

    The mean mel-cepstrum of the frames that sound, and the mean pitch, of which a half tone counts as a dB; NaN where
    nothing is voiced.
    """
    voiced = clip.f0_hz[clip.f0_hz > 0]
    half_tones = 12 * np.log2(voiced).mean() if len(voiced) else np.nan
    return np.append(_DB_OF_CEPSTRUM * clip.cepstra[clip.sounding].mean(axis=0), half_tones)


def check_speakers(recorded: np.ndarray, judged: np.ndarray, speakers: np.ndarray) -> SpeakerCheck | None:
    """Whether clips are nearer to the recordings of their own speaker than to anyone else's.

    Each is compared with the speakers' mean features, its own recording left out of them: the words do not help.

    Args:
      recorded: [N, C] `speaker_features` of the recordings.
      judged: those of the renderings of the same sentences; `recorded` itself tells how well speakers differ.
      speakers: int [N].

    Returns:
      None where nothing can be judged: that takes two speakers, and another recording of the clip's own.
    """
    own, other = [], []
    for index, features in enumerate(judged):
        rest = np.arange(len(speakers)) != index
        near = {
            speaker: _distance(features, recorded[rest & (speakers == speaker)])
            for speaker in np.unique(speakers[rest]).tolist()
        }
        mine = near.pop(int(speakers[index]), None)
        if near and mine is not None:
            own.append(mine)
            other.append(min(near.values()))
    if not own:
        return None
    right = sum(mine < theirs for mine, theirs in zip(own, other, strict=True))
    return SpeakerCheck(len(own), right, float(np.mean(own)), float(np.mean(other)))


def _distance(features: np.ndarray, clips: np.ndarray) -> float:
    """Of features [C] from the mean of clips [N, C]; pitch does not count where either has none."""
    center = clips[:, :-1].mean(axis=0)
    pitches = clips[~np.isnan(clips[:, -1]), -1]
    pitch = pitches.mean() if len(pitches) else np.nan
    return float(np.sqrt(np.nansum(np.square(features - np.append(center, pitch)))))
