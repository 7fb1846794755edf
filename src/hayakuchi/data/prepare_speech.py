"""`prepare speech`: recordings with transcripts -> one data set directory for training a voice.

This process reads transcripts through the front end and cuts the clips into blocks; worker processes make a shard of
each (`speech_blocks`). When all are there, their records, without the audio, are read twice: for what only the whole
corpus tells (the usual level, the held-out sentences), and to write down which clip is on which side. Memory is
bounded: a few blocks in flight, and the names of what was dropped.

OUT is filled in place, so that the same command goes on after an interruption; `dataset.json`, written last, makes it
a data set.
"""

import itertools
import os
import re
import time
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from hayakuchi import progress, strict_json
from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.recording import Recording, SpeechReader
from hayakuchi.data.shards import SPLITS, Split
from hayakuchi.data.speech_blocks import AudioSettings, BlockResult, BlockTask, ClipTask, blocks, build_block
from hayakuchi.data.speech_files import Clip, DroppedClip, read_shard
from hayakuchi.data.speech_report import (
    UnreadWords,
    alike_speakers,
    named,
    nothing_left,
    split_statistics,
    summary,
    symbol_statistics,
)
from hayakuchi.data.speech_shards import (
    INFO_FILE,
    LEFT_OUT,
    SHARDS_FOLDER,
    SPLIT_LETTERS,
    ShardEntry,
    SpeechCounts,
    SpeechInfo,
)
from hayakuchi.data.split import SentenceSplit, sentence_hash
from hayakuchi.data.workers import WorkerPool, peak_memory_bytes
from hayakuchi.errors import UserError, require
from hayakuchi.owner import owned
from hayakuchi.speech.frontend import Devoiced, FrontEnd, Reading, make_front_end
from hayakuchi.speech.languages import other_language

__all__ = ["SpeechOptions", "prepare_speech", "summary"]

LoudnessCheck = Literal["warn", "drop", "off"]
CLIPPED_SHARE = 1e-3
"""Share of samples at full scale above which a clip counts as clipped."""
UNUSUAL_DB = 12.0
"""Distance from the median level of the corpus above which a clip's level counts as unusual."""

_REPORT_FILE = "report.json"
# Stands in OUT from the first moment, so that what was interrupted is known for ours.
_MARK = "prepare-speech"
_READ_AT_ONCE = 256
_OURS = re.compile(r"[0-9a-f]{32}\.(npy|jsonl)(\.partial-\d+)?")


@dataclass(frozen=True)
class SpeechOptions:
    """How recordings become a data set.

    Attributes:
      sample_rate_hz: rate of all audio.
      workers: processes that read sound; None takes as many as there are cores.
      trim: cut silence at the ends, all but a margin.
      loudness: what to do with clips that are clipped or far from the usual level: "warn", "drop" or "off".
      normalise: bring all clips to one level.
      engine: front end, see `speech.engines`.
      devoiced: "keep" or "fold" devoiced vowels.
      user_dictionary: CSV of words with their readings.
      heldout_fraction: share of all sentences that is held out, in [0, 1), where the corpus does not say which.
      min_seconds: shorter clips are dropped.
      max_seconds: longer ones too.
      hop_samples: samples per frame of the model to train.
    """

    sample_rate_hz: int = 24_000
    workers: int | None = None
    trim: bool = False
    loudness: LoudnessCheck = "warn"
    normalise: bool = False
    engine: str = "haqumei"
    devoiced: Devoiced = "keep"
    user_dictionary: Path | None = None
    heldout_fraction: float = 0.01
    min_seconds: float = 0.4
    max_seconds: float = 15.0
    hop_samples: int = 256

    def __post_init__(self) -> None:
        rate, shortest = self.sample_rate_hz, self.min_seconds
        require(8_000 <= rate <= 192_000, "sample-rate", rate, "must be in 8000..192000 Hz")
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "must be 1 or more")
        require(self.loudness in get_args(LoudnessCheck), "loudness", self.loudness, "is not warn, drop or off")
        require(0 <= self.heldout_fraction < 1, "heldout", self.heldout_fraction, "must be in [0, 1)")
        require(shortest >= 0, "min-seconds", shortest, "must be 0 or more")
        require(
            shortest < self.max_seconds <= 600,
            "max-seconds",
            self.max_seconds,
            f"must be above {shortest:g}, 600 at most",
        )
        require(self.hop_samples >= 1, "hop-samples", self.hop_samples, "must be 1 or more")

    @property
    def audio(self) -> AudioSettings:
        """What the shards depend on."""
        return AudioSettings(
            self.sample_rate_hz, self.trim, self.normalise, self.min_seconds, self.max_seconds, self.hop_samples
        )


def prepare_speech(out: Path, sources: Sequence[SpeechReader], options: SpeechOptions) -> dict[str, Any]:
    """Makes a data set directory, or brings one up to date.

    Args:
      out: where; must not exist, be empty, or come from an earlier `prepare_speech`, whose shards are used where they
        are whole and would come out the same.
      sources: what to read, in this order.
      options: how.

    Returns:
      The report, as it stands in `report.json`; `summary` tells it in words.

    Raises:
      UserError: an unreadable source or user dictionary, no clip left to train on, `out` taken, or no room on the disk.
      MissingExtraError: a library of the extra "speech" is not installed.
    """
    front_end = make_front_end(options.engine, devoiced=options.devoiced, user_dictionary=options.user_dictionary)
    with _directory(out), WorkerPool(options.workers or os.cpu_count() or 1) as pool:
        return _Preparation(out, sources, options, front_end, pool).run()


@contextmanager
def _directory(out: Path) -> Iterator[None]:
    """Makes OUT for the body; a body that fails before its first shard leaves no new directory behind."""
    mark, shards = out / _MARK, out / SHARDS_FOLDER
    try:
        if not mark.is_file():
            if out.exists() and not (out.is_dir() and not any(out.iterdir())):
                raise UserError(f"{out}: exists and is not a data set of `prepare speech`; choose another or delete it")
            out.mkdir(parents=True, exist_ok=True)
            mark.write_text("made by `hayakuchi prepare speech`\n", encoding="utf-8")
        try:
            with owned(out):
                shards.mkdir(exist_ok=True)
                try:
                    yield
                finally:
                    if not (out / INFO_FILE).exists() and not any(shards.iterdir()):
                        shards.rmdir()
                        mark.unlink()
        finally:
            if not any(out.iterdir()):
                out.rmdir()
    except OSError as error:
        raise UserError(
            f"{out}: cannot write it ({error.strerror or error}); make room or choose another place, "
            "what is done there will be used"
        ) from error


class _Preparation:
    """One run: the steps in their order, and what the report says of them."""

    def __init__(
        self, out: Path, sources: Sequence[SpeechReader], options: SpeechOptions, front_end: FrontEnd, pool: WorkerPool
    ) -> None:
        self._out = out
        self._shards = out / SHARDS_FOLDER
        self._sources = sources
        self._options = options
        self._front_end = front_end
        self._pool = pool
        self._offered = 0
        self._dropped: list[DroppedClip] = []
        self._warnings: list[DroppedClip] = []
        self._unread = UnreadWords()
        self._moved: dict[Split, int] = dict.fromkeys(SPLITS, 0)
        self._built: list[BlockResult] = []
        self._peaks: dict[int, int] = {}

    def run(self) -> dict[str, Any]:
        """Brings the directory to its final state and returns the report."""
        began = time.perf_counter()
        self._build()
        info, entries, symbol_counts = self._assign()
        train_clips = sum(count.clips for count in info.counts["train"].values())
        if not train_clips:
            if not (self._out / INFO_FILE).exists():
                self._remove_shards_except(set())
            raise UserError(nothing_left(self._dropped))
        seconds = time.perf_counter() - began
        source_seconds = sum(result.source_seconds for result in self._built)
        statuses = [result.status for result in self._built]
        self._peaks[os.getpid()] = peak_memory_bytes()
        report = {
            "clips_in": self._offered,
            "clips_out": sum(count.clips for counts in info.counts.values() for count in counts.values()),
            "dropped": named(self._dropped),
            "warnings": named(self._warnings),
            "splits": split_statistics(info),
            "moved": self._moved,
            "alike_speakers": alike_speakers(info.speakers),
            "unread": self._unread.to_dict(),
            "symbols": symbol_statistics(symbol_counts, info.inventory, train_clips),
            "front_end": info.front_end,
            "options": {
                **asdict(self._options),
                "user_dictionary": self._options.user_dictionary and str(self._options.user_dictionary),
            },
            "shards": {status: statuses.count(status) for status in ("built", "rebuilt", "reused")},
            "source_seconds": source_seconds,
            "wall_seconds": seconds,
            "times_real_time": source_seconds / seconds,
            "processes": len(self._peaks),
            "peak_memory_bytes": sum(self._peaks.values()),
        }
        text = strict_json.dumps(report) + "\n"
        # Text may hold lone surrogates, which have no UTF-8.
        (self._out / _REPORT_FILE).write_text(text, encoding="utf-8", errors="replace")
        info.save(self._out / INFO_FILE, entries)
        self._remove_shards_except({entry.key for entry in entries})
        return report

    def _build(self) -> None:
        """Makes the shards of all clips that have a transcript to speak of."""
        settings = self._options.audio
        tasks = (BlockTask(self._shards, block, settings) for block in blocks(self._clips()))
        with progress.bar("preparing", None) as bar:
            for result in self._pool.map(build_block, tasks):
                self._built.append(result)
                self._peaks[result.process] = result.peak_bytes
                bar.advance(result.offered)

    def _clips(self) -> Iterator[ClipTask]:
        """The recordings of all sources with the symbols of their transcripts."""
        for recordings in _batches(self._recordings(), _READ_AT_ONCE):
            readings = self._front_end.read_all([recording.text for recording in recordings])
            for recording, reading in zip(recordings, readings, strict=True):
                name = _printable(recording.name)
                self._unread.add(name, reading.unread)
                if why := self._unusable(reading):
                    self._dropped.append(DroppedClip(name, *why))
                    continue
                ids = self._front_end.inventory.encode(reading.utterance)
                # A list of macOS may decompose what another one composes: ガ in two characters is the same speaker.
                speaker = unicodedata.normalize("NFC", _printable(recording.speaker))
                yield ClipTask(name, speaker, recording.text, ids, recording.split, recording.audio)

    def _unusable(self, reading: Reading) -> tuple[str, str] | None:
        """Why a transcript makes no clip whatever its sound: reason and detail."""
        failed = [unread for unread in reading.unread if unread.reason == "engine failed"]
        if failed or not reading.sentences:
            # A sentence that is heard and not read would be learnt as something else.
            first = (failed or reading.unread)[0]
            return first.reason, first.text[:40]
        frames = int(self._options.max_seconds * self._options.sample_rate_hz) // self._options.hop_samples
        symbols = 2 * sum(len(sentence.symbols) - 1 for sentence in reading.sentences)
        if symbols > frames:
            return "more symbols than frames", f"over {symbols} with blanks, {frames} frames in the longest clip"
        return None

    def _recordings(self) -> Iterator[Recording]:
        for source in self._sources:
            for found in source.recordings():
                self._offered += 1
                if isinstance(found, Dropped):
                    self._dropped.append(DroppedClip(_printable(found.origin), found.reason, found.detail))
                else:
                    yield found

    def _assign(self) -> tuple[SpeechInfo, list[ShardEntry], np.ndarray]:
        """Decides on the side of every clip: the data set, its shards, and how often each symbol is trained on."""
        inventory = self._front_end.inventory
        usual_db, sentences = self._whole_corpus()
        counts: dict[Split, dict[str, SpeechCounts]] = {split: {} for split in SPLITS}
        entries: list[ShardEntry] = []
        symbols = np.zeros(inventory.size, np.int64)
        for result in self._built:
            shard = read_shard(self._shards, result.key)
            self._dropped.extend(shard.dropped)
            letters = ""
            for clip in shard.clips:
                if not self._keeps(clip, usual_db):
                    letters += LEFT_OUT
                    continue
                if language := other_language(clip.text):
                    self._warnings.append(DroppedClip(clip.name, f"perhaps {language}", clip.text[:40]))
                sentence = sentence_hash(clip.text)
                split: Split = sentences.side(sentence)
                self._moved[split] += split != sentences.alone(sentence, clip.split)
                letters += SPLIT_LETTERS[split]
                count = counts[split].setdefault(clip.speaker, SpeechCounts())
                count.clips += 1
                count.seconds += clip.samples / self._options.sample_rate_hz
                if split == "train":
                    symbols += np.bincount(clip.ids, minlength=inventory.size)
            entries.append(ShardEntry(shard.key, shard.sha256, shard.audio_bytes, shard.audio_sha256, letters))
        info = SpeechInfo(
            sample_rate_hz=self._options.sample_rate_hz,
            speakers=tuple(sorted({name for of_split in counts.values() for name in of_split})),
            inventory=inventory,
            front_end={
                "engine": self._options.engine,
                "version": self._front_end.version,
                "devoiced": self._options.devoiced,
            },
            counts=counts,
        )
        return info, entries, symbols

    def _whole_corpus(self) -> tuple[float, SentenceSplit]:
        """The median level, and the sides of all sentences."""
        levels = array("f")
        sentences = SentenceSplit()
        for result in self._built:
            for clip in read_shard(self._shards, result.key).clips:
                levels.append(clip.level_db)
                sentences.add(sentence_hash(clip.text), clip.split)
        usual_db = float(np.median(np.array(levels))) if levels else 0.0
        sentences.decide(self._options.heldout_fraction)
        return usual_db, sentences

    def _keeps(self, clip: Clip, usual_db: float) -> bool:
        """Checks the loudness of a clip, as far as that was asked for."""
        problem = ""
        if clip.clipped > CLIPPED_SHARE:
            problem, detail = "clipped", f"{100 * clip.clipped:.2f}% of all samples at full scale"
        elif abs(clip.level_db - usual_db) > UNUSUAL_DB:
            problem, detail = "unusual level", f"{clip.level_db:.0f} dB, the usual one is {usual_db:.0f} dB"
        if not problem or self._options.loudness == "off":
            return True
        drops = self._options.loudness == "drop"
        (self._dropped if drops else self._warnings).append(DroppedClip(clip.name, problem, detail))
        return not drops

    def _remove_shards_except(self, keys: set[str]) -> None:
        for path in self._shards.iterdir():
            if _OURS.fullmatch(path.name) and (".partial-" in path.name or path.stem not in keys):
                path.unlink(missing_ok=True)


def _printable(name: str) -> str:
    """A name that UTF-8 can hold; a file name may be any bytes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _batches(recordings: Iterator[Recording], size: int) -> Iterator[list[Recording]]:
    while batch := list(itertools.islice(recordings, size)):
        yield batch
