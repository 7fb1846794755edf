"""The held-out split, fixed by the text of each document.

A document keeps its side whatever else is prepared with it, in whatever order, from whatever source and by however
many workers, and two copies of one text stand on the same side. Only in a code of very few documents a second rule may
move some (`Staging.thresholds`), so that both sides have one.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hayakuchi.text.normalise import normalise

HASH_SPAN = 1 << 64
"""Hashes are in [0, HASH_SPAN)."""


class TextHash(NamedTuple):
    """Two independent 64-bit hashes of a text, both uniform.

    Attributes:
      split: decides the side of the split.
      sample: orders documents where a random sample is drawn.
    """

    split: int
    sample: int


def text_hash(text: str) -> TextHash:
    """Hashes a normalised text (BLAKE2b, RFC 7693)."""
    # A lone surrogate has no UTF-8; a hash of it is still wanted.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return TextHash(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))


def threshold(fraction: float) -> int:
    """Texts whose split hash is below this number are held out: a share of `fraction` of all texts."""
    return round(fraction * HASH_SPAN)


def sentence_hash(text: str) -> int:
    """The split hash of a spoken sentence, of its letters and digits alone: the punctuation differs between corpora.

    Args:
      text: a transcript as its corpus has it.
    """
    folded = normalise(text, "nfkc")
    return text_hash("".join(filter(str.isalnum, folded)) or folded.strip()).split


@dataclass
class SentenceSplit:
    """The sides of spoken sentences over all corpora: every sentence is on one side, whoever speaks it.

    What any corpus holds out is held out everywhere; then what any corpus trains on is trained on; the hash decides on
    the others.

    Attributes:
      below: held out are the undecided sentences whose hash is below this number.
    """

    below: int = 0
    _given: dict[Literal["train", "heldout"], set[int]] = field(
        default_factory=lambda: {"train": set(), "heldout": set()}
    )
    _free: set[int] = field(default_factory=set)

    def add(self, sentence: int, given: Literal["train", "heldout", ""]) -> None:
        """Notes a sentence, by its `sentence_hash`, and the side that its corpus gives it, if any."""
        if given:
            self._given[given].add(sentence)
        else:
            self._free.add(sentence)

    def decide(self, fraction: float) -> None:
        """Chooses `below`, once all sentences are noted; of very few, one at least is on each side."""
        undecided = self._free - self._given["train"] - self._given["heldout"]
        lowest, highest = min(undecided, default=HASH_SPAN), max(undecided, default=0)
        general = threshold(fraction)
        self.below = min(max(general, lowest + 1), highest) if general and lowest < highest else 0

    def side(self, sentence: int) -> Literal["train", "heldout"]:
        """The side of a sentence, once `decide` was called."""
        for given in ("heldout", "train"):
            if sentence in self._given[given]:
                return given
        return self.alone(sentence, "")

    def alone(self, sentence: int, given: Literal["train", "heldout", ""]) -> Literal["train", "heldout"]:
        """The side that its corpus alone gives it, or the hash."""
        return given or ("heldout" if sentence < self.below else "train")
