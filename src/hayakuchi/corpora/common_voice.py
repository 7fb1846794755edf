"""Common Voice, sentences read by volunteers (Ardila et al. 2020, arXiv 1912.06670)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.jsonl import whole_characters
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.transcripts import SoundNames, sound_files, text_lines, transcript
from hayakuchi.errors import UserError

_LISTS = ("validated.tsv", "train.tsv", "dev.tsv", "test.tsv")
_COLUMNS = ("client_id", "path", "sentence")
_CLIENT_ID = re.compile("[0-9a-f]{64,}")
_SHOWN_CHARACTERS = 12  # of a hash of 128: two of a million speakers agree once in 500 corpora


@dataclass(frozen=True)
class CommonVoiceReader:
    """Reads the clips of validated.tsv, train.tsv, dev.tsv and test.tsv, each once; a speaker is a client.

    The split of the corpus is not taken over: its sides have no speaker in common, so a voice that was learned from
    one could not be heard on the other.

    Attributes:
      path: the folder of the language, with `clips/`, or one around it that has only one language.
    """

    path: Path

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips in the order of the lists (see `SpeechReader.recordings`)."""
        root = _language_folder(self.path)
        lists = [root / name for name in _LISTS if (root / name).is_file()]
        if not lists:
            raise UserError(f"{root}: none of {', '.join(_LISTS)} in it; name the folder of a language")
        clips = sound_files(root / "clips")
        names = SoundNames(clips)
        seen: set[str] = set()
        for path in lists:
            for row in _rows(path):
                if isinstance(row, Dropped):
                    yield row
                    continue
                origin, client, file, sentence = row
                path_given = PurePosixPath(file)
                found = names.find(path_given.name) or names.find(path_given.stem)
                clip = found or path_given.stem
                if clip in seen:  # every clip of the other lists stands in validated.tsv too
                    continue
                seen.add(clip)
                entry = transcript(origin, clip, sentence)
                if isinstance(entry, Dropped):
                    yield entry
                elif found is None:
                    yield Dropped(whole_characters(clip), "no sound file", f"it has a transcript: {origin}")
                else:
                    yield Recording(clip, _speaker(client), entry.text, clips[clip])


def _language_folder(path: Path) -> Path:
    if (path / "clips").is_dir():
        return path
    languages = sorted(folder.parent for folder in path.glob("*/clips"))
    if len(languages) == 1:
        return languages[0]
    found = f"; name one of {', '.join(folder.name for folder in languages[:10])}" if languages else ""
    raise UserError(f"{path}: no folder clips in it{found or '; name the folder of a language'}")


def _rows(path: Path) -> Iterator[tuple[str, str, str, str] | Dropped]:
    """(origin, client, file, sentence) of each line."""
    places: list[int] | None = None
    for line in text_lines(path):
        if isinstance(line, Dropped):
            yield line
            continue
        values = line.text.split("\t")  # nothing is quoted there: 「"」 stands for itself
        if places is None:
            missing = [column for column in _COLUMNS if column not in values]
            if missing:
                raise UserError(f"{line.origin}: no column {missing[0]}; the first line names the columns, by tabs")
            places = [values.index(column) for column in _COLUMNS]
        elif len(values) <= max(places):
            yield Dropped(line.origin, "no transcript", f"{len(values)} columns")
        else:
            client, file, sentence = (values[place].strip() for place in places)
            yield line.origin, client, file, sentence


def _speaker(client: str) -> str:
    return client[:_SHOWN_CHARACTERS] if _CLIENT_ID.fullmatch(client) else client or "unknown"
