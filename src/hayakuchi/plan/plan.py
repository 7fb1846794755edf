"""What a training run takes: does it fit, how long is a step, how many days, how much money."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.config.recipe import Recipe
from hayakuchi.plan.compile import Compilation, CompilerError, compile_for
from hayakuchi.plan.cost import Cost, cost_of, with_train
from hayakuchi.plan.devices import Devices, find_price
from hayakuchi.plan.shares import band, ideal_seconds

WANTED_BATCHES = (256, 1_024)
_DAY_SECONDS = 86_400
# Held back from an estimate, by what is trained: the compiler may lay things out worse (bench/LEDGER.md).
_ESTIMATE_ERROR = {"ctrl": 0.15, "vits": 0.25}


@dataclass(frozen=True)
class Memory:
    """A step's memory on one device, in bytes.

    Attributes:
      needs: all of it.
      arguments: state and batch.
      temporaries: what comes and goes in between.
      source: "compiler", "compiler, approximate" or "estimate".
      largest: the largest buffers, where the compiler told them.
    """

    needs: int
    arguments: int
    temporaries: int
    source: str
    largest: tuple[str, ...] = ()


def make_plan(recipe: Recipe, devices: Devices, *, prices: Path | None = None, compiler: bool = True) -> dict[str, Any]:
    """Plans a recipe's run on devices, without them.

    Args:
      recipe: the run; its batch must be a multiple of devices x accumulate.
      devices: what it is to run on.
      prices: the user's price table.
      compiler: ask the real compiler for the memory, where it is installed.

    Returns:
      Plain values: the keys of the README's table, and "notes", lines for the reader.
    """
    notes = [devices.note] if devices.note else []
    precision = devices.precision(recipe.train.precision)
    if precision != recipe.train.precision:
        notes.append(f"{devices.kind} has no {recipe.train.precision}: planned with --precision {precision}")
        recipe = with_train(recipe, precision=precision)
    cost = cost_of(recipe, devices)
    memory, told = _memory(recipe, devices, cost, compiler)
    notes += told
    fits = memory.needs <= devices.limit_bytes
    largest = largest_batch(recipe, devices, cost, memory)
    likely = band(devices, recipe.task, precision)
    ideal = ideal_seconds(cost, devices, precision)
    seconds = [ideal / likely.high, ideal / likely.low]
    days = [recipe.train.steps * each / _DAY_SECONDS for each in seconds]
    price = find_price(devices, prices)
    fastest = devices.precisions[0]
    if devices.peak[fastest] > devices.peak[precision]:
        notes.append(f"--precision {fastest} is faster there")
    if price.on_demand is None and price.spot is None and devices.platform != "cpu":
        notes.append(f"no price of {devices.name} is known: give --prices FILE (docs/guides/two-weeks-two-gpus.md)")
    return {
        "recipe": recipe.name,
        "device": devices.name,
        "devices": devices.count,
        "title": devices.title,
        "batch": recipe.train.batch,
        "accumulate": recipe.train.accumulate,
        "precision": precision,
        "parameters": cost.parameters,
        "state_bytes": cost.state_bytes,
        "flops_per_step": cost.operations,
        "product_flops_per_step": cost.products,
        "bytes_per_step": cost.moved,
        "fits": fits,
        "memory_bytes": memory.needs,
        "limit_bytes": devices.limit_bytes,
        "argument_bytes": memory.arguments,
        "temporary_bytes": memory.temporaries,
        "memory_source": memory.source,
        "largest_buffers": list(memory.largest),
        "largest_batch": largest,
        "accumulation": {str(each): _accumulation(recipe, devices, each, largest) for each in WANTED_BATCHES},
        "step_seconds": seconds,
        "share": {"low": likely.low, "high": likely.high, "measurements": likely.measured},
        f"{cost.unit}_per_second": [cost.units / each for each in reversed(seconds)],
        "steps": recipe.train.steps,
        "days": days,
        "usd": {
            kind: None if value is None else [24 * day * value for day in days]
            for kind, value in (("on_demand", price.on_demand), ("spot", price.spot))
        },
        "price": {"usd_per_hour": price.on_demand, "spot": price.spot, "date": price.date, "source": price.source},
        "notes": notes,
    }


def _memory(recipe: Recipe, devices: Devices, cost: Cost, compiler: bool) -> tuple[Memory, list[str]]:
    """The compiler's figure if it can be had, else the estimate and why; in either case with lines for the reader."""
    estimate = Memory(cost.memory, cost.arguments, cost.temporaries, "estimate")
    if not compiler:
        return estimate, []
    try:
        found = compile_for(recipe, devices)
    except CompilerError as error:
        return estimate, [f"memory is an estimate, within {100 * _ESTIMATE_ERROR[recipe.task]:.0f}% as a rule: {error}"]
    # A GPU's compiler leaves what the libraries take besides, and which of their programs is chosen, to the device.
    return _of_compiler(found, cost, "compiler, approximate" if devices.platform == "gpu" else "compiler"), []


def _of_compiler(found: Compilation, cost: Cost, source: str) -> Memory:
    arguments = cost.arguments if found.arguments is None else found.arguments
    temporaries = found.needs - arguments if found.temporaries is None else found.temporaries
    # A compiler that gives up at the temporaries tells no more than them.
    needs = max(found.needs, arguments + temporaries)
    return Memory(needs, arguments, temporaries, source, tuple(found.largest))


def largest_batch(recipe: Recipe, devices: Devices, cost: Cost, memory: Memory) -> int:
    """The largest micro-batch that fits, a multiple of the devices; 0 where not even one row a device does.

    The estimate at two batches gives what a row takes; where the compiler was asked, its figure at the recipe's batch
    corrects that.
    """
    parts = recipe.train.accumulate * devices.count
    rows = recipe.train.batch // parts
    other = max(2 * rows if rows < 64 else rows // 2, 1)
    probe = cost_of(with_train(recipe, batch=other * parts), devices)
    a_row = abs(probe.memory - cost.memory) / abs(other - rows)
    right = memory.temporaries / max(cost.temporaries, 1)
    fixed = cost.memory - a_row * rows + (memory.arguments - cost.arguments)
    room = devices.limit_bytes * (1 - (_ESTIMATE_ERROR[recipe.task] if memory.source == "estimate" else 0.03))
    if memory.needs > devices.limit_bytes and rows == 1:
        return 0
    most = math.floor((room - fixed) / max(a_row * right, 1))
    if memory.needs <= devices.limit_bytes:
        most = max(most, rows)
    return max(most, 0) * devices.count


def _accumulation(recipe: Recipe, devices: Devices, wanted: int, largest: int) -> int | None:
    """Micro-batches that make `wanted` rows fit; None where none do, or the task or the devices cannot divide so."""
    for parts in range(1, wanted // devices.count + 1):
        whole = wanted % (parts * devices.count) == 0
        if whole and wanted // parts <= largest and (parts == 1 or recipe.task == "ctrl"):
            return parts
    return None


def with_settings(recipe: Recipe, **settings: Any) -> Recipe:
    """The recipe with the user's settings of its section `train`; None is one that was not given."""
    return with_train(recipe, **{name: value for name, value in settings.items() if value is not None})
