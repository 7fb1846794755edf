"""`--watch N`: what the activations and gradients of each module are like, every N steps.

The statistics come from a program of their own, the step's forward and backward pass with a measurement behind each
module. It takes the time and memory of another step without its update, in which nothing is recomputed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from hayakuchi.tracing.evaluate import measured_run
from hayakuchi.tracing.measures import Measures, measure
from hayakuchi.tracing.program import Node, program_of, without_unused
from hayakuchi.train.guard import shapes_of
from hayakuchi.train.task import Task, TrainState

_DEPTH = 4
_taps: ContextVar[dict[str, Any]] = ContextVar("_taps")

Statistics = dict[str, Float[Array, ""]]


def tap(name: str, tree: Any) -> None:
    """Shows a step's inner value to whoever watches; else it does nothing."""
    found = _taps.get(None)
    if found is not None:
        found[name] = tree


@contextmanager
def _tapped() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    token = _taps.set(found)
    try:
        yield found
    finally:
        _taps.reset(token)


class Watch:
    """Statistics of a task's modules.

    Args:
      task: what is trained.
      mesh: its devices.
      every: steps between statistics; 0 never.
    """

    def __init__(self, task: Task, mesh: Mesh, every: int) -> None:
        self._task = task
        self._mesh = mesh
        self._every = every
        self._programs: dict[Any, Callable[..., Statistics]] = {}

    def due(self, step: int) -> bool:
        """Whether the step that begins after `step` others is to be watched; the first one is."""
        return self._every > 0 and step % self._every == 0

    def __call__(self, state: TrainState, batch: Any, key: Any) -> dict[str, float]:
        """By name, "activations/ctrl/norm/rms" or "gradients/norm/largest", what a step's numbers are like."""
        shapes = shapes_of(batch)
        with jax.set_mesh(self._mesh):
            if shapes not in self._programs:
                statistics = _statistics(self._task, state, batch, key)
                self._programs[shapes] = jax.jit(statistics, out_shardings=NamedSharding(self._mesh, P()))
            found = self._programs[shapes](state, batch, key)
        return {name: float(value) for name, value in jax.device_get(found).items()}


def _statistics(task: Task, *arguments: Any) -> Callable[..., Statistics]:
    """A function of (state, batch, key) that gives the statistics."""

    def gradients(state: TrainState, batch: Any, key: Any) -> dict[str, Any]:
        with _tapped() as found:
            task.step(state, batch, key)
        return found

    closed, shapes = jax.make_jaxpr(gradients, return_shape=True)(*arguments)
    program = program_of(without_unused(closed), _outputs)
    names = ["/".join(node.site.modules[:_DEPTH]) for node in program.measured()]
    groups: dict[str, list[int]] = {}
    for index, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(shapes)):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            parts = jax.tree_util.keystr(path[:-1], simple=True, separator="/").split("/")
            groups.setdefault("/".join(parts[:_DEPTH]), []).append(index)

    def statistics(*values: Any) -> Statistics:
        results, measures = measured_run(program, *jax.tree.leaves(values))
        found: Statistics = {}
        for at, name in enumerate(names):
            found |= _told(f"activations/{name}", Measures(*(column[at] for column in measures)))
        for name, indices in groups.items():
            found |= _told(name, measure([results[index] for index in indices]))
        return found

    return statistics


def _outputs(nodes: list[Node]) -> list[Node]:
    """Of each module the equation of the forward pass that gives its result: the last one."""
    last = {
        node.site.modules[:_DEPTH]: node for node in nodes if node.site.direction == "forward" and node.site.modules
    }
    return list(last.values())


def _told(name: str, measures: Measures) -> Statistics:
    bad = measures.nan + measures.infinite
    return {
        f"{name}/rms": jnp.sqrt(measures.squares / jnp.maximum(measures.values - bad, 1)),
        f"{name}/largest": measures.largest,
        f"{name}/not_finite": bad,
    }
