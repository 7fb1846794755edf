"""Transcripts and the sound files that they belong to: what the readers of speech corpora share."""

import codecs
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.jsonl import open_stream, whole_characters
from hayakuchi.corpora.shift_jis import decode_shift_jis, is_damaged_utf8
from hayakuchi.errors import UserError

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
_LINE_LIMIT_BYTES = 1 << 20
# A list in another encoding than UTF-8 is decoded as a whole.
_OTHER_ENCODING_LIMIT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
# Text in UTF-8 has no NUL; names of files in UTF-16 have one in two bytes.
_UTF16_SHARE = 0.05
_CONVERT = "save it as UTF-8, for instance with `iconv -f UTF-16LE -t UTF-8 OLD > NEW`"


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
    """Streams the lines of a file that are not blank, without their ends.

    The file is in UTF-8, or as a whole in UTF-16 with a byte order mark, in Shift_JIS (cp932) or in EUC-JP.

    Raises:
      UserError: it cannot be read, or is in another encoding.
    """
    name = whole_characters(str(path))
    if (whole := _other_encoding(path)) is not None:
        yield from _decoded_lines(name, whole)
        return
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
                yield Dropped(origin, "not text", f"not UTF-8 at byte {error.start}; save the list as UTF-8")
                continue
            if "\0" in text:
                yield Dropped(origin, "not text", "it holds NUL")
            elif text.strip():
                yield Line(origin, text)


def _decoded_lines(name: str, whole: str) -> Iterator[Line | Dropped]:
    for number, line in enumerate(whole.split("\n"), start=1):
        origin, text = f"{name}:{number}", line.rstrip("\r")
        if len(text) > _LINE_LIMIT_BYTES or "\0" in text:
            yield Dropped(origin, "not text", "it holds NUL, or is longer than a line may be")
        elif text.strip():
            yield Line(origin, text)


def _other_encoding(path: Path) -> str | None:
    """The text of a list that is not in UTF-8; None for UTF-8, even where some of its lines are damaged."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    beyond_ascii = False
    with open_stream(path) as stream:
        head = stream.read(_CHUNK_BYTES)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return _decoded(path, ("utf-16",))
        if head.count(0) > max(3, _UTF16_SHARE * len(head)):
            raise UserError(f"{path}: not UTF-8; perhaps UTF-16 without a byte order mark: {_CONVERT}")
        chunk = head
        try:
            while chunk:
                decoder.decode(chunk)
                beyond_ascii = beyond_ascii or not chunk.isascii()
                chunk = stream.read(_CHUNK_BYTES)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            if beyond_ascii or is_damaged_utf8(error.object, error.start):
                return None
        else:
            return None
    # EUC-JP first: half-width katakana of Shift_JIS are any bytes of it, but its hiragana are no EUC-JP.
    return _decoded(path, ("euc_jp", "shift_jis"))


def _decoded(path: Path, encodings: Iterable[str]) -> str | None:
    """A whole file in the first of these encodings that fits; None where none of the older ones does."""
    with open_stream(path) as stream:
        data = stream.read(_OTHER_ENCODING_LIMIT_BYTES + 1)
    if len(data) > _OTHER_ENCODING_LIMIT_BYTES:
        raise UserError(
            f"{path}: not UTF-8, and over {_OTHER_ENCODING_LIMIT_BYTES >> 20} MiB; save it as UTF-8 with iconv"
        )
    for encoding in encodings:
        try:
            return decode_shift_jis(data) if encoding == "shift_jis" else data.decode(encoding)
        except UnicodeDecodeError as error:
            if encoding == "utf-16":
                raise UserError(f"{path}: cut or damaged UTF-16 at byte {error.start}; {_CONVERT}") from error
    return None


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
    """The sound files of a folder by their names without suffix.

    Of a.wav and a.flac the first in `SOUND_SUFFIXES` is "a"; the other one keeps its suffix, "a.flac".

    Raises:
      UserError: the folder cannot be read; one that is missing has no files.
    """
    if not folder.is_dir():
        return {}
    try:
        files = [path for path in folder.iterdir() if path.suffix.lower() in SOUND_SUFFIXES]
    except OSError as error:
        raise UserError(f"{folder}: cannot read the folder ({error.strerror})") from error
    files.sort(key=lambda path: (SOUND_SUFFIXES.index(path.suffix.lower()), path.name))
    found: dict[str, Path] = {}
    for path in files:
        if not path.name.startswith("."):  # macOS leaves "._name.wav"
            found[path.name if path.stem in found else path.stem] = path
    return found


def spelling(name: str) -> str:
    """What names have in common that differ by case, or by composed and decomposed characters (が in one or in two).

    Windows and macOS take such names for one, so a list made there may have another spelling than the file here.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


class SoundNames:
    """Finds sound files by the names that lists give them: with or without suffix, else by `spelling`."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._exact = {path.name: key for key, path in files.items()} | {key: key for key in files}
        self._alike: dict[str, set[str]] = {}
        for name, key in self._exact.items():
            self._alike.setdefault(spelling(name), set()).add(key)

    def find(self, name: str) -> str | None:
        """The key of a file; None where there is none, or more than one of the same spelling."""
        if name in self._exact:
            return self._exact[name]
        alike = self._alike.get(spelling(name), set())
        return next(iter(alike)) if len(alike) == 1 else None


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
    names = SoundNames(files)
    seen: dict[str, str] = {}
    for entry in transcripts:
        if isinstance(entry, Dropped):
            yield entry
            continue
        found = names.find(entry.clip)
        name = whole_characters(f"{prefix}{found or entry.clip}")
        if (key := found or entry.clip) in seen:
            yield Dropped(entry.origin, "listed twice", f"{name}, first in {seen[key]}")
            continue
        seen[key] = entry.origin
        if found is None:
            yield Dropped(name, "no sound file", f"it has a transcript: {entry.origin}")
        else:
            yield Clip(name, entry, files[found])
    for clip in sorted(files.keys() - seen.keys()):
        yield Dropped(whole_characters(f"{prefix}{clip}"), "no transcript", whole_characters(str(files[clip])))
