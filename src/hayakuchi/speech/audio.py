"""Sound files in and out, resampling, and what a clip's level says of it."""

import io
import os
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from hayakuchi.errors import MissingExtraError, UserError

LIMIT_SECONDS = 600.0
"""Length of the longest sound that is read unless told otherwise."""

Reason = Literal["unreadable", "empty", "not audio", "cut short", "unknown length", "not finite", "too long"]

_CURES: dict[Reason, str] = {
    "unreadable": "check the path and its permissions",
    "empty": "record or copy it again",
    "not audio": "give WAV, FLAC, OGG or MP3",
    "cut short": "copy it again",
    "unknown length": "convert it to WAV or FLAC",
    "not finite": "export it again",
    "too long": "cut it into sentences",
}
_BLOCK_FRAMES = 1 << 16
_RATES_HZ = range(1_000, 768_001)
_MOST_CHANNELS = 64
_FULL_SCALE = 32_768
_LEAST_DB = -120.0
_MOST_TAG_BYTES = 1 << 12
_MOST_PAGE_BYTES = 27 + 255 + 255 * 255
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class AudioError(UserError):
    """A sound that cannot be used.

    Attributes:
      reason: a short fixed phrase that reports count by.
      detail: what exactly was found.
    """

    def __init__(self, name: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{name}: {reason} ({detail}); {_CURES[reason]}")
        self.reason = reason
        self.detail = detail


class Loudness(NamedTuple):
    """How loud a clip is.

    Attributes:
      level_db: mean power where someone speaks, in dB of a full-scale square wave; -120 for silence.
      peak: largest magnitude.
      clipped: share of samples at full scale.
    """

    level_db: float
    peak: float
    clipped: float


def read_audio(source: bytes | Path, sample_rate_hz: int, limit_seconds: float = LIMIT_SECONDS) -> np.ndarray:
    """Any WAV, FLAC, OGG or MP3 as float32 [S], mixed to mono and resampled.

    Args:
      source: the file, or its content.
      sample_rate_hz: rate of the result; another one is converted by soxr (quality HQ).
      limit_seconds: a longer sound is refused, unread.

    Returns:
      Samples in about [-1, 1]: resampling, and a file of floats, may overshoot.

    Raises:
      AudioError: not a sound, empty, cut short, too long, or with samples that are no numbers.
      MissingExtraError: soundfile or soxr is not installed.
    """
    name = str(source) if isinstance(source, Path) else "audio data"
    if isinstance(source, Path) and not source.is_file():  # a pipe would be waited for
        raise AudioError(name, "unreadable", "no such file")
    try:
        with _open(source) as file:
            mono, rate_hz = _decode(file, name, limit_seconds)
    except OSError as error:
        raise AudioError(name, "unreadable", error.strerror or str(error)) from error
    if not np.isfinite(mono).all():
        raise AudioError(name, "not finite", f"{np.count_nonzero(~np.isfinite(mono))} samples are no finite numbers")
    return _resample(mono, rate_hz, sample_rate_hz)


def write_wav(path: Path, audio: np.ndarray, sample_rate_hz: int) -> None:
    """Writes float samples [S] as 16-bit WAV; what is beyond [-1, 1] is clipped.

    Raises:
      UserError: the file cannot be written.
      MissingExtraError: soundfile is not installed.
    """
    content = wav_bytes(audio, sample_rate_hz)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path}: cannot write it ({error.strerror})") from error


def wav_bytes(audio: np.ndarray, sample_rate_hz: int) -> bytes:
    """The content of a 16-bit WAV file of float samples [S]; see `write_wav`."""
    content = io.BytesIO()
    _library("soundfile").write(content, to_int16(audio), sample_rate_hz, format="WAV", subtype="PCM_16")
    return content.getvalue()


def to_int16(audio: np.ndarray) -> np.ndarray:
    """Float samples in [-1, 1] as int16, clipped; the exact inverse of reading 16-bit audio."""
    return np.clip(np.rint(audio * np.float32(_FULL_SCALE)), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def trim(audio: np.ndarray, sample_rate_hz: int, *, below_db: float = 40.0, margin_seconds: float = 0.1) -> np.ndarray:
    """Audio [S] without the silence at its ends; a view. A silent clip comes back whole.

    Args:
      audio: float samples.
      sample_rate_hz: their rate.
      below_db: silence is what lies this far below the loudest 10 ms.
      margin_seconds: silence that stays at either end.
    """
    frame = max(sample_rate_hz // 100, 1)
    power = _frame_power(audio, frame)
    loud = np.flatnonzero(power > power.max(initial=0) * 10 ** (-below_db / 10))
    if not len(loud):
        return audio
    margin = round(margin_seconds * sample_rate_hz)
    return audio[max(loud[0] * frame - margin, 0) : (loud[-1] + 1) * frame + margin]


def loudness(audio: np.ndarray, sample_rate_hz: int) -> Loudness:
    """Level, peak and clipping of float samples [S]; pauses do not lower the level."""
    power = _frame_power(audio, max(sample_rate_hz // 40, 1))
    # As in ITU-R BS.1770, with a gate that also leaves out breath and reverberation.
    spoken = power[power > power.max(initial=0) * 1e-3]
    level = 10 * np.log10(spoken.mean(dtype=np.float64)) if len(spoken) else _LEAST_DB
    magnitude = np.abs(audio)
    clipped = np.count_nonzero(magnitude >= 0.999) / max(len(audio), 1)
    return Loudness(max(float(level), _LEAST_DB), float(magnitude.max(initial=0)), clipped)


def normalised(audio: np.ndarray, measured: Loudness, level_db: float = -24.0, peak: float = 0.95) -> np.ndarray:
    """Audio [S] brought to a level, or as close to it as its peak allows."""
    if measured.peak == 0:
        return audio
    gain = min(10 ** ((level_db - measured.level_db) / 20), peak / measured.peak)
    return audio * np.float32(gain)


def _open(source: bytes | Path) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _decode(file: BinaryIO, name: str, limit_seconds: float) -> tuple[np.ndarray, int]:
    """Samples [S], mixed to mono, and their rate."""
    soundfile = _library("soundfile")
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        raise AudioError(name, "empty", "0 bytes")
    if lost := _lost_end(file, size):
        raise AudioError(name, "cut short", lost)
    file.seek(0)
    try:
        sound = soundfile.SoundFile(file)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a name that ends with .raw
        raise AudioError(name, "not audio", _words(error)) from error
    with sound:
        rate_hz, channels, frames = sound.samplerate, sound.channels, sound.frames
        if rate_hz not in _RATES_HZ or channels > _MOST_CHANNELS:
            raise AudioError(name, "not audio", f"{rate_hz} Hz in {channels} channels")
        if not frames:
            raise AudioError(name, "empty", "no samples")
        if frames > limit_seconds * rate_hz:
            raise AudioError(name, "too long", f"{frames / rate_hz:.1f} s, at most {limit_seconds:g} s are read")
        return _read_whole(sound, file, name), rate_hz


def _read_whole(sound: Any, file: BinaryIO, name: str) -> np.ndarray:
    """All samples [S] of an open `soundfile.SoundFile`, mixed to mono."""
    blocks: list[np.ndarray] = []
    try:
        # In blocks, since a header may promise any number of samples.
        while len(block := sound.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
            blocks.append(block.mean(axis=1))
    except _library("soundfile").SoundFileError as error:
        raise AudioError(name, "cut short", _words(error)) from error
    found, promised = sum(map(len, blocks)), sound.frames
    position = file.tell()
    unread = file.seek(0, os.SEEK_END) - position
    if sound.format == "MP3" and not _tells_its_length(file):
        # libsndfile guesses a number of samples, and reads no more than that.
        if unread > _MOST_TAG_BYTES:
            raise AudioError(name, "unknown length", "an MP3 of variable bit rate without the number of its frames")
        promised = min(found, promised)
    if found < max(promised, 1):
        raise AudioError(name, "cut short", f"{found} of {promised} samples")
    return np.concatenate(blocks)


def _lost_end(file: BinaryIO, size: int) -> str:
    """What tells that the end of a WAV or OGG file is lost, or ""; libsndfile reads on in silence."""
    file.seek(0)
    start = file.read(12)
    if start[:4] == b"OggS":
        return _lost_ogg_end(file, size)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return ""
    while len(head := file.read(8)) == 8:
        length = int.from_bytes(head[4:], "little")
        if head[:4] == b"data":
            promised = file.tell() + length
            # Programs that write to a pipe do not know the length.
            return f"{size} of {promised} bytes" if length not in _UNKNOWN_SIZES and promised > size else ""
        file.seek(length + length % 2, os.SEEK_CUR)
    return "no samples in it"


def _lost_ogg_end(file: BinaryIO, size: int) -> str:
    """`_lost_end` for OGG: the last page must be whole and say that it is the last (RFC 3533, section 6)."""
    file.seek(max(size - _MOST_PAGE_BYTES, 0))
    tail = file.read(_MOST_PAGE_BYTES)
    page = tail[max(tail.rfind(b"OggS"), 0) :]
    segments = page[27 : 27 + page[26]] if len(page) > 26 else b""
    if len(page) < 27 + len(segments) + sum(segments) or not page[5] & 4:
        return "its last page is not there"
    return ""


def _tells_its_length(file: BinaryIO) -> bool:
    """Whether the first frame of an MP3 holds the number of frames; without it libsndfile guesses."""
    file.seek(0)
    start = file.read(10)
    if start[:3] == b"ID3":  # the tag in front of it, of up to 256 MiB, has its size in 7 bits a byte
        file.seek(10 + sum((byte & 127) << shift for byte, shift in zip(start[6:], (21, 14, 7, 0), strict=True)))
    else:
        file.seek(0)
    frame = file.read(64)
    return b"Xing" in frame or b"Info" in frame


def _resample(audio: np.ndarray, rate_hz: int, wanted_hz: int) -> np.ndarray:
    if rate_hz == wanted_hz:
        return audio
    resampled: np.ndarray = _library("soxr").resample(audio, rate_hz, wanted_hz)
    return resampled


def _frame_power(audio: np.ndarray, frame: int) -> np.ndarray:
    """Mean square of each stretch of `frame` samples, the last of which may be shorter."""
    starts = np.arange(0, len(audio), frame)
    if not len(starts):
        return np.zeros(0)
    lengths = np.minimum(frame, len(audio) - starts)
    return np.add.reduceat(np.square(audio, dtype=np.float64), starts) / lengths


def _words(error: Exception) -> str:
    """What libsndfile says, without its "Error opening <_io.BytesIO object at 0x7f...>: "."""
    return " ".join(str(error).split()).rpartition(": ")[2]


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name, "speech", "reading and writing sound") from error
