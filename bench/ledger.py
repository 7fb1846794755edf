"""Writes the ratios of bench/results into the ledger, between its two marks.

`python bench/ledger.py [--results DIR] [--ledger FILE]`. Everything else in the file stays as it is.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, LEDGER = ROOT / "bench" / "results", ROOT / "bench" / "LEDGER.md"
BEGIN, END = "<!-- ratios -->", "<!-- /ratios -->"
_HEAD = "| case | ratio, median (least-most) | rounds | command | commit, date |\n| --- | --- | --- | --- | --- |"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results that have ratios, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if result.get("ratios")]


def table(results: Iterable[dict[str, Any]]) -> str:
    """A table for each machine with its libraries, one row a ratio."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        rows = by_machine.setdefault(_machine(result), [])
        for name, value in result["ratios"].items():
            rows.append(
                f"| {_cell(result['case'])}: {_cell(name)} "
                f"| {value['median']:g} ({value['least']:g}-{value['most']:g}) "
                f"| {result.get('rounds', '')} "
                f"| `{_cell(result['command'])}` "
                f"| {result['commit']}, {result['date']} |"
            )
    return "\n\n".join(f"{machine}\n\n{_HEAD}\n" + "\n".join(rows) for machine, rows in by_machine.items())


def rewrite(ledger: Path, text: str) -> None:
    """Puts `text` between the marks.

    Raises:
      ValueError: the file has not exactly one pair of marks, in this order.
    """
    whole = ledger.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        raise ValueError(f"{ledger}: it must have {BEGIN} and {END} once each, in this order")
    before, rest = whole.split(BEGIN)
    after = rest.split(END)[1]
    ledger.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _machine(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    vectors = f" ({', '.join(machine['vectors'])})" if machine["vectors"] else ""
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['processors']} processors of {machine['processor']}{vectors}, {machine['memory_gigabytes']} GB, "
        f"{machine['system']}; Python {machine['python']}, {libraries}."
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    arguments = parser.parse_args()
    rewrite(arguments.ledger, table(read_results(arguments.results)))


if __name__ == "__main__":
    main()
