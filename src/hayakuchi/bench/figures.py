"""From the timed steps of the variants to the figures that are reported."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from hayakuchi.bench.measure import Program, TimedStep

_LONGEST_FAILURE = 300


@dataclass
class Row:
    """A variant and what is known of it so far.

    Attributes:
      label: what sets it apart.
      settings: value of every axis, as written.
      failure: why it cannot run; "" while it can.
      program: the variant, compiled; None before, and once it has failed.
      rounds: its steps, round by round.
      device_peak: bytes in use on the device, by its own account; None where it does not tell.
      largest: the largest batch, if it was looked for.
    """

    label: str
    settings: dict[str, str]
    failure: str = ""
    program: Program | None = None
    rounds: list[list[TimedStep]] = field(default_factory=list)
    device_peak: int | None = None
    largest: dict[str, Any] | None = None

    def attempt(self, act: Callable[[], None], failures: tuple[type[Exception], ...]) -> None:
        """act(), unless the variant has failed already; a failure becomes the variant's own."""
        if self.failure:
            return
        try:
            act()
        except failures as error:
            self.failure = _one_line(str(error)) or type(error).__name__
            self.program = None


def figures(row: Row, reference: Row, peaks: dict[str, float], *, with_data: bool) -> dict[str, Any]:
    """What is reported of a variant.

    Args:
      row: the variant.
      reference: the variant that it is compared with, one that has run.
      peaks: FLOP/s of a matrix product by precision.
      with_data: whether batches came from a data set.
    """
    program = row.program
    told = {"label": row.label, "settings": row.settings, "failure": row.failure or None}
    if program is None:
        return told
    rounds, recipe = row.rounds, program.recipe
    steps = [step for timed in rounds for step in timed]
    rates = _unit_rates(row)
    flops_rate = statistics.median(_per_second(timed, lambda step: step.flops) for timed in rounds)
    # The devices of a CPU share its cores; others have each their own.
    peak = peaks[recipe.train.precision] * (1 if jax.default_backend() == "cpu" else program.devices)
    seconds_per_unit = 0.0
    if recipe.task == "vits":
        seconds_per_unit = recipe.model.audio.hop_samples / recipe.model.audio.sample_rate_hz
    waiting = sum(step.waiting for step in steps) / sum(step.seconds for step in steps)
    return {
        **told,
        "devices": program.devices,
        "parameters": program.parameters,
        "compile_seconds": round(program.programs.seconds, 3),
        "steps": len(steps),
        "step_seconds": _spread(step.seconds for step in steps),
        "steps_per_second": _spread(_per_second(timed, lambda _: 1) for timed in rounds),
        "units_per_second": _spread(rates),
        "audio_seconds_per_second": _spread(rate * seconds_per_unit for rate in rates) if seconds_per_unit else None,
        # Round by round: a slow minute of the machine slows both.
        "step_time_ratio": _ratios(_step_times(row), _step_times(reference)),
        "throughput_ratio": _ratios(rates, _unit_rates(reference)),
        "memory_bytes": program.memory.to_dict(),
        "device_peak_bytes": row.device_peak,
        "flops_per_step": round(statistics.mean(step.flops for step in steps)),
        "open_loops": max(flops.open_loops for flops in program.flops.values()),
        "flops_per_second": round(flops_rate),
        "share_of_peak": round(flops_rate / peak, 4),
        "data_wait_share": round(waiting, 5) if with_data else None,
        "largest_batch": row.largest,
    }


def _unit_rates(row: Row) -> list[float]:
    return [_per_second(timed, lambda step: step.units) for timed in row.rounds]


def _step_times(row: Row) -> list[float]:
    return [statistics.median(step.seconds for step in timed) for timed in row.rounds]


def _per_second(steps: Sequence[TimedStep], amount: Callable[[TimedStep], float]) -> float:
    return sum(amount(step) for step in steps) / sum(step.seconds for step in steps)


def _ratios(mine: Iterable[float], theirs: Iterable[float]) -> dict[str, float]:
    return _spread(one / other for one, other in zip(mine, theirs, strict=True))


def _spread(values: Iterable[float]) -> dict[str, float]:
    numbers = list(values)
    return {"median": statistics.median(numbers), "least": min(numbers), "most": max(numbers)}


def _one_line(text: str) -> str:
    """A failure in one line of readable length; a compiler's can be pages."""
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= _LONGEST_FAILURE else line[: _LONGEST_FAILURE - 1] + "…"
