"""Duplicate documents: the same text again, or nearly the same.

Two documents are duplicates if their texts are equal without whitespace, and near-duplicates if the sets of their
character 5-grams are alike: estimated by MinHash (Broder 1997) and looked up by its bands (locality-sensitive hashing).
Characters rather than words, since Japanese does not separate words (datatrove#72).

`signature` is the slow half and runs in worker processes; `Deduplicator.add` looks one up and remembers it.
"""

import hashlib
from array import array
from functools import cache
from typing import Any, NamedTuple

from hayakuchi.errors import UserError

MODES = ("none", "exact", "near")

_GRAM = 5
_CHUNK_CHARACTERS = 1 << 16  # bounds the memory that the 5-grams of a long text take

# One byte of each MinHash value is kept: two values that differ agree in it once in 256 times, which is well below
# the error of the estimate (0.04 at a similarity of 0.7).
_VALUES = 128
# A pair of similarity s shares one of 25 bands of 5 values with probability 1 - (1 - s**5) ** 25: 0.99 at 0.7.
_BANDS = 25
_ROWS = 5


class Signature(NamedTuple):
    """What is remembered of a document.

    Attributes:
      exact: hash of the text without whitespace; b"" in mode "none".
      near: `_VALUES` bytes of MinHash; b"" where near-duplicates are not looked for.
    """

    exact: bytes
    near: bytes


def signature(text: str, mode: str = "near") -> Signature:
    """The signature of a normalised text. Pure; takes time linear in the text and little memory.

    Without the library `rensa` (the extra "corpora"), mode "near" gives what "exact" gives.

    Raises:
      UserError: `mode` is not one of `MODES`.
    """
    _check(mode)
    if mode == "none":
        return Signature(b"", b"")
    # A text that was not normalised may hold lone surrogates, which neither library takes.
    compact = "".join(text.split()).encode("utf-8", "replace")
    exact = hashlib.blake2b(compact, digest_size=16).digest()
    return Signature(exact, _minhash(compact.decode()) if mode == "near" and _rensa() else b"")


class Deduplicator:
    """Finds documents that were seen before, in a stream.

    Takes about 0.7 kB of memory a document in mode "near" and 0.1 kB in mode "exact". Which documents are duplicates
    depends on their order alone.

    Attributes:
      note: what the user should know: that near-duplicates are not looked for, since a library is missing; or "".
    """

    def __init__(self, mode: str = "near", threshold: float = 0.7) -> None:
        """Starts empty.

        Args:
          mode: "near", "exact" or "none" (nothing is a duplicate).
          threshold: similarity (Jaccard index of the sets of 5-grams) from which on a document is a near-duplicate.
            One other word in a paragraph of 60 characters gives about 0.8.

        Raises:
          UserError: no such mode, or a threshold outside (0, 1].
        """
        _check(mode)
        if not 0 < threshold <= 1:
            raise UserError(f"threshold={threshold!r} of near-duplicates must be in (0, 1]")
        self._exact: set[bytes] = set()
        self._near = _NearIndex(threshold)
        self.note = ""
        if mode == "near" and not _rensa():
            self.note = "only exact duplicates are dropped: near ones need `pip install 'hayakuchi[corpora]'`"

    def add(self, found: Signature) -> str | None:
        """Why a document is to be dropped, "duplicate" or "near-duplicate"; None if it is new, which is remembered."""
        if not found.exact:
            return None
        if found.exact in self._exact:
            return "duplicate"
        if found.near and self._near.find_or_add(found.near):
            return "near-duplicate"
        self._exact.add(found.exact)
        return None


class _NearIndex:
    """MinHash values of documents, and a hash table from each band to the first document that has it.

    Plain arrays with linear probing: a dict of bands takes four times the memory. One document a band keeps the cost of
    a look-up fixed however many documents share a text that stands on every page.
    """

    def __init__(self, threshold: float) -> None:
        self._needed = threshold * _VALUES
        self._values = bytearray()  # _VALUES bytes a document
        self._table = array("i", [-1]) * 1_024  # numbers of documents; -1 is free

    def find_or_add(self, values: bytes) -> bool:
        """Whether a similar document is known; if not, adds this one."""
        slots = [self._slot(values, band) for band in range(_BANDS)]
        candidates = {self._table[slot] for slot in slots} - {-1}
        if any(self._similar(document, values) for document in candidates):
            return True
        document = len(self._values) // _VALUES
        self._values += values
        self._enter(document, values)
        if 2 * _BANDS * document > len(self._table):
            self._grow()
        return False

    def _similar(self, document: int, values: bytes) -> bool:
        known = self._values[document * _VALUES : (document + 1) * _VALUES]
        return sum(map(int.__eq__, known, values)) >= self._needed

    def _slot(self, values: bytes, band: int) -> int:
        """The slot of the first document with this band, or the free one where it would go."""
        table, mask = self._table, len(self._table) - 1
        start = band * _ROWS
        key = values[start : start + _ROWS]
        slot = hash((band, key)) & mask
        while (document := table[slot]) >= 0:
            at = document * _VALUES + start
            if self._values[at : at + _ROWS] == key:
                break
            slot = (slot + 1) & mask
        return slot

    def _enter(self, document: int, values: bytes) -> None:
        for band in range(_BANDS):
            slot = self._slot(values, band)
            if self._table[slot] < 0:
                self._table[slot] = document

    def _grow(self) -> None:
        self._table = array("i", [-1]) * (2 * len(self._table))
        for document in range(len(self._values) // _VALUES):
            self._enter(document, bytes(self._values[document * _VALUES : (document + 1) * _VALUES]))


def _check(mode: str) -> None:
    if mode not in MODES:
        raise UserError(f"deduplication mode {mode!r} is not one of {', '.join(MODES)}")


@cache
def _rensa() -> Any:
    """The library, or None."""
    try:
        import rensa
    except ImportError:
        return None
    return rensa


def _minhash(text: str) -> bytes:
    sketch = _rensa().RMinHash(num_perm=_VALUES, seed=42)
    grams = max(len(text) - _GRAM + 1, 1)
    for start in range(0, grams, _CHUNK_CHARACTERS):
        stop = min(start + _CHUNK_CHARACTERS, grams)
        sketch.update([text[i : i + _GRAM] for i in range(start, stop)])
    return bytes([value & 0xFF for value in sketch.digest()])
