"""Transcripts and the sound files that they belong to: what the readers of speech corpora share."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.jsonl import open_stream, whole_characters
from hayakuchi.errors import UserError

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
_LINE_LIMIT_BYTES = 1 << 20


class Line(NamedTuple):
    """A line of text, and where it stands: "PATH:LINE"."""

    origin: str
    text: str


class Transcript(NamedTuple):
    """What is said in a clip.

    Attributes:
      origin: where that is written, "PATH:LINE".
      clip: name of the sound file without its suffix.
      text: what is said, not empty.
    """

    origin: str
    clip: str
    text: str


def text_lines(path: Path) -> Iterator[Line | Dropped]:
    """Streams the lines of a UTF-8 file that are not blank, without their ends.

    Raises:
      UserError: it cannot be read.
    """
    name = whole_characters(str(path))
    with open_stream(path) as stream:
        number = 0
        while data := stream.readline(_LINE_LIMIT_BYTES):
            number += 1
            origin = f"{name}:{number}"
            if len(data) == _LINE_LIMIT_BYTES:
                while data and not data.endswith(b"\n"):
                    data = stream.readline(_LINE_LIMIT_BYTES)
                yield Dropped(origin, "not text", f"the line is longer than {_LINE_LIMIT_BYTES >> 20} MiB")
                continue
            try:
                text = data.decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield Dropped(origin, "not text", f"not UTF-8 at byte {error.start}")
                continue
            if "\0" in text:
                yield Dropped(origin, "not text", "it holds NUL")
            elif text.strip():
                yield Line(origin, text)


def colon_transcripts(path: Path) -> Iterator[Transcript | Dropped]:
    """Reads lines "ID:text", as JVS and JSUT have them.

    Raises:
      UserError: the file cannot be read.
    """
    for line in text_lines(path):
        if isinstance(line, Dropped):
            yield line
            continue
        clip, colon, text = line.text.partition(":")
        yield transcript(line.origin, clip, text) if colon else Dropped(line.origin, "no transcript", "no ':'")


def transcript(origin: str, clip: str, text: str) -> Transcript | Dropped:
    """The transcript, or what it lacks."""
    clip, text = clip.strip(), text.strip()
    if not clip:
        return Dropped(origin, "no name", "the line names no clip")
    return Transcript(origin, clip, text) if text else Dropped(origin, "empty transcript", clip)


def sound_files(folder: Path) -> dict[str, Path]:
    """The sound files of a folder by their names without suffix; of a.wav and a.flac the first of `SOUND_SUFFIXES`.

    Raises:
      UserError: the folder cannot be read; one that is missing has no files.
    """
    if not folder.is_dir():
        return {}
    try:
        files = [path for path in folder.iterdir() if path.suffix.lower() in SOUND_SUFFIXES]
    except OSError as error:
        raise UserError(f"{folder}: cannot read the folder ({error.strerror})") from error
    files.sort(key=lambda path: (-SOUND_SUFFIXES.index(path.suffix.lower()), path.name))
    return {path.stem: path for path in files if not path.name.startswith(".")}  # macOS leaves "._name.wav"


class Clip(NamedTuple):
    """A transcript and its sound file.

    Attributes:
      name: prefix and name of the sound file.
      transcript: what is said in it.
      audio: the sound file.
    """

    name: str
    transcript: Transcript
    audio: Path


def pair(
    transcripts: Iterable[Transcript | Dropped], files: Mapping[str, Path], prefix: str = ""
) -> Iterator[Clip | Dropped]:
    """Joins transcripts with sound files; what has no partner is dropped, and so is what comes a second time.

    Args:
      transcripts: of one folder.
      files: `sound_files` of that folder. A path is only ever taken from here, whatever the transcripts name.
      prefix: goes before the names.
    """
    seen: set[str] = set()
    for entry in transcripts:
        if isinstance(entry, Dropped):
            yield entry
            continue
        name = whole_characters(f"{prefix}{entry.clip}")
        if entry.clip in seen:
            yield Dropped(entry.origin, "listed twice", name)
        elif entry.clip not in files:
            yield Dropped(name, "no sound file", f"it has a transcript: {entry.origin}")
        else:
            yield Clip(name, entry, files[entry.clip])
        seen.add(entry.clip)
    for clip in sorted(files.keys() - seen):
        yield Dropped(whole_characters(f"{prefix}{clip}"), "no transcript", whole_characters(str(files[clip])))
