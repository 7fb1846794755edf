"""Text to sentences that a speech model can say at one go.

A line feed always ends a sentence; 。！？ and their like do so outside brackets and quotes, so that
「行くよ。待って。」と言った stays whole. What is longer than a model has heard is cut where it reads most naturally.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise

# About 15 seconds of speech; the sentences of JVS and JSUT have 10 to 90 characters.
MAX_CHARACTERS = 100

_BRACKETS = ("「」", "『』", "（）", "()", "【】", "〈〉", "《》", "〔〕", "［］", "[]", "｛｝", "{}", "“”", "‘’")
_CLOSER_OF = {pair[0]: pair[1] for pair in _BRACKETS}
_OPENERS = frozenset(_CLOSER_OF)
_CLOSERS = frozenset(_CLOSER_OF.values())

# ASCII signs end a sentence after Japanese, or before a space: 3.5 and Yahoo!ニュース go on.
_ENDS = "。｡！？‼⁇⁈⁉"
_END = re.compile(rf"(?:[{_ENDS}]|(?<![A-Za-z0-9])[!?．]|[!?.．](?=\s|\Z))+")
_COMMAS = frozenset("、，；：…‥―・")
# Never the first character of a line in print, nor of a piece here.
_BOUND = (
    frozenset("ーっッゃゅょャュョぁぃぅぇぉァィゥェォんンゝゞヽヾ々〻.,!?．") | _COMMAS | frozenset(_ENDS) | _CLOSERS
)


def split_sentences(text: str, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """The sentences of a text, stripped, none empty; together they hold every character but white space at their ends.

    Args:
      text: what `spoken_form` gave.
      max_characters: the longest a sentence may be; longer ones are cut into pieces of about equal length, at the end
        of an inner sentence or else at a comma, a bracket, a space, or a change of script.
    """
    return [
        stripped
        for line in text.splitlines()
        for sentence in _cut(line, _sentence_ends(line))
        for piece in _cut(sentence, _piece_ends(sentence, max_characters))
        if (stripped := piece.strip())
    ]


def _cut(text: str, ends: Iterator[int]) -> Iterator[str]:
    for start, end in pairwise((0, *ends, len(text))):
        yield text[start:end]


def _sentence_ends(line: str) -> Iterator[int]:
    """Where sentences end in a line, but for its own end."""
    depths = _depths(line)
    for match in _END.finditer(line):
        end = match.end()
        inside = depths[end - 1] > 0
        while end < len(line) and line[end] in _CLOSERS:
            end += 1
        # 「…。」と goes on, 「…。」「 does not.
        if end < len(line) and depths[end - 1] == 0 and (not inside or line[end] in _OPENERS):
            yield end


def _depths(line: str) -> list[int]:
    """How many brackets are open after each character; one without its partner in the line does not count."""
    steps = [0] * len(line)
    opened: list[int] = []
    awaited: Counter[str] = Counter()
    for index, character in enumerate(line):
        if character in _OPENERS:
            opened.append(index)
            awaited[_CLOSER_OF[character]] += 1
        elif awaited[character]:
            closer = ""
            while closer != character:
                opener = opened.pop()
                closer = _CLOSER_OF[line[opener]]
                awaited[closer] -= 1
            steps[opener], steps[index] = 1, -1
    return list(accumulate(steps))


def _piece_ends(sentence: str, limit: int) -> Iterator[int]:
    start = 0
    while (rest := len(sentence) - start) > limit:
        aim = rest / math.ceil(rest / limit)
        places = range(start + max(1, round(aim / 2)), start + limit + 1)
        start = min(places, key=lambda place: (_roughness(sentence, place), abs(place - start - aim)))
        yield start


def _roughness(text: str, place: int) -> int:
    """How unnatural a cut before `text[place]` is, from 0 on."""
    before, after = text[place - 1], text[place]
    if after in _BOUND or unicodedata.category(after).startswith("M"):
        return 8
    left, right = _script(before), _script(after)
    places = (
        before in _ENDS,
        before in _COMMAS,
        before in _CLOSERS or after in _OPENERS,
        before.isspace() or after.isspace(),
        # What follows hiragana in another script is nearly always a new word: 学校の|帰り.
        left == "hiragana" != right,
        left != right,
        # Numbers, units and Latin words are not torn apart: 3.5kg.
        left != "ascii",
    )
    return places.index(True) if True in places else len(places)


def _script(character: str) -> str:
    if "ぁ" <= character <= "ゟ":
        return "hiragana"
    if "ァ" <= character <= "ヿ":
        return "katakana"
    return "ascii" if character.isascii() else "other"
