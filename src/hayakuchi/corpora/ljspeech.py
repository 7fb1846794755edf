"""LJ Speech, 24 hours of one English speaker (Ito and Johnson 2017), and corpora of the same layout."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.transcripts import Transcript, pair, sound_files, text_lines, transcript
from hayakuchi.errors import UserError


@dataclass(frozen=True)
class LjSpeechReader:
    """Reads `metadata.csv`, lines "ID|TEXT|TEXT IN WORDS", and `wavs/`; the text in words where there is one.

    Attributes:
      path: the folder, LJSpeech-1.1.
    """

    path: Path

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips in the order of their lines (see `SpeechReader.recordings`)."""
        metadata = self.path / "metadata.csv"
        if not metadata.is_file():
            raise UserError(f"{self.path}: no metadata.csv in it; name the folder LJSpeech-1.1")
        for clip in pair(_transcripts(metadata), sound_files(self.path / "wavs")):
            if isinstance(clip, Dropped):
                yield clip
            else:
                yield Recording(clip.name, "ljspeech", clip.transcript.text, clip.audio)


def _transcripts(metadata: Path) -> Iterator[Transcript | Dropped]:
    for line in text_lines(metadata):
        if isinstance(line, Dropped):
            yield line
            continue
        # No quoting: a line may begin with a quotation mark that is never closed.
        clip, *texts = line.text.split("|")
        written, in_words = (*texts[:2], "", "")[:2]
        yield transcript(line.origin, clip, in_words if in_words.strip() else written)
