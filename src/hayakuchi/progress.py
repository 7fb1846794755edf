"""A progress bar with the time left on standard error, and nothing where that is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@dataclass(frozen=True)
class Bar:
    """What the body of `bar` reports to; silent without a terminal."""

    _progress: Progress
    _task: TaskID

    def advance(self, amount: float = 1) -> None:
        """Moves the bar on by `amount`, in the unit of its total."""
        self._progress.advance(self._task, amount)

    def say(self, text: str) -> None:
        """Writes `text` above the bar on standard error, terminal or not."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, text: str) -> None:
        """Shows `text` behind the bar in place of what stood there."""
        self._progress.update(self._task, text=text)


@contextmanager
def bar(description: str, total: float | None) -> Iterator[Bar]:
    """Shows a bar while the body runs.

    Args:
      description: what is being done, in front of the bar.
      total: the whole work in any unit, or None where it is not known: no time left is shown then.
    """
    # Not Console.is_terminal, which FORCE_COLOR makes true of log files.
    silent = not sys.stderr.isatty()
    columns = (
        SpinnerColumn(),
        # Markup would read "[...]" in a text or a file name as a style.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    # A redirected standard output would come out on the console of the bar, which is standard error.
    with Progress(
        *columns, console=Console(stderr=True), disable=silent, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        yield Bar(progress, progress.add_task(description, total=total, text=""))
