"""Full-context labels of OpenJTalk to phones with prosody marks.

After Kurihara, Seiyama and Kumano, "Prosodic Features Control by Symbols as Input of Sequence-to-Sequence Acoustic
Modeling for Neural TTS" (IEICE Transactions E104-D, 2021). The fields of a label that it takes:

- A1: position of the mora less that of the accent nucleus, 0 at the nucleus itself;
- A2, A3: position of the mora in its accent phrase from the front and from the back, 1 at either end;
- E3: whether the accent phrase before is a question.

All are numbers of one or more digits (espnet#3555). OpenJTalk writes 49 for any above, also for F1, the moras of the
phrase, by which others tell where a phrase ends; here that is where A2 starts anew, which holds for longer phrases too.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from hayakuchi.errors import UserError
from hayakuchi.speech.symbols import END, FALL, MORA_ENDS, PAUSE, PHRASE, QUESTION, RISE, START

_NUMBER = r"(-?\d+|xx)"
_LABEL = re.compile(rf"-([A-Za-z]+)\+[^/]*/A:{_NUMBER}\+{_NUMBER}\+{_NUMBER}/.*/E:[^!/]*!{_NUMBER}_")
_SILENCES = ("sil", "pau")


class _Label(NamedTuple):
    """Fields of a label; None where it has "xx"."""

    phone: str
    a1: int | None
    a2: int | None
    a3: int | None
    e3: int | None


def symbols_of_labels(labels: Sequence[str]) -> list[str]:
    """The phones of an utterance with its prosody marks; [] for labels without a phone.

    Args:
      labels: one label a phone, in the order of time.

    Raises:
      UserError: something is not a full-context label.
    """
    parsed = [_parse(label, number) for number, label in enumerate(labels, start=1)]
    spoken = [index for index, label in enumerate(parsed) if label.phone not in _SILENCES]
    if not spoken:
        return []
    first, last = spoken[0], spoken[-1]
    symbols = [START]
    for label, following in itertools.pairwise(parsed[first : last + 1]):
        if label.phone in _SILENCES:
            symbols.append(PAUSE)
        else:
            symbols.append(label.phone)
            symbols.extend(_mark(label, following))
    question = any(label.e3 == 1 for label in parsed[last + 1 :])
    return [*symbols, parsed[last].phone, QUESTION if question else END]


def _mark(label: _Label, following: _Label) -> list[str]:
    """The mark between a phone and the next, if any."""
    if label.phone not in MORA_ENDS:
        return []
    if label.a3 == 1 and following.a2 == 1:
        return [PHRASE]
    # A1 of a phrase's first mora is never above 0, so this is a fall within a phrase.
    if label.a1 == 0 and following.a1 == 1:
        return [FALL]
    if label.a2 == 1 and following.a2 == 2:
        return [RISE]
    return []


def _parse(label: str, number: int) -> _Label:
    match = _LABEL.search(label)
    if match is None:
        raise UserError(f"label {number}: {label[:60]!r} is not a full-context label of OpenJTalk")
    return _Label(match[1], *(None if field == "xx" else int(field) for field in match.groups()[1:]))
