"""The piece of work that `prepare speech` gives to its worker processes: a block of clips to a shard.

The key of the shard is a hash of everything that goes into it: the settings, the programs that decode, and of each clip
its names, transcript, symbols and the content of its sound file. A shard under the right key with the right checksum is
taken as it is, so a preparation that was interrupted goes on, and a changed file rebuilds its own block only.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

import numpy as np

from hayakuchi.data.speech_files import (
    Clip,
    DamagedShardError,
    DroppedClip,
    audio_path,
    read_shard,
    records_path,
    write_shard,
)
from hayakuchi.data.verification import file_sha256
from hayakuchi.data.workers import peak_memory_bytes
from hayakuchi.errors import UserError
from hayakuchi.speech.audio import AudioError, loudness, normalised, read_audio, to_int16, trim

BLOCK_CLIPS = 64
"""Most clips of a block; half as many on average."""
SILENT_DB = -60.0
"""Level below which nothing can be heard of a clip."""
_VERSION = 1


@dataclass(frozen=True)
class AudioSettings:
    """What is done to every sound; part of the key of every shard.

    Attributes:
      sample_rate_hz: rate of the result.
      trim: cut silence at the ends.
      normalise: bring all clips to one level.
      min_seconds: shorter clips are dropped, measured after trimming.
      max_seconds: longer ones too.
      hop_samples: length of a frame; a clip needs a frame for each symbol and blank.
    """

    sample_rate_hz: int
    trim: bool
    normalise: bool
    min_seconds: float
    max_seconds: float
    hop_samples: int


class ClipTask(NamedTuple):
    """A clip to prepare: see `Clip`; `audio` is its sound file."""

    name: str
    speaker: str
    text: str
    ids: list[int]
    split: Literal["train", "heldout", ""]
    audio: Path


class BlockTask(NamedTuple):
    """Clips that become one shard in `folder`."""

    folder: Path
    clips: list[ClipTask]
    settings: AudioSettings


class BlockResult(NamedTuple):
    """What came of a block.

    Attributes:
      key: of its shard.
      status: "built" anew, "reused" as it was, or "rebuilt" since what lay there was damaged.
      offered: clips of the task.
      source_seconds: length of the sound files of the clips that were kept.
      process: who did it.
      peak_bytes: its largest size so far.
    """

    key: str
    status: Literal["built", "reused", "rebuilt"]
    offered: int
    source_seconds: float
    process: int
    peak_bytes: int


def blocks(clips: Iterable[ClipTask]) -> Iterator[list[ClipTask]]:
    """Cuts clips into blocks at places that depend on names, so that an added clip does not move all later blocks."""
    block: list[ClipTask] = []
    for clip in clips:
        block.append(clip)
        if len(block) == BLOCK_CLIPS or crc32(_bytes(clip.name)) % (BLOCK_CLIPS // 2) == 0:
            yield block
            block = []
    if block:
        yield block


def build_block(task: BlockTask) -> BlockResult:
    """Makes the shard of a block, unless it is there.

    Raises:
      UserError: a sound file is written to at the same time, or the shard cannot be written.
    """
    before = [_stamp(clip.audio) for clip in task.clips]
    key = _key(task)
    status: Literal["built", "reused", "rebuilt"]
    try:
        shard = read_shard(task.folder, key, verify_audio=True)
        status = "reused"
    except DamagedShardError:
        status = "built"
        if audio_path(task.folder, key).exists() or records_path(task.folder, key).exists():
            status = "rebuilt"
        kept: list[tuple[Clip, np.ndarray]] = []
        dropped: list[DroppedClip] = []
        for clip in task.clips:
            match prepare_clip(clip, task.settings):
                case DroppedClip() as drop:
                    dropped.append(drop)
                case prepared:
                    kept.append(prepared)
        for clip, stamp in zip(task.clips, before, strict=True):
            if _stamp(clip.audio) != stamp:
                raise UserError(f"{clip.audio}: changed while it was read; wait until the corpus is complete") from None
        shard = write_shard(task.folder, key, kept, dropped)
    seconds = sum(clip.source_seconds for clip in shard.clips)
    return BlockResult(key, status, len(task.clips), seconds, os.getpid(), peak_memory_bytes())


def prepare_clip(task: ClipTask, settings: AudioSettings) -> tuple[Clip, np.ndarray] | DroppedClip:
    """Reads a clip: its record and int16 audio [samples], or the reason why it cannot be used."""
    rate_hz = settings.sample_rate_hz
    try:
        # Silence that will be trimmed may make a good clip long; beyond this, it is no clip.
        audio = read_audio(task.audio, rate_hz, limit_seconds=2 * settings.max_seconds + 30)
    except AudioError as error:
        return DroppedClip(task.name, error.reason, error.detail)
    source_seconds = len(audio) / rate_hz
    measured = loudness(audio, rate_hz)
    if measured.level_db < SILENT_DB:
        return DroppedClip(task.name, "silent", f"level {measured.level_db:.0f} dB")
    if settings.trim:
        audio = trim(audio, rate_hz)
    seconds, frames, symbols = len(audio) / rate_hz, len(audio) // settings.hop_samples, 2 * len(task.ids) + 1
    if seconds > settings.max_seconds:
        return DroppedClip(task.name, "too long", f"{seconds:.2f} s, at most {settings.max_seconds:g} s")
    if symbols > frames:
        # The alignment gives every symbol one frame at least.
        return DroppedClip(task.name, "more symbols than frames", f"{symbols} with blanks, {frames} frames")
    if seconds < settings.min_seconds:
        return DroppedClip(task.name, "too short", f"{seconds:.2f} s, at least {settings.min_seconds:g} s")
    if settings.normalise:
        audio = normalised(audio, measured)
    clip = Clip(
        name=task.name,
        speaker=task.speaker,
        text=task.text,
        ids=task.ids,
        samples=len(audio),
        split=task.split,
        source_seconds=round(source_seconds, 3),
        level_db=round(measured.level_db, 2),
        clipped=round(measured.clipped, 6),
    )
    return clip, to_int16(audio)


def _key(task: BlockTask) -> str:
    decoders = [importlib.metadata.version(library) for library in ("soundfile", "soxr")]
    digest = hashlib.sha256(json.dumps([_VERSION, asdict(task.settings), decoders]).encode())
    for clip in task.clips:
        try:
            content = file_sha256(clip.audio) if clip.audio.is_file() else "no file"
        except OSError as error:
            content = f"unreadable {error.errno}"
        digest.update(json.dumps([clip.name, clip.speaker, clip.text, clip.ids, clip.split, content]).encode())
    return digest.hexdigest()[:32]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
