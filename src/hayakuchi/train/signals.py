"""SIGTERM and SIGINT as a wish to stop at the next whole step."""

import signal
import sys
from types import FrameType, TracebackType
from typing import Self


class StopSignal:
    """Inside the `with` block the first SIGTERM or SIGINT sets `received`; a second SIGINT interrupts at once.

    Several processes must stop after the same step, but a signal may reach one alone, or each after another step. JAX
    listens to SIGTERM itself then and agrees on a step with all of them (see `Checkpoints.preempted`): SIGTERM is left
    to it, SIGINT handed on as SIGTERM, and `received` stays None.

    Args:
      processes: how many processes train together.
    """

    def __init__(self, processes: int) -> None:
        self.received: str | None = None
        self._seen = False
        self._alone = processes == 1

    def __enter__(self) -> Self:
        numbers = (signal.SIGTERM, signal.SIGINT) if self._alone else (signal.SIGINT,)
        self._previous = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._seen = True
        name = signal.Signals(number).name
        sys.stderr.write(f"\n{name}: saving a checkpoint after this step\n")
        if self._alone:
            self.received = name
        else:
            signal.raise_signal(signal.SIGTERM)
