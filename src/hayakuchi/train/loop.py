"""The training loop: it knows the order of things and nothing else.

What a step computes is the task's, where arrays lie is the mesh's, what is written is the reporter's and the
checkpoints'.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool

from hayakuchi.config import Retrace
from hayakuchi.data.batches import BatchIterator
from hayakuchi.models.sharding import BATCH, shardings
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.guard import Guard
from hayakuchi.train.metrics import NonFiniteLossError, Reporter
from hayakuchi.train.precision import all_finite
from hayakuchi.train.profile import Profiler
from hayakuchi.train.signals import StopSignal
from hayakuchi.train.task import Task, TrainState
from hayakuchi.train.watch import Watch


@dataclass(frozen=True)
class Compiled:
    """The programs of a run, compiled once for each shape of batch; `train.guard` says what becomes of another.

    Attributes:
      step: (state, batch, key) -> (state, metrics); the state is donated.
      held_out: (parameters, batch) -> sums.
      show: (parameters, batch) -> pictures and sounds.
      unit: the name of the sum that other sums are divided by.
      finite: (state) -> whether all its numbers are.
      abstract_state: the state as ShapeDtypeStructs with shardings, to restore into.
      place: puts a process's rows of a batch on its devices.
      init: (key) -> state, sharded.
      with_frozen: puts a state that was saved without its frozen arrays together with them.
      executables: the compiled steps, one a shape of batch, for what the compiler says of them.
      seconds: time spent compiling the step, in all its shapes.
    """

    step: Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, Any]]]
    held_out: Callable[[Any, Any], dict[str, Any]]
    show: Callable[[Any, Any], dict[str, Any]]
    unit: str
    finite: Callable[[TrainState], Bool[Array, ""]]
    abstract_state: TrainState
    place: Callable[[Any], Any]
    init: Callable[[Any], TrainState]
    with_frozen: Callable[[TrainState], TrainState]
    executables: list[Any]
    seconds: float


def abstract_state(task: Task, mesh: Mesh) -> TrainState:
    """The state as ShapeDtypeStructs that say how it lies over the devices of a mesh."""
    state = jax.eval_shape(task.init, jax.random.key(0), task.frozen)
    layout = shardings(state, task.rules(), mesh)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, layout)
    return cast("TrainState", state)


def lower_steps(task: Task, mesh: Mesh) -> Iterator[tuple[Any, jax.stages.Lowered]]:
    """The step for each shape of batch, not yet compiled; the devices of the mesh need not be there.

    Raises:
      ValueError: the global batch is not a multiple of the number of devices.
    """
    for batch, traced in trace_steps(task, mesh):
        yield batch, traced.lower()


def trace_steps(task: Task, mesh: Mesh, specs: Sequence[Any] = ()) -> Iterator[tuple[Any, jax.stages.Traced]]:
    """The step as a jaxpr for each shape of batch, or for the `specs` given."""
    state = abstract_state(task, mesh)
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    layout = jax.tree.map(lambda x: x.sharding, state)
    key = jax.eval_shape(lambda: jax.random.key(0))
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
    step = jax.jit(task.step, donate_argnums=0, out_shardings=(layout, whole))
    for spec in specs or task.batch_specs():
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), spec)
        with jax.set_mesh(mesh):  # for what says itself what each device does (models/sharding.py)
            traced = step.trace(state, batch, key)
        yield batch, traced


def placed(local: Any, mesh: Mesh) -> Any:
    """A process's rows of a batch on its devices of a mesh."""
    rows = NamedSharding(mesh, BATCH)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows, x), local)


def compile_task(task: Task, mesh: Mesh, retrace: Retrace = "stop") -> Compiled:
    """Compiles a task's programs for a mesh.

    Args:
      task: what to train.
      mesh: devices.
      retrace: what becomes of a batch of a shape that the task has not declared.

    Raises:
      ValueError: the global batch is not a multiple of the number of devices.
    """
    state = abstract_state(task, mesh)
    layout = jax.tree.map(lambda x: x.sharding, state)
    whole = NamedSharding(mesh, P())

    def with_frozen(state: TrainState) -> TrainState:
        # A copy, since the state is donated and the task keeps its own.
        return state._replace(frozen=jax.device_put(task.frozen, layout.frozen, may_alias=False))

    def init(key: Any, frozen: Any) -> TrainState:
        return task.init(key, frozen)._replace(frozen=None)

    compiled_init = jax.jit(init, out_shardings=layout._replace(frozen=None))
    started = time.monotonic()
    declared = [(batch, lowered.compile()) for batch, lowered in lower_steps(task, mesh)]

    def compile_anew(batch: Any) -> Any:
        [(_, traced)] = trace_steps(task, mesh, [batch])
        return traced.lower().compile()

    seconds = time.monotonic() - started
    return Compiled(
        step=Guard(declared, state, compile_anew, retrace),
        held_out=_under(mesh, jax.jit(task.held_out_loss, out_shardings=whole)),
        show=_under(mesh, jax.jit(task.show, out_shardings=whole)),
        unit=task.unit,
        finite=jax.jit(all_finite, out_shardings=whole),
        abstract_state=state,
        place=lambda local: placed(local, mesh),
        init=lambda key: with_frozen(compiled_init(key, task.frozen)),
        with_frozen=with_frozen,
        executables=[executable for _, executable in declared],
        seconds=seconds,
    )


def _under(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with the mesh in context."""

    def call(*arguments: Any) -> Any:
        with jax.set_mesh(mesh):
            return function(*arguments)

    return call


def run(
    programs: Compiled,
    state: TrainState,
    key: Any,
    batches: BatchIterator[Any],
    held_out: Iterable[Any],
    checkpoints: Checkpoints,
    reporter: Reporter,
    *,
    profiler: Profiler,
    watch: Watch,
    steps: int,
    checkpoint_every: int,
    recipe: dict[str, Any],
    measure_first: bool = False,
) -> tuple[TrainState, str | None]:
    """Trains from `state` to `steps` optimiser steps.

    A checkpoint is written every `checkpoint_every` steps, at the end, and when a signal or the platform asks to stop.
    The held-out loss of those that a signal asked for is left to the session that goes on (`measure_first`).

    Returns:
      The last state, and the name of the signal that ended the run early, or None.

    Raises:
      NonFiniteLossError: a loss, or the state to be saved, is not finite; that state is not saved.
      CheckpointError: a checkpoint could not be written.
    """
    done = int(state.step)
    queue = _ahead(batches, programs.place, reporter)
    stopped = None
    with StopSignal(jax.process_count()) as stop:
        if measure_first:
            with paused(reporter):
                _measure(programs, state, held_out, reporter, done)
        while done < steps and not stopped:
            batch, position = next(queue)
            if watch.due(done):
                with paused(reporter):
                    reporter.watched(done + 1, watch(state, batch, key))
            profiler.before()
            state, metrics = programs.step(state, batch, key)
            if profiler.after(metrics):
                with paused(reporter):
                    profiler.close()
            done += 1
            reporter.push(done, metrics)
            if done < steps:
                stopped = stop.received or ("preemption" if checkpoints.preempted(done) else None)
            if done % checkpoint_every == 0 or done == steps or stopped:
                reporter.flush()
                with paused(reporter):
                    # The loss of this step is that of the state before it.
                    if not programs.finite(state):
                        raise NonFiniteLossError(done, "the state has a number that is not finite")
                    # Who asks to stop gives little time, too little perhaps to compile what computes the loss.
                    if not stopped:
                        _measure(programs, state, held_out, reporter, done)
                    # First the records, then the checkpoint: going on from it must find all lines up to it.
                    reporter.sync()
                    checkpoints.save(done, state._replace(frozen=None), key, position, recipe)
        with paused(reporter):
            profiler.close()
            checkpoints.wait()  # here a second SIGTERM still does no harm
    return state, stopped


@contextmanager
def paused(reporter: Reporter) -> Iterator[None]:
    """Counts the block's time as a pause of training."""
    started = time.monotonic()
    yield
    reporter.clock.paused += time.monotonic() - started


def _ahead(batches: BatchIterator[Any], place: Callable[[Any], Any], reporter: Reporter) -> Iterator[tuple[Any, int]]:
    """Batches on the device with the position after each, one transferred ahead of its use."""

    def fetch() -> tuple[Any, int]:
        started = time.monotonic()
        batch = place(next(batches))
        reporter.clock.waiting += time.monotonic() - started
        return batch, batches.position

    ready = fetch()
    while True:
        following = fetch()
        yield ready
        ready = following


def _measure(programs: Compiled, state: TrainState, held_out: Iterable[Any], reporter: Reporter, step: int) -> None:
    """Writes the held-out loss at a step, and shows examples."""
    loss = _held_out_loss(programs, state.parameters, held_out)
    if loss:
        reporter.write(step, loss)
        reporter.last |= loss
    for example in itertools.islice(held_out, 1):
        reporter.show(step, programs.show(state.parameters, programs.place(example)))


def _held_out_loss(programs: Compiled, parameters: Any, held_out: Iterable[Any]) -> dict[str, float]:
    """Losses per unit over the held-out batches; {} if there are none."""
    parts = [programs.held_out(parameters, programs.place(batch)) for batch in held_out]
    sums = {name: sum(float(part[name]) for part in parts) for name in (parts[0] if parts else ())}
    units = sums.pop(programs.unit, 0.0)
    return {f"held_out_{name}": total / units for name, total in sums.items()} if units else {}
