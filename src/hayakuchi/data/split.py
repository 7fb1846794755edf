"""The held-out split, fixed by the text of each document.

A document keeps its side whatever else is prepared with it, in whatever order, from whatever source and by however
many workers; two copies of one text never stand on both sides.
"""

import hashlib
from typing import NamedTuple

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


def is_heldout(text: str, fraction: float) -> bool:
    """Whether a normalised text belongs to the held-out split when a share of `fraction` in [0, 1] does."""
    return text_hash(text).split < threshold(fraction)
