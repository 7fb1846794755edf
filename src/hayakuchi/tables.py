"""Tables as text, for verbs whose result is one."""

import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_MOST_COLUMNS = 2_000


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: range) -> list[str]:
    """The lines of a table whose columns `right` are figures."""
    made = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column in enumerate(made.columns):
        column.justify = "right" if number in right else "left"
        column.no_wrap = True
    for row in rows:
        made.add_row(*row)
    written = io.StringIO()
    # As wide as it needs: a figure that is cut off is worse than a line that the terminal breaks.
    Console(file=written, width=_MOST_COLUMNS, markup=False).print(made)
    return [line.rstrip() for line in written.getvalue().splitlines()]
