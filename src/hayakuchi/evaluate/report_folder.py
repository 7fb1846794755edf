"""The folder of a report: found writable before the work, written after its result was shown."""

import json
from pathlib import Path
from typing import Any

from hayakuchi.errors import UserError
from hayakuchi.evaluate import charts

REPORT_FILE = "report.json"


def make_report_folder(out: Path) -> None:
    """Finds out before the work what would fail after it.

    Raises:
      UserError: the directory cannot be made.
      MissingExtraError: `matplotlib` is not installed.
    """
    charts.check_installed()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot make this directory ({error.strerror}); choose another one") from error


def write_report(report: dict[str, Any], out: Path) -> None:
    """Writes `report.json`.

    Raises:
      OSError: it cannot be written; `cannot_write` makes a message of that.
    """
    text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
    (out / REPORT_FILE).write_text(text, encoding="utf-8", errors="replace")


def cannot_write(out: Path, error: OSError) -> UserError:
    """What to raise where a file of the report cannot be written."""
    return UserError(f"{error.filename or out}: cannot write it ({error.strerror or error})")
