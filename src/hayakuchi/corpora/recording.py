"""What every reader of a speech corpus gives: recordings with their transcripts, or the reason why one is left out.

No sound is read here: a reader pairs transcripts with files and knows the corpus's defects. What is wrong with a file
itself (no sound, cut, silent) comes out where it is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hayakuchi.corpora.document import Dropped

Split = Literal["train", "heldout", ""]


@dataclass(frozen=True, slots=True)
class Recording:
    """One clip of a speech corpus.

    Attributes:
      name: unique in the corpus, such as "jvs001/parallel100/VOICEACTRESS100_001".
      speaker: name of the voice.
      text: transcript, not empty, as the corpus has it.
      audio: the sound file.
      split: side of the held-out split that the corpus gives it; "" leaves the choice to whoever prepares the data.
    """

    name: str
    speaker: str
    text: str
    audio: Path
    split: Split = ""


class SpeechReader(Protocol):
    """One source of recordings."""

    def recordings(self) -> Iterator[Recording | Dropped]:
        """Gives the clips in an order of their own, the same every time; no sound is read.

        `Dropped.origin` is the clip's name where it has one, else "PATH:LINE" of its transcript.

        Raises:
          UserError: the corpus is missing, unreadable, empty or of another layout.
        """
        ...
