"""Control codes: their names, and the slots of the vocabulary they take.

A tokenizer always carries `CODE_SLOTS` control symbols. Slot 0 is the unconditional code, which has no name; a data
set gives the others to the names of its codes, so that one tokenizer serves many corpora.
"""

import difflib
import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from hayakuchi.errors import UserError

CODE_SLOTS = 64
UNCONDITIONAL = ""

# \w is every letter and digit of Unicode, so kana, kanji, ー, 々 and 〇 too.
_NAME = re.compile(r"[\w-]{1,32}")


def check_code_name(name: str, where: str) -> str:
    """The name of a control code in its one spelling (NFKC, so that ﾆｭｰｽ and ニュース are one code).

    Args:
      name: 1-32 characters: letters of any script, digits, "_" and "-".
      where: what gave the name (an option, a file and line), for the message.

    Raises:
      UserError: `name` is empty, too long or has another character.
    """
    spelling = _spelling(name)
    if not _NAME.fullmatch(spelling):
        raise UserError(
            f"{where}: {reprlib.repr(name)} cannot be the name of a code: use 1-32 letters, digits, '_' or '-'"
        )
    return spelling


@dataclass(frozen=True)
class CodeBook:
    """The codes of a data set.

    Attributes:
      slots: slot (1..63) of every named code. The unconditional code, "", is always slot 0 and not listed.
    """

    slots: dict[str, int]

    @classmethod
    def from_names(cls, names: Iterable[str], where: str = "codes") -> "CodeBook":
        """Gives out slots 1, 2, ... in the order of `names`; a repeated name counts once.

        Raises:
          UserError: a malformed name, or more names than slots.
        """
        unique = list(dict.fromkeys(check_code_name(name, where) for name in names))
        if len(unique) >= CODE_SLOTS:
            raise UserError(f"{where}: {len(unique)} codes; there is room for {CODE_SLOTS - 1}: merge some of them")
        return cls({name: slot for slot, name in enumerate(unique, start=1)})

    @classmethod
    def from_dict(cls, values: object, where: str) -> "CodeBook":
        """Reads what `to_dict` gave.

        Raises:
          UserError: not an object of names and slots, a slot out of range or given twice.
        """
        if not isinstance(values, dict):
            raise UserError(f"{where}: expected an object of code names and slots, found {type(values).__name__}")
        slots: dict[str, int] = {}
        for name, slot in values.items():
            # The name is a key of JSON, hence a string.
            if check_code_name(name, where) != name:
                raise UserError(f"{where}: code name {name!r} is not in NFKC; write the data set anew")
            if not isinstance(slot, int) or isinstance(slot, bool) or not 1 <= slot < CODE_SLOTS:
                raise UserError(f"{where}: code {name!r} has slot {slot!r}; slots are 1..{CODE_SLOTS - 1}")
            if slot in slots.values():
                raise UserError(f"{where}: code {name!r} has slot {slot}, which another code has too")
            slots[name] = slot
        return cls(slots)

    def to_dict(self) -> dict[str, int]:
        """The slots as plain JSON values."""
        return dict(self.slots)

    @property
    def names(self) -> list[str]:
        """The named codes in the order of their slots."""
        return sorted(self.slots, key=self.slots.__getitem__)

    def slot(self, name: str, where: str = "code") -> int:
        """The slot of a code; 0 for the unconditional code "".

        Raises:
          UserError: the data set has no code of that name.
        """
        if name == UNCONDITIONAL:
            return 0
        spelling = _spelling(name)
        if spelling in self.slots:
            return self.slots[spelling]
        close = difflib.get_close_matches(spelling, self.slots, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(
            f"{where}: unknown code {reprlib.repr(name)}; {hint}known are {', '.join(self.names) or 'none'}"
        )

    def name(self, slot: int) -> str:
        """The name of the code in `slot`; "" for slot 0.

        Raises:
          UserError: no code has that slot.
        """
        if slot == 0:
            return UNCONDITIONAL
        for name, taken in self.slots.items():
            if taken == slot:
                return name
        raise UserError(f"no code has slot {slot}; taken are 0 and {sorted(self.slots.values())}")


def parse_code_weights(text: str, book: CodeBook, where: str = "code_weights") -> dict[str, float]:
    """Reads "story=2,essay=0.5" as {"story": 2.0, "essay": 0.5}; "" gives {}.

    Raises:
      UserError: a malformed pair, an unknown or repeated code, a weight that is negative or not finite, or weights
        under which no code of `book` would ever be drawn.
    """
    weights: dict[str, float] = {}
    for pair in text.split(",") if text.strip() else ():
        given, equals, number = (part.strip() for part in pair.partition("="))
        if not (given and equals):
            raise UserError(f"{where}: {reprlib.repr(pair)} is not of the form NAME=WEIGHT")
        name = book.name(book.slot(given, where))
        if name in weights:
            raise UserError(f"{where}: the code {name!r} stands there twice")
        weights[name] = _weight(number, f"{where}: {name}")
    if weights and not any(weights.get(name, 1.0) for name in book.slots):
        raise UserError(f"{where}: every code has weight 0, so nothing would be drawn; raise one")
    return weights


def _spelling(name: str) -> str:
    # NFKC shortens a text to a third at most, so what is cut off here could not have been a name.
    return unicodedata.normalize("NFKC", name[:1_000])


def _weight(number: str, where: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight) or weight < 0:
        raise UserError(f"{where}={reprlib.repr(number)}: the weight must be a finite number, 0 or more")
    return weight
