"""`bench`: a recipe's step over a grid of settings, measured so that a noisy machine favours none of them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from hayakuchi import progress
from hayakuchi.bench import axes as grid
from hayakuchi.bench import measure
from hayakuchi.bench.figures import Row, figures
from hayakuchi.bench.measure import Program
from hayakuchi.bench.memory import largest_multiple, memory_limit, parse_bytes
from hayakuchi.bench.probe import matmul_flops_per_second
from hayakuchi.bench.work import fitted, heaviest, make_work
from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError
from hayakuchi.plan.account import memory_of
from hayakuchi.train.precision import compute_dtype

_DATA_DECIDES = ("vocabulary_size", "speakers")
# More rounds or longer slices tell nothing new.
_MOST_ROUNDS = 1_000
_MOST_SECONDS = 3_600.0


@dataclass(frozen=True)
class BenchOptions:
    """How to measure.

    Attributes:
      rounds: turns that each variant has.
      seconds: length of a turn.
      data: data set directory to draw batches from; None takes random content.
      largest_batch: look for the largest batch of each variant.
      memory_limit: "15GiB" a device; "" takes what the device has.
    """

    rounds: int = 4
    seconds: float = 2.0
    data: Path | None = None
    largest_batch: bool = False
    memory_limit: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise UserError(f"--rounds {self.rounds}: must be 1 to {_MOST_ROUNDS}")
        if not 0 < self.seconds <= _MOST_SECONDS:
            raise UserError(f"--seconds {self.seconds:g}: must be above 0 and at most {_MOST_SECONDS:g}")
        if self.memory_limit:
            parse_bytes(self.memory_limit)
            if not self.largest_batch:
                raise UserError(f"--memory-limit {self.memory_limit}: is for --largest-batch; give that too")


def run_bench(recipe: Recipe, compare: Sequence[str], options: BenchOptions) -> dict[str, Any]:
    """Times the training step of a recipe over a grid of settings.

    Every variant is compiled first. Then in each round every variant has a turn, in an order that changes: a new state,
    one step to warm up, and steps for `seconds`. Only one state is in memory at a time.

    Args:
      recipe: the recipe.
      compare: axes as "FIELD=V1,V2"; without any the recipe is timed as it is.
      options: how to measure.

    Returns:
      What docs/reference/bench-json.md describes, as plain values.

    Raises:
      UserError: a bad axis, option or data set; or no variant can run.
    """
    axes = grid.parse_axes(recipe, compare)
    if options.data is not None:
        taken = next((axis.name for axis in axes if axis.name in _DATA_DECIDES), None)
        if taken:
            raise UserError(f"--compare {taken}: the data set of --data decides it; leave one of the two out")
        recipe = fitted(recipe, options.data)
    rows = []
    cells = grid.variants(recipe, axes)
    with progress.bar("compiling", len(cells)) as bar:
        for cell in cells:
            row = Row(grid.label(cell, axes), cell.settings, cell.failure)
            bar.update(row.label)
            if cell.recipe is not None:
                row.attempt(functools.partial(_compile, row, cell.recipe, options), measure.FAILURES)
            rows.append(row)
            bar.advance()
    peaks, orders = _time(rows, options)
    reference = next((row for row in rows if row.program is not None), rows[0])
    if reference.program is None:
        raise UserError(f"no variant can run; {reference.label}: {reference.failure}")
    device = jax.devices()[0]
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "unit": reference.program.work.task.unit,
        "axes": {axis.name: list(axis.texts) for axis in axes},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "data": None if options.data is None else str(options.data),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "jax": jax.__version__,
        "matmul_flops_per_second": {precision: round(rate) for precision, rate in peaks.items()},
        "reference": reference.label,
        "orders": orders,
        "notes": _notes(recipe),
        "variants": [figures(row, reference, peaks, with_data=options.data is not None) for row in rows],
    }


def _notes(recipe: Recipe) -> list[str]:
    """What of the recipe is not in the figures."""
    if recipe.task == "ctrl" and recipe.distillation.teacher:
        return [
            f"timed without the teacher {recipe.distillation.teacher}, whose forward pass training adds to each step"
        ]
    return []


def _compile(row: Row, recipe: Recipe, options: BenchOptions) -> None:
    row.program = measure.compile_variant(recipe, make_work(recipe, options.data))
    if options.largest_batch:
        row.largest = _largest_batch(row.program, options.memory_limit)


def _largest_batch(program: Program, memory: str) -> dict[str, Any]:
    """The largest batch whose step has room, by the compiler's account; 0 if none has."""
    limit = parse_bytes(memory) if memory else memory_limit(program.devices)
    unit = program.devices * program.recipe.train.accumulate

    def weigh(multiple: int) -> float:
        recipe = grid.with_settings(program.recipe, {("train", "batch"): unit * multiple})
        try:
            programs, _ = measure.compile_step(recipe, heaviest(recipe, program.work))
        except jax.errors.JaxRuntimeError:  # RESOURCE_EXHAUSTED, in the words of several compilers
            return float("inf")
        return memory_of(programs.executables).peak

    multiple, weight = largest_multiple(weigh, limit)
    return {"batch": unit * multiple, "memory_bytes": int(weight), "limit_bytes": limit}


def _time(rows: Sequence[Row], options: BenchOptions) -> tuple[dict[str, float], list[list[int]]]:
    """Fills the rows' rounds.

    Returns:
      The best rate of a matrix product in each precision, and the order of the rows in each round.
    """
    programs = {index: row.program for index, row in enumerate(rows) if row.program is not None}
    # The smallest first, in the round in which the device's own peak is read: it only ever rises.
    by_memory = sorted(programs, key=lambda index: programs[index].memory.peak)
    precisions = sorted({program.recipe.train.precision for program in programs.values()})
    peaks: dict[str, float] = dict.fromkeys(precisions, 0.0)
    orders = []
    with progress.bar("timing", options.rounds * len(programs)) as bar:
        for number in range(options.rounds if programs else 0):
            for precision in precisions:
                bar.update(f"round {number + 1}: {precision} products")
                peaks[precision] = max(peaks[precision], matmul_flops_per_second(compute_dtype(precision)))
            orders.append(measure.order(by_memory, number))
            for index in orders[-1]:
                bar.update(f"round {number + 1}: {rows[index].label}")
                turn = functools.partial(_turn, rows[index], programs[index], number, options.seconds)
                rows[index].attempt(turn, measure.FAILURES)
                bar.advance()
    return peaks, orders


def _turn(row: Row, program: Program, number: int, seconds: float) -> None:
    before = measure.device_peak()
    row.rounds.append(measure.time_slice(program, number, seconds))
    after = measure.device_peak()
    if number == 0 and before is not None and after is not None and after > before:
        row.device_peak = after
