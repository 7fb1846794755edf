"""Lists as Style-Bert-VITS2 and its kin use them: `esd.list`, lines "FILE.wav|SPEAKER|JP|TEXT"."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.jsonl import whole_characters
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.transcripts import SOUND_SUFFIXES, Line, Transcript, spelling, text_lines, transcript
from hayakuchi.errors import UserError

_SOUND_FOLDERS = ("raw", "wavs", "")
_PLACES = "raw/, wavs/ or beside the list"
_OUTSIDE, _NO_SOUND = "outside the corpus", "no sound file"
# Files looked through for the one that a wrong path may mean.
_MOST_FILES = 100_000


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
        sounds = _Sounds(listing.parent)
        taken: dict[Path, str] = {}
        names: set[str] = set()
        lost: list[Dropped] = []
        for line in text_lines(listing):
            clip = line if isinstance(line, Dropped) else _recording(line, sounds)
            if isinstance(clip, Dropped):
                if clip.reason in (_OUTSIDE, _NO_SOUND):
                    lost.append(clip)
                yield clip
            elif first := taken.get(clip.audio):
                yield Dropped(clip.name, "listed twice", f"{line.origin}, first in {first}")
            else:
                taken[clip.audio] = line.origin
                if clip.name in names:  # a.mp3 beside a.ogg
                    clip = replace(clip, name=clip.name + clip.audio.suffix)
                names.add(clip.name)
                yield clip
        if lost and not taken:
            first_lost = lost[0]
            raise UserError(
                f"{listing}: none of its sound files is in {_PLACES}; the first is in line "
                f"{first_lost.origin.rpartition(':')[2]}: {first_lost.detail}"
            )


def _recording(line: Line, sounds: "_Sounds") -> Recording | Dropped:
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
    try:
        return sounds.recording(entry, speaker)
    except (OSError, RuntimeError) as error:  # a name too long for the file system; links in a ring
        return Dropped(entry.origin, _NO_SOUND, f"{file[:200]}: {error}"[:500])


class _Sounds:
    """The sound files that a list in `folder` may name."""

    def __init__(self, folder: Path) -> None:
        self._bases = [folder / name for name in _SOUND_FOLDERS]
        self._folder = folder
        self._listings: dict[Path, dict[str, list[Path]]] = {}
        self._elsewhere: dict[str, Path] | None = None

    def recording(self, entry: Transcript, speaker: str) -> Recording | Dropped:
        """The recording of a line, or why it has none."""
        file = entry.clip.replace("\\", "/")  # of a list made on Windows
        absolute = PurePosixPath(file).is_absolute() or PureWindowsPath(entry.clip).is_absolute()
        for base in self._bases:
            audio, whole_base = (base / file).resolve(), base.resolve()
            if not audio.is_relative_to(whole_base):
                if absolute and not audio.exists():
                    break
                return Dropped(entry.origin, _OUTSIDE, file)
            if audio.is_file():
                return _named(entry, speaker, audio, whole_base)
        parts = [part for part in PurePosixPath(file).parts if part not in ("/", "..")]
        # Of a path on another machine, the longest end that is a file here.
        for start in range(len(parts) if absolute else 1):
            for base in self._bases:
                found = self._alike(base, parts[start:])
                if found is None:
                    continue
                audio, whole_base = found.resolve(), base.resolve()
                if not audio.is_relative_to(whole_base):
                    return Dropped(entry.origin, _OUTSIDE, file)
                return _named(entry, speaker, audio, whole_base)
        if absolute and PurePosixPath(file).is_absolute():
            return Dropped(entry.origin, _OUTSIDE, file)
        hint = self._hint(parts[-1]) if parts else ""
        return Dropped(entry.origin, _NO_SOUND, f"{file}: not in {_PLACES}{hint}")

    def _alike(self, folder: Path, parts: list[str]) -> Path | None:
        """A file below a folder whose path has the same `spelling`; None where none or several have."""
        for part in parts:
            exact = folder / part
            if exact.exists():
                folder = exact
                continue
            alike = self._listing(folder).get(spelling(part), [])
            if len(alike) != 1:
                return None
            folder = alike[0]
        return folder if folder.is_file() else None

    def _listing(self, folder: Path) -> dict[str, list[Path]]:
        if folder not in self._listings:
            names: dict[str, list[Path]] = {}
            for path in folder.iterdir() if folder.is_dir() else ():
                names.setdefault(spelling(path.name), []).append(path)
            self._listings[folder] = names
        return self._listings[folder]

    def _hint(self, name: str) -> str:
        """Where a sound file of that name lies in the corpus."""
        if self._elsewhere is None:
            files = (Path(parent, file) for parent, _, files in os.walk(self._folder) for file in sorted(files))
            sounds = (path for path in islice(files, _MOST_FILES) if path.suffix.lower() in SOUND_SUFFIXES)
            self._elsewhere = {spelling(path.name): path.relative_to(self._folder) for path in sounds}
        found = self._elsewhere.get(spelling(name))
        return f"; {whole_characters(str(found))} has that name: move it, or correct the list" if found else ""


def _named(entry: Transcript, speaker: str, audio: Path, base: Path) -> Recording:
    name = audio.relative_to(base).with_suffix("").as_posix()
    return Recording(whole_characters(name), speaker, entry.text, audio)
