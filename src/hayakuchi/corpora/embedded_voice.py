"""A speech corpus from nothing: sentences of the embedded text corpus, read by `speech.hts_voice` as several speakers.

It is written to disk in the layout of JVS, 24 kHz and 16 bit; the same settings give the same bytes.
"""

import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hayakuchi.corpora.document import Document, Dropped
from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.corpora.jvs import NORMAL_SETS, SOUNDS, TRANSCRIPTS, JvsReader
from hayakuchi.corpora.recording import Recording
from hayakuchi.errors import MissingExtraError, UserError, require
from hayakuchi.progress import bar
from hayakuchi.runtime import cache_folder
from hayakuchi.speech.audio import write_wav
from hayakuchi.speech.hts_voice import SAMPLE_RATE_HZ, SPEAKERS, HtsVoice
from hayakuchi.speech.sentences import split_sentences
from hayakuchi.speech.spoken_form import spoken_form

_FORMAT = 1  # raised whenever the same settings would give other sounds
_READ_AT_ONCE = 128
_SETTINGS_FILE = "embedded_voice.json"
_README = """# Speech of the embedded voice

Written by Hayakuchi in the layout of the corpus JVS; no real person speaks here, and none of JVS's.

- Sound: synthesised with the HTS voice "Mei", released by the MMDAgent Project Team (http://www.mmdagent.jp/),
  Copyright (c) 2009-2013 Nagoya Institute of Technology, Department of Computer Science, licensed under the Creative
  Commons Attribution 3.0 license (https://creativecommons.org/licenses/by/3.0/). Changed here: pitch, formants and
  speed are shifted for each speaker (`embedded_voice.json` has the values), the level is lowered, and the sound is
  resampled to 24 kHz. Whoever passes these sounds on names the voice and its makers.
- Text: sentences of Hayakuchi's embedded corpus, CC0.
"""


class _Take(NamedTuple):
    """A sentence of a speaker.

    Attributes:
      speaker: one of `SPEAKERS`.
      set_name: one of `NORMAL_SETS`.
      clip: name of the sentence, the same for all speakers.
      text: the sentence.
      labels: its full-context labels.
    """

    speaker: str
    set_name: str
    clip: str
    text: str
    labels: list[str]

    @property
    def sound(self) -> str:
        """Path of its sound below the folder of the corpus."""
        return f"{self.speaker}/{self.set_name}/{SOUNDS}/{self.clip}.wav"


def write_embedded_voice(
    folder: Path, *, speakers: int = 2, parallel: int = 100, nonparallel: int = 30, workers: int | None = None
) -> None:
    """Writes the corpus to `folder` in the layout of JVS, or what is missing of it there.

    The defaults give about 20 minutes of speech. A folder that holds it whole is left as it is; sounds that are
    missing or cut are made anew, so an interrupted call can be repeated.

    Args:
      folder: made if missing.
      speakers: how many of `SPEAKERS`.
      parallel: sentences that all speakers read.
      nonparallel: sentences that one speaker reads alone, for each speaker.
      workers: sentences spoken at a time; None for one a processor.

    Raises:
      UserError: not so many speakers or sentences, other things in the folder, or it cannot be written.
      MissingExtraError: a library of the extra "speech" is not installed.
    """
    require(1 <= speakers <= len(SPEAKERS), "speakers", speakers, f"must be between 1 and {len(SPEAKERS)}")
    require(parallel >= 1, "parallel", parallel, "must be 1 or more")
    require(nonparallel >= 0, "nonparallel", nonparallel, "must be 0 or more")
    require(workers is None or workers >= 1, "workers", workers, "must be 1 or more")
    settings = _settings(speakers, parallel, nonparallel)
    try:
        sizes = _sizes_so_far(folder, settings)
        if sizes and all(_size(folder / name) == size for name, size in sizes.items()):
            return
        voice = HtsVoice()
        takes = _takes(voice, speakers, parallel, nonparallel)
        folder.mkdir(parents=True, exist_ok=True)
        _write_settings(folder, settings, sizes)
        _write_sounds(folder, voice, takes, sizes, workers or os.cpu_count() or 1)
        made = [*(take.sound for take in takes), *_write_texts(folder, takes)]
        _write_settings(folder, settings, {name: _size(folder / name) for name in made})
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write it ({error.strerror or error}); make room or choose another place"
        ) from error


@dataclass(frozen=True)
class EmbeddedVoiceReader:
    """Reads the corpus of the embedded voice, and writes it before that where it is not whole yet.

    Attributes:
      path: where it is kept; None for a folder of its own in the user's cache.
      speakers: how many.
      sentences: how many each speaker reads. As in JVS, 3 of 13 are read by no one else, or fewer where the embedded
        corpus has not enough: all of about 3,000 can be asked for.
    """

    path: Path | None = None
    speakers: int = 2
    sentences: int = 130

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips (see `SpeechReader.recordings`), after up to minutes of writing them."""
        available = len(_texts())
        require(1 <= self.sentences <= available, "sentences", self.sentences, f"must be 1 to {available}")
        nonparallel = self.sentences * 3 // 13
        if self.speakers > 1:
            nonparallel = min(nonparallel, (available - self.sentences) // (self.speakers - 1))
        parallel = self.sentences - nonparallel
        folder = self.path
        if folder is None:
            settings = json.dumps(_settings(self.speakers, parallel, nonparallel), sort_keys=True)
            key = hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()
            folder = cache_folder() / "embedded-voice" / f"{self.speakers}x{self.sentences}-{key}"
        write_embedded_voice(folder, speakers=self.speakers, parallel=parallel, nonparallel=nonparallel)
        yield from JvsReader(folder).recordings()


def held_out_recordings(folder: Path) -> list[Recording]:
    """The held-out clips of a corpus that was written: each sound is the voice's own rendering of its text."""
    clips = JvsReader(folder).recordings()
    return [clip for clip in clips if isinstance(clip, Recording) and clip.split == "heldout"]


def _settings(speakers: int, parallel: int, nonparallel: int) -> dict[str, Any]:
    """All that the written bytes depend on."""
    try:
        versions = {name: importlib.metadata.version(name) for name in ("haqumei", "pyopenjtalk-plus", "soxr")}
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(str(error.name), "speech", "the embedded voice") from error
    return {
        "format": _FORMAT,
        "speakers": {name: list(SPEAKERS[name]) for name in list(SPEAKERS)[:speakers]},
        "parallel": parallel,
        "nonparallel": nonparallel,
        "libraries": versions,
        "texts": hashlib.blake2b("\n".join(_texts()).encode(), digest_size=8).hexdigest(),
    }


@functools.cache
def _texts() -> tuple[str, ...]:
    """All sentences of the embedded corpus that are read as one, each once, in an order that mixes its documents."""
    reader = EmbeddedReader()
    documents = (document for record in reader.records() for document in reader.parse(record))
    sentences = {
        sentence
        for document in documents
        if isinstance(document, Document)
        for sentence in split_sentences(spoken_form(document.text))
        if split_sentences(spoken_form(sentence)) == [sentence]
    }
    return tuple(sorted(sentences, key=lambda text: hashlib.blake2b(text.encode()).digest()))


def _readable(voice: HtsVoice) -> Iterator[tuple[str, str, list[str]]]:
    """Name, text and labels of each sentence with something to say; the same name whatever is asked for."""
    texts = _texts()
    for start in range(0, len(texts), _READ_AT_ONCE):
        batch = texts[start : start + _READ_AT_ONCE]
        for number, text, labels in zip(itertools.count(start + 1), batch, voice.labels(list(batch)), strict=False):
            if labels:
                yield f"EMBEDDED_{number:04}", text, labels


def _takes(voice: HtsVoice, speakers: int, parallel: int, nonparallel: int) -> list[_Take]:
    wanted = parallel + speakers * nonparallel
    readable = list(itertools.islice(_readable(voice), wanted))
    if wanted > len(readable):
        raise UserError(
            f"parallel={parallel} and nonparallel={nonparallel} for {speakers} speakers are {wanted} sentences, "
            f"but the embedded corpus has {len(readable)}: ask for fewer"
        )
    takes = []
    for index, speaker in enumerate(list(SPEAKERS)[:speakers]):
        start = parallel + index * nonparallel
        takes += [_Take(speaker, "parallel100", *sentence) for sentence in readable[:parallel]]
        takes += [_Take(speaker, "nonpara30", *sentence) for sentence in readable[start : start + nonparallel]]
    return takes


def _sizes_so_far(folder: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Sizes of the files in a folder that was written whole once; none in one that is new or was left half-made."""
    file = folder / _SETTINGS_FILE
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return {}
    if not file.is_file():
        raise UserError(f"{folder}: holds other things; name a new folder for the embedded voice")
    try:
        saved = json.loads(file.read_bytes())
        sizes = {str(name): int(size) for name, size in saved["sizes"].items()}
        found = dict(saved["settings"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: damaged; delete the folder or name another one") from error
    if found != settings:
        keys = [key for key, value in settings.items() if found.get(key) != value]
        raise UserError(f"{folder}: was written with another {', '.join(keys)}; delete it or name another folder")
    return sizes


def _size(path: Path) -> int:
    """Bytes of a file, -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _write_settings(folder: Path, settings: dict[str, Any], sizes: dict[str, int]) -> None:
    text = json.dumps({"settings": settings, "sizes": sizes}, ensure_ascii=False, indent=1)
    with _whole(folder / _SETTINGS_FILE) as path:
        path.write_bytes(text.encode())


def _write_sounds(folder: Path, voice: HtsVoice, takes: list[_Take], sizes: Mapping[str, int], workers: int) -> None:
    """Speaks what is not there, or not of the size it had."""
    missing = []
    for take in takes:
        size = _size(folder / take.sound)
        if size < 0 or size != sizes.get(take.sound, size):
            missing.append(take)

    def write_sound(take: _Take) -> None:
        with _whole(folder / take.sound) as path:
            write_wav(path, voice.say_labels(take.labels, take.speaker), SAMPLE_RATE_HZ)

    for path in {(folder / take.sound).parent for take in missing}:
        path.mkdir(parents=True, exist_ok=True)
    # Threads do, see HtsVoice.
    with bar("embedded voice", len(missing)) as progress, ThreadPoolExecutor(workers) as pool:
        try:
            for _ in pool.map(write_sound, missing):
                progress.advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_texts(folder: Path, takes: list[_Take]) -> list[str]:
    """Writes transcripts, empty ones where a set has no sentences, and README; gives their paths below the folder."""
    texts = {"README.md": _README}
    for speaker, set_name in itertools.product({take.speaker: None for take in takes}, NORMAL_SETS):
        lines = [f"{take.clip}:{take.text}\n" for take in takes if (take.speaker, take.set_name) == (speaker, set_name)]
        texts[f"{speaker}/{set_name}/{TRANSCRIPTS}"] = "".join(lines)
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with _whole(folder / name) as path:
            path.write_bytes(text.encode())
    return list(texts)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes `path` at the end: that is either whole or not there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
