"""What `prepare speech` says it did: `report.json`."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hayakuchi.data.speech_files import DroppedClip
from hayakuchi.data.speech_shards import SpeechInfo
from hayakuchi.speech.frontend import Unread
from hayakuchi.speech.symbols import PAD_ID, Inventory

UNREAD_WORDS = 200
"""Different words that the report names, those with most occurrences first."""
_UNREAD_LIMIT = 100_000
_SHOWN_CHARACTERS = 40


@dataclass
class UnreadWords:
    """Words of transcripts that were not, or not surely, read as they are written; in bounded memory.

    Attributes:
      words: their number.
      clips: clips with one or more.
    """

    words: int = 0
    clips: int = 0
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _examples: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, unread: Iterable[Unread]) -> None:
        """Notes what could not be read of the transcript of the clip `name`."""
        # A sentence of signs alone loses nothing; a clip of nothing else is dropped and named.
        found = [(item.text[:_SHOWN_CHARACTERS], item.reason) for item in unread if item.reason != "nothing to say"]
        self.words += len(found)
        self.clips += bool(found)
        for word in found:
            if word in self._counts or len(self._counts) < _UNREAD_LIMIT:
                self._counts[word] += 1
                self._examples.setdefault(word, name)

    def to_dict(self) -> dict[str, Any]:
        """For the report."""
        top = [
            {"text": word[0], "reason": word[1], "count": count, "clip": self._examples[word]}
            for word, count in self._counts.most_common(UNREAD_WORDS)
        ]
        return {"clips": self.clips, "words": self.words, "different": len(self._counts), "top": top}


def symbol_statistics(counts: np.ndarray, inventory: Inventory, clips: int) -> dict[str, Any]:
    """How often each symbol occurs in the training clips; `counts` is int [inventory.size]."""
    by_symbol = {symbol: int(counts[index]) for index, symbol in enumerate(inventory.symbols) if index != PAD_ID}
    return {
        "inventory_version": inventory.version,
        "total": sum(by_symbol.values()),
        "mean_per_clip": sum(by_symbol.values()) / max(clips, 1),
        "counts": by_symbol,
        "unused": [symbol for symbol, count in by_symbol.items() if not count],
    }


def split_statistics(info: SpeechInfo) -> dict[str, Any]:
    """Clips and seconds of each split, in all and by speaker."""
    return {
        split: {
            "clips": sum(count.clips for count in counts.values()),
            "seconds": sum(count.seconds for count in counts.values()),
            "speakers": {name: asdict(count) for name, count in counts.items()},
        }
        for split, counts in info.counts.items()
    }


def alike_speakers(speakers: Sequence[str]) -> list[list[str]]:
    """Groups of speakers whose names differ only in upper and lower case or in half and full width."""
    groups: dict[str, list[str]] = {}
    for name in speakers:
        groups.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def named(clips: Iterable[DroppedClip]) -> dict[str, Any]:
    """Clips by reason: how many, and every one of them."""
    listed = list(clips)
    return {
        "reasons": dict(Counter(clip.reason for clip in listed).most_common()),
        "clips": [asdict(clip) for clip in listed],
    }


def nothing_left(dropped: list[DroppedClip]) -> str:
    """The message for a corpus without a single clip to train on."""
    if not dropped:
        return "no clip to train on: the sources are empty, or all their clips are held out"
    why = ", ".join(f"{count} {reason}" for reason, count in named(dropped)["reasons"].items())
    first = dropped[0]
    return f"no clip to train on: dropped {why}; the first is {first.name}: {first.reason} ({first.detail})"


def summary(report: dict[str, Any]) -> str:
    """A report in a few lines of text."""
    lines = [f"clips: {report['clips_out']:,} of {report['clips_in']:,}"]
    lines += [f"  dropped, {reason}: {count:,}" for reason, count in report["dropped"]["reasons"].items()]
    lines += [f"  kept, {reason}: {count:,}" for reason, count in report["warnings"]["reasons"].items()]
    for split, found in report["splits"].items():
        lines.append(
            f"{split}: {found['clips']:,} clips, {found['seconds'] / 3600:.2f} hours, {len(found['speakers'])} speakers"
        )
    lines += [
        f"  moved to {split}, where another corpus has the sentence: {count:,} clips"
        for split, count in report["moved"].items()
        if count
    ]
    lines += [
        f"speakers whose names differ only in case or width, kept apart: {', '.join(names)}; "
        "if they are one speaker, give the lists one name"
        for names in report["alike_speakers"]
    ]
    if report["unread"]["words"]:
        words = ", ".join(word["text"] for word in report["unread"]["top"][:5])
        lines.append(
            f"not surely read: {report['unread']['words']:,} words in {report['unread']['clips']:,} clips ({words})"
        )
    if report["symbols"]["unused"]:
        lines.append(f"symbols that no training clip has: {' '.join(report['symbols']['unused'])}")
    shards = ", ".join(f"{count:,} {status}" for status, count in report["shards"].items() if count)
    lines.append(
        f"{report['source_seconds'] / 3600:.2f} hours of sound in {report['wall_seconds']:.1f} s, "
        f"{report['times_real_time']:,.0f} x real time; shards: {shards}; "
        f"peak memory {report['peak_memory_bytes'] / 1e6:,.0f} MB"
    )
    return "\n".join(lines)
