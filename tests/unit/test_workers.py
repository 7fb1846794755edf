import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hayakuchi.data.workers import WorkerPool
from hayakuchi.errors import UserError


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks_and_few_are_in_flight(workers: int) -> None:
    read = 0

    def tasks() -> Iterator[int]:
        nonlocal read
        for number in range(40):
            read += 1
            yield -number

    with WorkerPool(workers) as pool:
        for number, result in enumerate(pool.map(abs, tasks())):
            assert result == number
            assert read <= number + 1 + 2 * workers


def test_a_killed_worker_is_an_error_of_one_line() -> None:
    with WorkerPool(2) as pool, pytest.raises(UserError, match="fewer than 2 workers"):
        list(pool.map(os._exit, [1]))


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import multiprocessing, time; from hayakuchi.data.workers import WorkerPool\n"
        "with WorkerPool(2) as pool:\n"
        "    list(pool.map(abs, range(8)))\n"
        "    print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "    time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout:
        workers = parent.stdout.readline().decode().split()
        assert workers
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while any(map(runs, workers)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not any(map(runs, workers))


def runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
        # Dead, but in a container perhaps never waited for.
        return " Z " not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # gone since, or no Linux
        return sys.platform != "linux"


def test_workers_below_1_are_refused() -> None:
    with pytest.raises(UserError, match="workers=0"):
        WorkerPool(0)
