"""The folder of a report: found writable before the work, written after its result was shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hayakuchi import strict_json
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


@contextmanager
def report_folder(out: Path, report: dict[str, Any]) -> Iterator[None]:
    """Writes `report.json`; the body may write what else belongs to it.

    Raises:
      UserError: one of the files cannot be written.
    """
    text = strict_json.dumps(report) + "\n"
    try:
        (out / REPORT_FILE).write_text(text, encoding="utf-8", errors="replace")
        yield
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot write it ({error.strerror or error})") from error
