"""How much of what a device can do a training step gets: bands, and the history that narrows them.

The ideal time of a step is its products at the device's peak, its bytes at the bandwidth of its memory, and its
gradients over the link, one after the other. The achieved share is that time over the time measured. Until a device has
been measured the band is an assumption, and the plan says so.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.config import Precision
from hayakuchi.plan.cost import Cost
from hayakuchi.plan.devices import Devices
from hayakuchi.runtime import cache_folder

# Lowest and highest share that is likely, by platform and task. Not measured but for "cpu": see bench/LEDGER.md.
_ASSUMED = {
    ("cpu", "ctrl"): (0.35, 0.95),
    ("cpu", "vits"): (0.20, 0.70),
    ("gpu", "ctrl"): (0.35, 0.80),
    ("gpu", "vits"): (0.15, 0.60),
    ("tpu", "ctrl"): (0.35, 0.80),
    ("tpu", "vits"): (0.12, 0.50),
}
# What one measurement leaves open on each side, and what many do.
_WIDEST, _NARROWEST = 0.25, 0.08
_REMEMBERED = 50
_LINE_LIMIT_BYTES = 4_096


@dataclass(frozen=True)
class Band:
    """Achieved shares that are likely.

    Attributes:
      low: of a slow step.
      high: of a fast one.
      measured: how many measurements it rests on; 0 is an assumption.
    """

    low: float
    high: float
    measured: int = 0


def ideal_seconds(cost: Cost, devices: Devices, precision: Precision) -> float:
    """Time of a step that gets all a device can do."""
    compute = cost.products / devices.count / devices.peak[precision]
    # A ring moves every gradient twice, but for each device's own part.
    exchange = 2 * cost.gradients * (devices.count - 1) / devices.count / devices.link
    return compute + cost.moved / devices.bandwidth + exchange


def band(devices: Devices, task: str, precision: Precision) -> Band:
    """The likely shares of a device, from its history where there is one, else assumed for its platform."""
    shares = [
        each["share"]
        for each in history()
        if (each["device"], each["task"], each["precision"]) == (devices.kind, task, precision)
    ][-_REMEMBERED:]
    if not shares:
        return Band(*_ASSUMED[devices.platform, task])
    room = max(_WIDEST / len(shares), _NARROWEST)
    return Band(min(shares) * (1 - room), max(shares) * (1 + room), len(shares))


def history() -> list[dict[str, Any]]:
    """All measurements of this machine's user, the oldest first; lines that are none are passed over."""
    found = []
    try:
        with history_path().open("rb") as file:
            while line := file.readline(_LINE_LIMIT_BYTES):
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and _entry_is_whole(entry):
                    found.append(entry)
    except OSError:
        return []
    return found


def _entry_is_whole(entry: dict[str, Any]) -> bool:
    share = entry.get("share")
    names = all(isinstance(entry.get(name), str) for name in ("device", "task", "precision"))
    return names and isinstance(share, float) and 0 < share < float("inf")


def add_to_history(
    devices: Devices, recipe: str, task: str, precision: Precision, *, ideal: float, actual: float
) -> None:
    """Notes how long a step took.

    Args:
      devices: it ran on.
      recipe: its recipe's name.
      task: "ctrl" or "vits".
      precision: of its products.
      ideal: seconds by `ideal_seconds`.
      actual: seconds measured.
    """
    entry = {
        "device": devices.kind,
        "count": devices.count,
        "recipe": recipe,
        "task": task,
        "precision": precision,
        "share": ideal / actual,
        "seconds": actual,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    path = history_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def history_path() -> Path:
    return cache_folder() / "plan" / "history.jsonl"
