"""A pool of worker processes that gives results in the order of the work, with a bounded number in flight."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self, TypeVar

from hayakuchi.errors import UserError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


class WorkerPool:
    """Runs a function of a module over tasks; one worker works in this process, which needs no pickling.

    Args:
      workers: number of processes, 1 or more.

    Raises:
      UserError: `workers` is below 1.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise UserError(f"workers={workers} must be 1 or more")
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._workers > 1:
            # A fork would copy the threads of JAX and SentencePiece in whatever state they are.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_start_worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable[[TaskT], ResultT], tasks: Iterable[TaskT]) -> Iterator[ResultT]:
        """Yields `function(task)` in the order of `tasks`, which is read two tasks a worker ahead at most.

        Raises:
          UserError: a worker was killed, most likely for want of memory.
        """
        if not self._executor:
            yield from map(function, tasks)
            return
        waiting: deque[Future[ResultT]] = deque()
        try:
            for task in tasks:
                waiting.append(self._executor.submit(function, task))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                f"a worker process was killed, probably for want of memory: use fewer than {self._workers} workers"
            ) from error


def peak_memory_bytes() -> int:
    """Largest resident size this process has had; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _start_worker() -> None:
    # Ctrl-C reaches all processes of the terminal; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is killed cannot end its workers, and they would wait for the next task for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
