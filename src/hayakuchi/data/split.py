"""The held-out split, fixed by the text of each document.

A document keeps its side whatever else is prepared with it, in whatever order, from whatever source and by however
many workers, and two copies of one text stand on the same side. Only in a code of very few documents a second rule may
move some (`Staging.thresholds`), so that both sides have one.
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
