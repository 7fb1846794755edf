"""Compiling variants and timing their steps, in rounds."""

import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from hayakuchi.bench.work import Work
from hayakuchi.config import TrainConfig
from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError
from hayakuchi.plan.account import Memory, memory_of
from hayakuchi.plan.flops import Flops, count_flops
from hayakuchi.train import loop
from hayakuchi.train.guard import shapes_of
from hayakuchi.train.session import fitting_mesh

_ROUND_BATCHES = 1_000
_CACHE_SWITCH = "jax_enable_compilation_cache"
# What a variant may fail of without the others. ValueError: what JAX says of shapes that do not divide.
FAILURES = (UserError, ValueError, RuntimeError, MemoryError)


class TimedStep(NamedTuple):
    """One step.

    Attributes:
      seconds: from its call to its result, drawing the next batch in between.
      waiting: seconds of that in which the next batch was drawn and brought to the device.
      units: tokens or frames in its batch.
      flops: operations of its products (`Flops.products`).
    """

    seconds: float
    waiting: float
    units: float
    flops: int


class NotFiniteError(RuntimeError):
    """A metric of a step is not finite."""


@dataclass(frozen=True)
class Program:
    """A variant, compiled.

    Attributes:
      recipe: its settings.
      work: what it runs.
      programs: the trainer's own, for a mesh of its devices.
      devices: how many.
      memory: of a step, on each device.
      flops: of a step, by the shapes of its batch.
      parameters: numbers among the parameters.
    """

    recipe: Recipe
    work: Work
    programs: loop.Compiled
    devices: int
    memory: Memory
    flops: dict[Any, Flops]
    parameters: int


def compile_variant(recipe: Recipe, work: Work) -> Program:
    """Compiles the step that `train` would run; nothing comes from the cache on disk.

    Raises:
      UserError: the batch is no multiple of devices x accumulate, or there are too few devices.
      JaxRuntimeError: the compiler finds too little memory.
    """
    programs, devices = compile_step(recipe, work)
    state = programs.abstract_state
    key = jax.random.key(0)
    counts = {shapes_of(spec): _flops(work, state, spec, key) for spec in work.task.batch_specs()}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    memory = memory_of(programs.executables)
    return Program(recipe, work, programs, devices, memory, counts, parameters)


def compile_step(recipe: Recipe, work: Work) -> tuple[loop.Compiled, int]:
    """The programs, and how many devices they are for: the first of all there are."""
    settings = recipe.train
    mesh = fitting_mesh(settings, jax.devices()[: devices_wanted(settings)])
    with _nothing_cached():
        return loop.compile_task(work.task, mesh), mesh.size


def devices_wanted(settings: TrainConfig) -> int:
    """Devices that `mesh` asks for; all there are where it does not say."""
    if not settings.mesh:
        return jax.device_count()
    return math.prod(int(size) for size in re.findall(r"=\s*([0-9]{1,6})", settings.mesh))


def time_slice(program: Program, number: int, seconds: float) -> list[TimedStep]:
    """Steps from a new state: one to warm up, then those that begin within `seconds`, at least one.

    Nothing of it is left in memory afterwards.

    Args:
      program: what to run.
      number: of the round; of a data set each round draws other batches.
      seconds: how long to go on.

    Raises:
      NotFiniteError: a metric is not.
      JaxRuntimeError: the device has too little memory.
    """
    programs, task = program.programs, program.work.task
    init_key, key = jax.random.split(jax.random.key(program.recipe.train.seed))
    state = programs.init(init_key)
    batches = _batches(program, number)
    ready = next(batches)
    state, metrics = programs.step(state, ready, key)
    _check(jax.device_get(metrics))
    ready = next(batches)
    steps: list[TimedStep] = []
    begun = time.perf_counter()
    while not steps or time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        batch = ready
        state, metrics = programs.step(state, batch, key)
        called = time.perf_counter()
        ready = next(batches)
        drawn = time.perf_counter()
        jax.block_until_ready((state, metrics))
        ended = time.perf_counter()
        told = jax.device_get(metrics)
        _check(told)
        flops = program.flops[shapes_of(batch)].products
        steps.append(TimedStep(ended - started, drawn - called, float(told[task.unit]), flops))
    return steps


def order(first: Sequence[int], number: int) -> list[int]:
    """The order in which a round takes the variants: `first` in round 0, then another one each time."""
    order = list(first)
    if number:
        random.Random(number).shuffle(order)  # noqa: S311 - not for security
    return order


def device_peak() -> int | None:
    """The most memory in use so far on any device, in bytes; None where the platform does not tell."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.devices()]
    return max((int(peak) for peak in peaks if peak is not None), default=None)


def _batches(program: Program, number: int) -> Iterator[Any]:
    """Batches on the devices."""
    task, place = program.work.task, program.programs.place
    if program.work.draw is None:
        placed = place(task.example_batch(task.batch_specs()[0]))
        while True:
            yield placed
    for batch in program.work.draw(number * _ROUND_BATCHES):
        yield place(batch)


def _flops(work: Work, state: Any, spec: Any, key: Any) -> Flops:
    return count_flops(jax.make_jaxpr(work.task.step)(state, spec, key))


def _check(metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if not math.isfinite(float(value)):
            raise NotFiniteError(f"{name} is {float(value)}: not finite")


@contextmanager
def _nothing_cached() -> Iterator[None]:
    """Compiles anew whatever the cache on disk holds, since the time it takes is measured."""
    before = getattr(jax.config, _CACHE_SWITCH)
    jax.config.update(_CACHE_SWITCH, False)
    compilation_cache.reset_cache()  # JAX asks for the setting only once
    try:
        yield
    finally:
        jax.config.update(_CACHE_SWITCH, before)
        compilation_cache.reset_cache()
