"""Accuracy and speed of the speech front end with each of its engines.

`python bench/cases/frontend_accuracy.py [--limit N]` prints JSON. Errors are edit distances over the length of what was
written by hand:

- symbol error: phones and prosody marks of 20 JSUT sentences with hand-made labels (jsut_accent_gold20.tsv), devoiced
  vowels folded, since the labels do not tell them apart; phone error: the same without the marks;
- kana error: readings of the 4,600 ROHAN sentences, given the front end's spelling of the text, by the engine with its
  options that write long vowels and ヅ ヂ as kana; punctuation is left out on both sides.

Speed is that of `FrontEnd.read_all` on the ROHAN sentences, the median of three passes. Without the developers' corpora
it says so and measures nothing.
"""

import argparse
import contextlib
import io
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hayakuchi.errors import MissingExtraError
from hayakuchi.speech.engines import ENGINES
from hayakuchi.speech.frontend import FrontEnd, make_front_end
from hayakuchi.speech.spoken_form import spoken_form
from hayakuchi.speech.symbols import MARKS

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
GOLD, ROHAN = CORPORA / "jsut_accent_gold20.tsv", CORPORA / "rohan4600.txt"
PASSES = 3


def distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Levenshtein distance."""
    row = list(range(len(second) + 1))
    for index, left in enumerate(first, start=1):
        diagonal, row[0] = row[0], index
        for place, right in enumerate(second, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (left != right))
    return row[-1]


def error(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Edits per gold symbol, in percent; the gold comes first in each pair."""
    return round(100 * sum(distance(*pair) for pair in pairs) / sum(len(gold) for gold, _ in pairs), 3)


def read_gold() -> list[tuple[str, list[str]]]:
    rows = [line.split("\t") for line in GOLD.read_text(encoding="utf-8").splitlines()]
    return [(text, symbols.split("-")) for _, text, symbols in rows]


def read_rohan(limit: int) -> list[tuple[str, str]]:
    lines = ROHAN.read_text(encoding="utf-8").splitlines()[:limit]
    rows = [line.partition(":")[2].rpartition(",") for line in lines]
    return [(re.sub(r"\([^)]*\)", "", text), kana) for text, _, kana in rows]


def kana_reader(engine: str) -> Callable[[str], str]:
    if engine == "haqumei":
        import haqumei

        return haqumei.Haqumei(revert_long_vowels=True, revert_yotsugana=True).g2k
    with contextlib.redirect_stdout(io.StringIO()):
        import pyopenjtalk
    options = {"kana": True, "use_sudachi_kanji_yomi": False, "revert_long_vowels": True, "revert_yotsugana": True}
    return lambda text: pyopenjtalk.g2p(text, **options)


def kana_only(text: str) -> str:
    return re.sub("[^ァ-ヶー]", "", text)


def without_marks(symbols: Sequence[str]) -> list[str]:
    return [symbol for symbol in symbols if symbol not in MARKS]


def sentences_per_second(front_end: FrontEnd, texts: list[str]) -> float:
    rates = []
    for _ in range(PASSES):
        start = time.perf_counter()
        readings = front_end.read_all(texts)
        rates.append(sum(len(reading.sentences) for reading in readings) / (time.perf_counter() - start))
    return round(statistics.median(rates), 1)


def measure(engine: str, limit: int) -> dict[str, object]:
    try:
        front_end = make_front_end(engine, devoiced="fold")
    except MissingExtraError as missing:
        return {"skipped": str(missing)}
    gold, rohan = read_gold(), read_rohan(limit)
    symbols = [(wanted, front_end.read(text).utterance) for text, wanted in gold]
    read = kana_reader(engine)
    readings = [(kana_only(kana), kana_only(read(spoken_form(text)))) for text, kana in rohan]
    return {
        "version": front_end.version,
        "jsut_symbol_error_percent": error(symbols),
        "jsut_phone_error_percent": error([(without_marks(wanted), without_marks(got)) for wanted, got in symbols]),
        "rohan_kana_error_percent": error(readings),
        "rohan_sentences": len(rohan),
        "sentences_per_second": sentences_per_second(front_end, [text for text, _ in rohan]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=4_600, help="ROHAN sentences to read")
    arguments = parser.parse_args()
    result: dict[str, object] = {"case": "frontend_accuracy"}
    if GOLD.exists() and ROHAN.exists():
        result |= {engine: measure(engine, arguments.limit) for engine in ENGINES}
        result |= {"load": os.getloadavg(), "processors": os.cpu_count(), "python": platform.python_version()}
    else:
        result["skipped"] = f"{CORPORA} is not there: it holds the sentences with their readings"
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
