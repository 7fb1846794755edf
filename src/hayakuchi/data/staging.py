"""What `prepare text` keeps between reading a corpus and encoding it: texts on disk, a few numbers a text in memory."""

import heapq
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from hayakuchi.data.split import HASH_SPAN, TextHash, threshold


class Stretch(NamedTuple):
    """Texts that lie one after another in the staging file; the unit of work of encoding.

    Attributes:
      path: the staging file.
      start: where the first text starts, in bytes.
      sizes: bytes of each text.
    """

    path: Path
    start: int
    sizes: list[int]

    def read(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return [file.read(size).decode("utf-8") for size in self.sizes]


class Staging:
    """Normalised texts in one file of UTF-8, in the order they came; a context manager that closes the file.

    Attributes:
      sizes: bytes of each text.
      characters: code points of each text.
      codes: number of each text's code, in the order of `code_names`.
      split_hashes: `TextHash.split` of each text.
      code_names: codes in the order of their first text.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._numbers: dict[str, int] = {}
        self.sizes = array("I")
        self.characters = array("I")
        self.codes = array("I")
        self.split_hashes = array("Q")

    def add(self, text: bytes, characters: int, code: str, split_hash: int) -> None:
        self._file.write(text)
        self.sizes.append(len(text))
        self.characters.append(characters)
        self.codes.append(self._numbers.setdefault(code, len(self._numbers)))
        self.split_hashes.append(split_hash)

    def __len__(self) -> int:
        return len(self.sizes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def code_names(self) -> list[str]:
        return list(self._numbers)

    def stretches(self, size: int) -> Iterator[Stretch]:
        """All texts in stretches of `size` bytes or one text more."""
        start, end, sizes = 0, 0, []
        for text_size in self.sizes:
            sizes.append(text_size)
            end += text_size
            if end - start >= size:
                yield Stretch(self._path, start, sizes)
                start, sizes = end, []
        if sizes:
            yield Stretch(self._path, start, sizes)

    def thresholds(self, fraction: float) -> list[int]:
        """For each code the number below which the hash of a held-out text lies.

        It is the same for all codes but those so small that none or all of their texts fell below it: there the text
        with the smallest hash is held out, and the one with the largest is not. A single text is not held out.
        """
        general = threshold(fraction)
        lowest, highest = [HASH_SPAN] * len(self._numbers), [0] * len(self._numbers)
        for code, value in zip(self.codes, self.split_hashes, strict=True):
            lowest[code] = min(lowest[code], value)
            highest[code] = max(highest[code], value)
        if not general:
            return [0] * len(lowest)
        return [
            min(max(general, low + 1), high) if low < high else 0 for low, high in zip(lowest, highest, strict=True)
        ]


_SPREAD = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: its multiples, modulo 2**64, are spread evenly."""


class SampledText(NamedTuple):
    """A text, or a piece of one, of a `Sample`; `order` is the largest for the text to keep longest."""

    order: int
    split_hash: int
    code: str
    text: bytes


class Sample:
    """A random sample of texts of bounded size, the same in whatever order the texts come.

    It keeps the texts with the smallest sampling hashes.

    Args:
      limit_bytes: size of the whole sample. A text longer than a 20th of it is drawn in pieces, each by a hash of its
        own: a huge text has its share and no more, and where it is the only one the sample is of all its parts.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._piece_bytes = max(limit_bytes // 20, 1)
        self._size = 0
        self._heap: list[SampledText] = []

    def add(self, text: bytes, code: str, hashes: TextHash) -> None:
        for start in range(0, len(text), self._piece_bytes):
            piece = text[start : start + self._piece_bytes]
            order = (hashes.sample + start * _SPREAD) % (1 << 64)
            heapq.heappush(self._heap, SampledText(-order, hashes.split, code, piece))
            self._size += len(piece)
            while self._size > self._limit:
                self._size -= len(heapq.heappop(self._heap).text)

    def texts(self) -> list[SampledText]:
        """What was kept; the first and last character of a piece may be incomplete."""
        return sorted(self._heap, reverse=True)
