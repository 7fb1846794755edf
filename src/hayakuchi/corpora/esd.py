"""Lists as Style-Bert-VITS2 and its kin use them: `esd.list`, lines "FILE.wav|SPEAKER|JP|TEXT"."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.jsonl import whole_characters
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.transcripts import Line, Transcript, text_lines, transcript
from hayakuchi.errors import UserError

_SOUND_FOLDERS = ("raw", "wavs", "")


@dataclass(frozen=True)
class EsdReader:
    """Reads the lines of Japanese; sounds are looked for in raw/, wavs/ and beside the list, and nowhere else.

    Attributes:
      path: the list, or the folder with esd.list.
    """

    path: Path

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips in the order of their lines (see `SpeechReader.recordings`)."""
        listing = self.path / "esd.list" if self.path.is_dir() else self.path
        if not listing.is_file():
            raise UserError(f"{self.path}: no esd.list in it; name the list or its folder")
        seen: set[str] = set()
        for line in text_lines(listing):
            clip = line if isinstance(line, Dropped) else _recording(line, listing.parent)
            if isinstance(clip, Dropped):
                yield clip
            elif clip.name in seen:
                yield Dropped(clip.name, "listed twice", line.origin)
            else:
                seen.add(clip.name)
                yield clip


def _recording(line: Line, folder: Path) -> Recording | Dropped:
    fields = [field.strip() for field in line.text.split("|", 3)]
    if len(fields) < 4:
        return Dropped(line.origin, "no transcript", f"{len(fields)} fields; write FILE.wav|SPEAKER|JP|TEXT")
    file, speaker, language, text = fields
    if language.upper() not in ("JP", "JA"):
        return Dropped(line.origin, "another language", language)
    entry = transcript(line.origin, file, text)
    if isinstance(entry, Dropped):
        return entry
    if not speaker:
        return Dropped(line.origin, "no speaker", file)
    return _with_sound(entry, speaker, folder)


def _with_sound(entry: Transcript, speaker: str, folder: Path) -> Recording | Dropped:
    file = entry.clip.replace("\\", "/")  # of a list made on Windows
    try:
        for base in (folder / name for name in _SOUND_FOLDERS):
            audio, whole_base = (base / file).resolve(), base.resolve()
            if not audio.is_relative_to(whole_base):
                return Dropped(entry.origin, "outside the corpus", file)
            if audio.is_file():
                name = audio.relative_to(whole_base).with_suffix("").as_posix()
                return Recording(whole_characters(name), speaker, entry.text, audio)
    except (OSError, RuntimeError) as error:  # a name too long for the file system; links in a ring
        return Dropped(entry.origin, "no sound file", f"{file[:200]}: {error}"[:500])
    return Dropped(entry.origin, "no sound file", file)
