"""A prepared speech data set as training opens it.

    OUT/dataset.json      SpeechInfo, and the list of shards with their checksums; written last
    OUT/report.json       what was prepared, and every dropped clip with its reason
    OUT/shards/KEY.*      `speech_files`

Spectrograms are not stored: the training step computes them on the device.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hayakuchi import config, strict_json
from hayakuchi.data.shards import SPLITS, Split
from hayakuchi.data.speech_files import AGAIN, DamagedShardError, Shard, audio_path, map_audio, read_shard, whole_file
from hayakuchi.data.verification import check_sha256, verify_once
from hayakuchi.errors import UserError
from hayakuchi.speech.symbols import PAD_ID, Inventory

FORMAT_VERSION = 1
KIND = "speech"
INFO_FILE, SHARDS_FOLDER = "dataset.json", "shards"


@dataclass
class SpeechCounts:
    """Size of the clips of one speaker in one split."""

    clips: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ShardEntry:
    """A shard as `dataset.json` lists it.

    Attributes:
      key: name of its files.
      sha256: `Shard.sha256`, which covers the checksum of the audio.
      audio_bytes: size of the audio file.
      audio_sha256: its checksum.
      splits: a letter a clip: "t" train, "h" held out, "-" left out.
    """

    key: str
    sha256: str
    audio_bytes: int
    audio_sha256: str
    splits: str


SPLIT_LETTERS: dict[Split, str] = {"train": "t", "heldout": "h"}
LEFT_OUT = "-"


@dataclass(frozen=True)
class SpeechInfo:
    """What `dataset.json` says of a data set; a copy of it without the shards stands in every run.

    Attributes:
      sample_rate_hz: of all audio.
      speakers: names; the index of one is its id.
      inventory: what the symbol ids mean.
      front_end: "engine", "version" and "devoiced" of the front end that read the transcripts.
      counts: size of each split by name of speaker.
    """

    sample_rate_hz: int
    speakers: tuple[str, ...]
    inventory: Inventory
    front_end: dict[str, str]
    counts: dict[Split, dict[str, SpeechCounts]]

    def save(self, path: Path, shards: Sequence[ShardEntry] | None = None) -> None:
        """Writes the file, in one step, with the list of shards for a data set."""
        values = {"kind": KIND, "format_version": FORMAT_VERSION, **asdict(self), "inventory": self.inventory.to_dict()}
        if shards is not None:
            values["shards"] = [asdict(shard) for shard in shards]
        with whole_file(path) as file:
            file.write((strict_json.dumps(values) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "SpeechInfo":
        """Reads `dataset.json`, of a data set or a run.

        Raises:
          UserError: missing, not JSON, of another kind or format version, or not what `save` wrote.
        """
        values = _load(path)
        try:
            return cls(
                sample_rate_hz=int(values["sample_rate_hz"]),
                speakers=tuple(map(str, values["speakers"])),
                inventory=Inventory.from_dict(values["inventory"], f"{path}: inventory"),
                front_end={name: str(values["front_end"][name]) for name in ("engine", "version", "devoiced")},
                counts={
                    split: {
                        name: config.from_dict(SpeechCounts, counts, f"{path}: counts of {name}")
                        for name, counts in values["counts"][split].items()
                    }
                    for split in SPLITS
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: missing or malformed entry ({error!r}); {AGAIN}") from error


class SpeechClips:
    """The clips of one split, their audio read through memory maps.

    Attributes:
      info: of the data set.
      symbols: int32 [N], number of symbol ids of each clip, without blanks.
      samples: int32 [N], length of its audio.
      speakers: int32 [N], id of its speaker.
    """

    def __init__(self, info: SpeechInfo, shards: Iterable[tuple[Shard, np.ndarray, str]], letter: str) -> None:
        """Puts the clips together; `open_speech_split` opens them.

        Args:
          info: of the data set.
          shards: records, audio [S] and `ShardEntry.splits` of each.
          letter: which of the clips, see `SPLIT_LETTERS`.
        """
        self.info = info
        speaker_ids = {name: index for index, name in enumerate(info.speakers)}
        self._audio: list[np.ndarray] = []
        self._places: list[tuple[int, int]] = []
        self._texts: list[str] = []
        self._names: list[str] = []
        ids: list[np.ndarray] = []
        samples, speakers = [], []
        for number, (shard, audio, letters) in enumerate(shards):
            self._audio.append(audio)
            start = 0
            for clip, its_letter in zip(shard.clips, letters, strict=True):
                if its_letter == letter:
                    self._places.append((number, start))
                    self._names.append(clip.name)
                    self._texts.append(clip.text)
                    ids.append(np.array(clip.ids, np.int32))
                    samples.append(clip.samples)
                    speakers.append(speaker_ids[clip.speaker])
                start += clip.samples
        self.samples = np.array(samples, np.int32)
        self.speakers = np.array(speakers, np.int32)
        self.symbols = np.array([len(of_clip) for of_clip in ids], np.int32)
        self._ids = ids

    def __len__(self) -> int:
        return len(self._places)

    def ids(self, index: int) -> np.ndarray:
        """Symbol ids int32 [n] of a clip, without blanks."""
        return self._ids[index]

    def audio(self, index: int) -> np.ndarray:
        """Audio int16 [samples] of a clip; a view of the file."""
        shard, start = self._places[index]
        return self._audio[shard][start : start + int(self.samples[index])]

    def text(self, index: int) -> str:
        """Transcript of a clip as the corpus has it."""
        return self._texts[index]

    def name(self, index: int) -> str:
        """Name of a clip in its corpus."""
        return self._names[index]


def open_speech_split(dataset: Path, split: Split, *, verify: bool = False) -> SpeechClips:
    """Opens one split of a data set directory and checks it against `dataset.json`.

    The content of the audio is checked once per data set and machine (`verification`).

    Args:
      dataset: the directory.
      split: which one.
      verify: check the audio in any case.

    Raises:
      UserError: not a speech data set, or a file of it is missing, cut short or not the one that was prepared.
    """
    path = dataset / INFO_FILE
    info = SpeechInfo.load(path)
    letter = SPLIT_LETTERS[split]
    listed = enumerate(_load(path).get("shards", []))
    entries = [config.from_dict(ShardEntry, value, f"{path}: shard {number}") for number, value in listed]
    entries = [entry for entry in entries if letter in entry.splits]
    clips = SpeechClips(info, _open_shards(dataset, info, entries), letter)
    expected = sum(count.clips for count in info.counts[split].values())
    if len(clips) != expected:
        raise UserError(f"{path}: lists {len(clips)} clips of {split}, but counts {expected}; {AGAIN}")
    checksums = {audio_path(dataset / SHARDS_FOLDER, entry.key): entry.audio_sha256 for entry in entries}
    verify_once(checksums, lambda file: check_sha256(file, checksums[file], AGAIN), always=verify)
    return clips


def _open_shards(
    dataset: Path, info: SpeechInfo, entries: Iterable[ShardEntry]
) -> Iterator[tuple[Shard, np.ndarray, str]]:
    folder = dataset / SHARDS_FOLDER
    for entry in entries:
        shard = read_shard(folder, entry.key)
        if (shard.sha256, len(shard.clips)) != (entry.sha256, len(entry.splits)):
            raise DamagedShardError(f"{folder / entry.key}: not the shard that {INFO_FILE} lists; {AGAIN}")
        _check_ranges(dataset, info, shard)
        audio = map_audio(folder, entry.key)
        if len(audio) != sum(clip.samples for clip in shard.clips):
            raise DamagedShardError(f"{folder / entry.key}: its two files do not belong together; {AGAIN}")
        yield shard, audio, entry.splits


def _check_ranges(dataset: Path, info: SpeechInfo, shard: Shard) -> None:
    """Raises UserError where a clip has a symbol or a speaker that `dataset.json` does not have."""
    where = f"{dataset / SHARDS_FOLDER / shard.key}"
    if strange := {clip.speaker for clip in shard.clips}.difference(info.speakers):
        raise DamagedShardError(f"{where}: speaker {min(strange)!r} is not in {dataset / INFO_FILE}; {AGAIN}")
    ids = np.array(list(itertools.chain.from_iterable(clip.ids for clip in shard.clips)), np.int64)
    if outside := ids[(ids <= PAD_ID) | (ids >= info.inventory.size)].tolist():
        raise DamagedShardError(
            f"{where}: symbol id {outside[0]}, but {dataset / INFO_FILE} has the ids 1 to {info.inventory.size - 1}; "
            f"{AGAIN}"
        )


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path.parent}: not a data set directory; make one with `hayakuchi prepare speech`")
    values = config.load_json(path)
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise UserError(f"{path}: not a speech data set; make one with `hayakuchi prepare speech`")
    if values.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{path}: format version {values.get('format_version')!r}, this program reads {FORMAT_VERSION}; {AGAIN}"
        )
    return values
