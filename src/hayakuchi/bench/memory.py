"""The memory of devices, and the largest batch that has room in it."""

import re
from collections.abc import Callable
from pathlib import Path

import jax

from hayakuchi.errors import UserError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
# How near to the true limit the search ends: within a sixteenth of the batch.
_GRAIN = 16
_MOST_GROWTH = 16
_PREDICTIONS = 4
_LARGEST_MULTIPLE = 1 << 20


def parse_bytes(text: str) -> int:
    """Reads "15GiB", "800MB" or a number of bytes.

    Raises:
      UserError: anything else, or 0.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?B|)\s*", text.upper())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size < 1:
        raise UserError(f"--memory-limit {text}: give a size such as 15GiB, 800MB or a number of bytes")
    return size


def memory_limit(devices: int, table: Path = Path("/proc/meminfo")) -> int:
    """Bytes that each of the first `devices` devices has for a step.

    On a CPU what is free now; its devices share it.

    Raises:
      UserError: the platform does not tell.
    """
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", table.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise UserError("--largest-batch: this platform does not tell how much memory there is; give --memory-limit")
    return int(found[1]) * 1024 // devices


def largest_multiple(weigh: Callable[[int], float], limit: float) -> tuple[int, float]:
    """The largest n with weigh(n) at most `limit`, to a sixteenth of it, and its weight; (0, 0) if 1 is too much.

    Memory is nearly affine in the batch: a line through the two largest weights known predicts where the limit is
    reached, and what it predicts is weighed. Where that does not close in, the interval is halved.

    Args:
      weigh: grows with n; infinity where it cannot be done at all. Dear: a compilation.
      limit: the most.
    """
    known: dict[int, float] = {}
    low, high, guess = 0, 0, 1
    while True:
        known[guess] = weigh(guess)
        if known[guess] <= limit:
            low = guess
        else:
            high = guess
        step = max(1, low // _GRAIN)
        if low >= _LARGEST_MULTIPLE or (high and high - low <= step):
            return low, known.get(low, 0)
        predicted = _predict({n: weight for n, weight in known.items() if weight < float("inf")}, limit)
        if not high:
            guess = min(max(predicted, low + step), _MOST_GROWTH * low, _LARGEST_MULTIPLE)
        elif len(known) > _PREDICTIONS:
            guess = (low + high) // 2
        else:
            guess = min(max(predicted, low + step), high - 1)


def _predict(known: dict[int, float], limit: float) -> int:
    """Where the line through the two largest reaches the limit; after a single one, or without a slope, twice that."""
    if len(known) < 2:
        return 2 * max(known, default=1)
    first, second = sorted(known)[-2:]
    slope = (known[second] - known[first]) / (second - first)
    if slope <= 0:
        return _MOST_GROWTH * second
    return int(second + (limit - known[second]) / slope)
