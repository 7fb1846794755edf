import os
from collections.abc import Iterator

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


def test_workers_below_1_are_refused() -> None:
    with pytest.raises(UserError, match="workers=0"):
        WorkerPool(0)
