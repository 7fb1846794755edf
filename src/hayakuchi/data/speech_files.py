"""One shard of a speech data set: two files, of which the second makes it whole.

    KEY.npy      int16 [S]: the audio of the shard's clips, one after another; memory-mapped
    KEY.jsonl    line 1: SHA-256 of the rest; line 2: size and checksum of the audio, number of clips; then a `Clip` a
                 line, and a `DroppedClip` a line

KEY is a hash of all that a shard is made from (`speech_blocks`), so a shard is never taken for another one.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from hayakuchi.data.verification import file_sha256
from hayakuchi.errors import UserError

AUDIO_DTYPE = np.dtype("<i2")
AGAIN = "run `hayakuchi prepare speech` with the same options again"


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip of a shard, without its audio.

    Attributes:
      name: its name in the corpus.
      speaker: who speaks.
      text: transcript as the corpus has it.
      ids: symbol ids of the transcript, without blanks.
      samples: length of its audio in the shard.
      split: side that the corpus gives it, "train" or "heldout"; "" if it gives none.
      source_seconds: length of the file that it comes from.
      level_db: level of the speech in that file (`speech.audio.loudness`).
      clipped: share of samples at full scale in that file.
    """

    name: str
    speaker: str
    text: str
    ids: list[int]
    samples: int
    split: Literal["train", "heldout", ""]
    source_seconds: float
    level_db: float
    clipped: float


@dataclass(frozen=True, slots=True)
class DroppedClip:
    """A clip that is not in the data set, and why: a short fixed phrase that reports count by, and what exactly."""

    name: str
    reason: str
    detail: str


class Shard(NamedTuple):
    """What the record file of a shard holds.

    Attributes:
      key: name of its files.
      clips: in the order of their audio.
      dropped: clips that stood between them in the corpus.
      audio_bytes: size of the audio file.
      audio_sha256: its checksum.
      sha256: checksum of the record file's content.
    """

    key: str
    clips: list[Clip]
    dropped: list[DroppedClip]
    audio_bytes: int
    audio_sha256: str
    sha256: str


class DamagedShardError(UserError):
    """A shard is missing, cut short or not what its checksum says."""


def write_shard(
    folder: Path, key: str, clips: Sequence[tuple[Clip, np.ndarray]], dropped: Sequence[DroppedClip]
) -> Shard:
    """Writes a shard; the record file, written last, makes it whole.

    Args:
      folder: `OUT/shards`.
      key: name of the files.
      clips: each with its int16 audio [samples].
      dropped: clips that are only reported.
    """
    samples = sum(clip.samples for clip, _ in clips)
    with whole_file(audio_path(folder, key)) as file:
        header = {"descr": npy_format.dtype_to_descr(AUDIO_DTYPE), "fortran_order": False, "shape": (samples,)}
        npy_format.write_array_header_1_0(file, header)
        for clip, audio in clips:
            assert audio.shape == (clip.samples,)
            file.write(np.ascontiguousarray(audio, AUDIO_DTYPE).data)
        file.flush()
        audio_bytes, audio_sha256 = file.tell(), file_sha256(Path(file.name))
    summary = {"audio_bytes": audio_bytes, "audio_sha256": audio_sha256, "clips": len(clips)}
    # ASCII: a transcript may hold lone surrogates, which have no UTF-8.
    lines = [json.dumps(line) for line in (summary, *(asdict(clip) for clip, _ in clips), *map(asdict, dropped))]
    content = "".join(f"{line}\n" for line in lines).encode("ascii")
    sha256 = hashlib.sha256(content).hexdigest()
    with whole_file(records_path(folder, key)) as file:
        file.write(sha256.encode("ascii") + b"\n" + content)
    return Shard(key, [clip for clip, _ in clips], list(dropped), audio_bytes, audio_sha256, sha256)


def read_shard(folder: Path, key: str, *, verify_audio: bool = False) -> Shard:
    """Reads the records of a shard and checks them, and the size of its audio.

    Args:
      folder: `OUT/shards`.
      key: name of the files.
      verify_audio: check the content of the audio too, which reads all of it.

    Raises:
      DamagedShardError: a file is missing or damaged.
    """
    records, audio = records_path(folder, key), audio_path(folder, key)
    try:
        line, _, content = records.read_bytes().partition(b"\n")
        size = audio.stat().st_size
    except OSError as error:
        raise DamagedShardError(f"{error.filename}: cannot read it ({error.strerror}); {AGAIN}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if line != sha256.encode("ascii"):
        raise DamagedShardError(f"{records}: damaged or cut short; {AGAIN}")
    summary, *values = map(json.loads, content.splitlines())
    if size != summary["audio_bytes"]:
        raise DamagedShardError(f"{audio}: {size} bytes in place of {summary['audio_bytes']}; {AGAIN}")
    if verify_audio and file_sha256(audio) != summary["audio_sha256"]:
        raise DamagedShardError(f"{audio}: damaged; {AGAIN}")
    count = summary["clips"]
    clips = [Clip(**value) for value in values[:count]]
    dropped = [DroppedClip(**value) for value in values[count:]]
    return Shard(key, clips, dropped, size, summary["audio_sha256"], sha256)


def map_audio(folder: Path, key: str) -> np.ndarray:
    """Memory-maps the audio of a shard, int16 [S].

    Raises:
      DamagedShardError: it is missing or not the audio of a shard.
    """
    path = audio_path(folder, key)
    try:
        # Unlike np.load it knows no other format: nothing is ever unpickled or unzipped.
        audio = npy_format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise DamagedShardError(f"{path}: damaged or cut short ({error}); {AGAIN}") from error
    if audio.ndim != 1 or audio.dtype != AUDIO_DTYPE:
        raise DamagedShardError(f"{path}: not the audio of a shard; {AGAIN}")
    return audio


def audio_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.npy"


def records_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.jsonl"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the body ends well, and else is removed."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
