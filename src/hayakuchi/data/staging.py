"""What `prepare text` keeps between reading a corpus and encoding it: texts on disk, a few numbers a text in memory."""

import heapq
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from hayakuchi.data.split import TextHash, threshold


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

        It is the same for all codes but those so small that no text of theirs fell below it: there the text with the
        smallest hash is held out, unless it is the only one.
        """
        general = threshold(fraction)
        lowest: list[list[int]] = [[] for _ in self._numbers]
        for code, value in zip(self.codes, self.split_hashes, strict=True):
            lowest[code] = heapq.nsmallest(2, {*lowest[code], value})
        if not general:
            return [0] * len(lowest)
        return [max(general, values[0] + 1) if len(values) > 1 else 0 for values in lowest]


class SampledText(NamedTuple):
    """A text of a `Sample`; `order` is the largest for the text to keep longest."""

    order: int
    split_hash: int
    code: str
    text: bytes


class Sample:
    """A random sample of texts of bounded size, the same in whatever order the texts come.

    It keeps the texts with the smallest sampling hashes.

    Args:
      limit_bytes: size of the whole sample, and of the longest beginning of a text that is kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._heap: list[SampledText] = []

    def add(self, text: bytes, code: str, hashes: TextHash) -> None:
        text = text[: self._limit]
        heapq.heappush(self._heap, SampledText(-hashes.sample, hashes.split, code, text))
        self._size += len(text)
        while self._size > self._limit:
            self._size -= len(heapq.heappop(self._heap).text)

    def texts(self) -> list[SampledText]:
        """What was kept; the last character of a text that was cut may be incomplete."""
        return sorted(self._heap, reverse=True)
