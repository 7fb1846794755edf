"""JSUT, ten hours of one Japanese speaker (Sonobe et al. 2017, arXiv 1711.00354)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.transcripts import colon_transcripts, pair, sound_files
from hayakuchi.errors import UserError

_TRANSCRIPTS = "transcript_utf8.txt"


@dataclass(frozen=True)
class JsutReader:
    """Reads all subsets, `SUBSET/{transcript_utf8.txt,wav/*.wav}`.

    No split is usual, and sentences recur (those of repeat500 five times), so it is left to whoever splits by text.

    Attributes:
      path: the folder of the subsets, jsut_ver1.1, or one subset.
    """

    path: Path

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips, subset by subset (see `SpeechReader.recordings`)."""
        subsets = sorted(file.parent for file in self.path.glob(f"*/{_TRANSCRIPTS}"))
        if (self.path / _TRANSCRIPTS).is_file():
            subsets = [self.path]
        if not subsets:
            raise UserError(f"{self.path}: no {_TRANSCRIPTS} in its folders; name the folder jsut_ver1.1")
        for subset in subsets:
            transcripts = colon_transcripts(subset / _TRANSCRIPTS)
            for clip in pair(transcripts, sound_files(subset / "wav"), f"{subset.resolve().name}/"):
                if isinstance(clip, Dropped):
                    yield clip
                else:
                    yield Recording(clip.name, "jsut", clip.transcript.text, clip.audio)
