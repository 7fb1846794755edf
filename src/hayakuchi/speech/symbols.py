"""The symbols a speech model reads: phones of OpenJTalk and the prosody marks of Kurihara et al. (2021).

| symbol | meaning |
| --- | --- |
| `^` | start of an utterance |
| `$` `?` | its end; the end of a question |
| `_` | pause |
| `#` | boundary of accent phrases |
| `[` `]` | pitch rises, pitch falls |
| `A` `I` `U` `E` `O` | devoiced vowels |
| `N` `cl` | ん, っ |

A model keeps the inventory it was trained with (`Inventory.to_dict`), so that a later version of this file does not
move its ids.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hayakuchi.errors import UserError

PAD = "<pad>"
PAD_ID = 0
START, END, QUESTION, PAUSE, PHRASE, RISE, FALL = MARKS = ("^", "$", "?", "_", "#", "[", "]")
VOWELS = ("a", "i", "u", "e", "o")
DEVOICED_VOWELS = ("A", "I", "U", "E", "O")
# What an accent phrase can end with.
MORA_ENDS = frozenset((*VOWELS, *DEVOICED_VOWELS, "N", "cl"))

INVENTORY_VERSION = 1


@dataclass(frozen=True)
class Inventory:
    """A fixed set of symbols and their ids.

    Attributes:
      version: number that changes whenever the rest does.
      symbols: every symbol at the index that is its id; the first is `PAD`, which fills batches and is no sound.
      fallbacks: for phones that are too rare to learn, the symbols that stand for each.
    """

    version: int
    symbols: tuple[str, ...]
    fallbacks: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if self.symbols[:1] != (PAD,) or len(set(self.symbols)) != len(self.symbols):
            raise UserError(f"symbol inventory: the first symbol must be {PAD}, and each must stand there once")
        if missing := set(MARKS).difference(self.symbols):
            raise UserError(f"symbol inventory: it lacks the marks {' '.join(sorted(missing))}")
        for phone, stand_in in self.fallbacks.items():
            if not stand_in or not self.known(stand_in):
                raise UserError(f"symbol inventory: the fallback of {phone!r} is not made of its symbols")

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The id of every symbol."""
        return {symbol: index for index, symbol in enumerate(self.symbols)}

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.symbols)

    def known(self, symbols: Iterable[str]) -> bool:
        """Whether each symbol has an id of its own that is not padding."""
        return all(self.ids.get(symbol, PAD_ID) != PAD_ID for symbol in symbols)

    def resolve(self, symbol: str) -> tuple[str, ...]:
        """What stands for a symbol: itself, its fallback, or for one that is not known a pause."""
        if self.known((symbol,)):
            return (symbol,)
        return self.fallbacks.get(symbol, (PAUSE,))

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """The ids of symbols after `resolve`; none is `PAD_ID`."""
        return [self.ids[part] for symbol in symbols for part in self.resolve(symbol)]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The symbols of ids, without padding.

        Raises:
          UserError: an id out of range.
        """
        numbers = list(ids)
        if wrong := [number for number in numbers if not 0 <= number < self.size]:
            raise UserError(f"symbol id {wrong[0]} is not in 0..{self.size - 1}: these ids are of another inventory")
        return [self.symbols[number] for number in numbers if number != PAD_ID]

    def to_dict(self) -> dict[str, Any]:
        """The inventory as plain JSON values."""
        return {
            "version": self.version,
            "symbols": list(self.symbols),
            "fallbacks": {phone: list(stand_in) for phone, stand_in in self.fallbacks.items()},
        }

    @classmethod
    def from_dict(cls, values: object, where: str) -> "Inventory":
        """Reads what `to_dict` gave.

        Raises:
          UserError: another shape, or symbols that contradict each other; `where` names the file.
        """
        match values:
            case {"version": int(version), "symbols": list(symbols), "fallbacks": dict(fallbacks), **rest} if not rest:
                if all(map(_is_text, [symbols, *fallbacks.values()])):
                    try:
                        return cls(version, tuple(symbols), {name: tuple(parts) for name, parts in fallbacks.items()})
                    except UserError as error:
                        raise UserError(f"{where}: {error}") from error
        raise UserError(f"{where}: not a symbol inventory; it has version, symbols and fallbacks")


def with_blanks(ids: Sequence[int]) -> list[int]:
    """N ids -> 2N + 1, `PAD_ID` before, between and after them: room for durations (arXiv 2106.06103, section 2.1)."""
    spread = [PAD_ID] * (2 * len(ids) + 1)
    spread[1::2] = ids
    return spread


def _is_text(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


INVENTORY = Inventory(
    version=INVENTORY_VERSION,
    symbols=(
        PAD,
        *MARKS,
        *VOWELS,
        *DEVOICED_VOWELS,
        *("N", "cl"),
        *("b", "by", "ch", "d", "f", "g", "gy", "h", "hy", "j", "k", "ky", "m", "my", "n", "ny"),
        *("p", "py", "r", "ry", "s", "sh", "t", "ts", "v", "w", "y", "z"),
    ),
    # クァ グァ テュ デュ フュ and their like: a few times in thousands of sentences.
    fallbacks={"kw": ("k", "w"), "gw": ("g", "w"), "ty": ("t", "y"), "dy": ("d", "y"), "fy": ("f", "y")},
)
