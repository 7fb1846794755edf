"""What the tokenizer is trained on: a bounded sample of lines, in pieces that SentencePiece does not pass over."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

LINE_LIMIT_BYTES = 4_192  # SentencePiece passes over longer lines without a word

# Up to 1,000 characters (4,000 bytes at most) that end a sentence, or else any 1,000.
_PART = re.compile("[^\n]{1,1000}(?<=[。．！？!?」』])|[^\n]{1,1000}")
# SentencePiece takes ▁ for a space, and passes over a line with ▅, which it keeps for itself.
_BREAK = re.compile("[\n▁▅]")


class Corpus(NamedTuple):
    """A sample of lines.

    Attributes:
      lines: UTF-8, each of at most `LINE_LIMIT_BYTES`.
      size: bytes of all lines, sampled or not.
      split: number of lines that were longer and were cut.
      skipped: number of lines, after cutting, that are not in the sample.
    """

    lines: list[bytes]
    size: int
    split: int
    skipped: int


def sample_lines(texts: Iterable[str], limit: int) -> Corpus:
    """All lines of `texts`, or a random sample of at most `limit` bytes, the same every time."""
    random = np.random.default_rng(0)
    lines: list[bytes] = []
    share, held, size, seen, split = 1.0, 0, 0, 0, 0
    for line in (line for text in texts for line in _BREAK.split(text) if line):
        parts = _short_parts(line)
        split += len(parts) > 1
        for part in parts:
            seen += 1
            size += len(part)
            if share < 1 and random.random() >= share:
                continue
            lines.append(part)
            held += len(part)
            if held > limit:
                lines = [kept for kept, coin in zip(lines, random.random(len(lines)), strict=True) if coin < 0.5]
                held, share = sum(map(len, lines)), share / 2
    return Corpus(lines, size, split, seen - len(lines))


def _short_parts(line: str) -> list[bytes]:
    # A lone surrogate becomes "?": training goes on, and the round-trip gate is where texts are refused.
    encoded = line.encode("utf-8", "replace")
    if len(encoded) <= LINE_LIMIT_BYTES:
        return [encoded]
    return [part.encode("utf-8", "replace") for part in _PART.findall(line)]
