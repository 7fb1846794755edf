"""SIGTERM and SIGINT as a wish to stop at the next whole step."""

import signal
import sys
from types import FrameType, TracebackType
from typing import Self


class StopSignal:
    """Inside the `with` block the first SIGTERM or SIGINT sets `received`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        sys.stderr.write(f"\n{self.received}: saving a checkpoint after this step\n")
