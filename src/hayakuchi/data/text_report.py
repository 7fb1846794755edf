"""What `prepare text` says it did: `report.json`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hayakuchi.corpora.document import Dropped, Reader
from hayakuchi.data.shards import Counts

EXAMPLES = 5
"""Dropped documents that a report names for each source and reason."""


@dataclass
class DropReport:
    """How many documents were dropped for one reason, and the first few of them."""

    documents: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)


@dataclass
class SourceReport:
    """What one source gave.

    Attributes:
      source: its path, or its kind where it has none.
      records: raw pieces read.
      input_bytes: their size.
      documents_in: documents found in them, those dropped included.
      documents_out: documents that are in the data set.
      dropped: the others, by reason.
    """

    source: str
    records: int = 0
    input_bytes: int = 0
    documents_in: int = 0
    documents_out: int = 0
    dropped: dict[str, DropReport] = field(default_factory=dict)

    @classmethod
    def of(cls, reader: Reader) -> "SourceReport":
        return cls(str(getattr(reader, "path", "embedded")))  # the one reader without a path

    def drop(self, dropped: Dropped) -> None:
        report = self.dropped.setdefault(dropped.reason, DropReport())
        report.documents += 1
        if len(report.examples) < EXAMPLES:
            report.examples.append({"origin": dropped.origin, "detail": dropped.detail})


def reasons(sources: Iterable[SourceReport]) -> dict[str, int]:
    """Documents dropped for each reason over all sources, the most frequent first."""
    total: Counter[str] = Counter()
    for source in sources:
        total.update({reason: drop.documents for reason, drop in source.dropped.items()})
    return dict(total.most_common())


def nothing_left(sources: Sequence[SourceReport]) -> str:
    """The message for a corpus without a single document."""
    names = ", ".join(source.source for source in sources)
    why = ", ".join(f"{count} {reason}" for reason, count in reasons(sources).items())
    example = next(
        (f"; the first is {e['origin']}" for s in sources for d in s.dropped.values() for e in d.examples), ""
    )
    return f"no document left to prepare from {names or 'no source'}: {f'dropped {why}{example}' if why else 'empty'}"


def text_rates(counts: Iterable[Counts], byte_tokens: int) -> dict[str, float]:
    """Characters per token and share of byte tokens; <eos> is no token of a text."""
    counted = list(counts)
    tokens = max(sum(count.tokens - count.documents for count in counted), 1)
    characters = sum(count.characters for count in counted)
    return {"characters_per_token": characters / tokens, "byte_fallback_rate": byte_tokens / tokens}


def sources_summary(sources: Sequence[SourceReport]) -> dict[str, Any]:
    """Documents in and out, over all sources and for each."""
    return {
        "documents_in": sum(source.documents_in for source in sources),
        "documents_out": sum(source.documents_out for source in sources),
        "dropped": reasons(sources),
        "sources": [asdict(source) for source in sources],
    }


def summary(report: dict[str, Any]) -> str:
    """A report in a few lines of text."""
    lines = [f"documents: {report['documents_out']:,} of {report['documents_in']:,}"]
    lines += [f"  dropped, {reason}: {count:,}" for reason, count in report["dropped"].items()]
    for split, by_code in report["splits"].items():
        for code, counts in by_code.items():
            lines.append(
                f"{split} {code}: {counts['documents']:,} documents, {counts['tokens']:,} tokens, "
                f"{counts['characters']:,} characters"
            )
    lines.append(
        f"vocabulary: {report['vocabulary_size']:,} pieces, {report['characters_per_token']:.2f} characters a token, "
        f"{100 * report['byte_fallback_rate']:.2f}% bytes"
    )
    lines.append(
        f"{report['input_megabytes']:.1f} MB at {report['megabytes_per_second']:.1f} MB/s without the tokenizer's "
        f"{report['seconds']['tokenizer']:.0f} s; peak memory {report['peak_memory_bytes'] / 1e6:,.0f} MB"
    )
    return "\n".join([*lines, *report["notes"]])
