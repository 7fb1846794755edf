"""A step is compiled once for each declared shape of batch, and never again without a word.

A compile takes minutes on a TPU, and one that nobody asked for looks like a slow step. JAX makes it silently wherever a
shape, a dtype or a weak type differs.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax

from hayakuchi.config import Retrace
from hayakuchi.tracing.signature import differences, signature

logger = logging.getLogger(__name__)

_NAMES = ("state", "batch", "key")
_MOST_TOLD = 5


class RetraceError(RuntimeError):
    """A step was called with arguments that it has not been compiled for."""


class Guard:
    """The compiled steps of a run as one function: (state, batch, key) -> (state, metrics).

    Args:
      declared: each shape of batch, as ShapeDtypeStructs, with the step compiled for it.
      state: the state as ShapeDtypeStructs.
      compile_anew: compiles the step for another batch.
      retrace: "stop" raises for an undeclared batch, "warn" compiles it, once a shape.
    """

    def __init__(
        self,
        declared: Sequence[tuple[Any, Any]],
        state: Any,
        compile_anew: Callable[[Any], Any],
        retrace: Retrace = "stop",
    ) -> None:
        self._steps = {shapes_of(batch): executable for batch, executable in declared}
        self._declared = [batch for batch, _ in declared]
        self._state = state
        self._compile_anew = compile_anew
        self._retrace = retrace

    def __call__(self, state: Any, batch: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        """One step.

        Raises:
          RetraceError: it would have to be compiled for these arguments.
        """
        step = self._steps.get(shapes_of(batch))
        if step is None:
            step = self._undeclared(batch)
        try:
            result: tuple[Any, dict[str, Any]] = step(state, batch, key)
        except TypeError as error:  # how a compiled function refuses another dtype or tree
            if changed := self._changed(state, batch):
                raise RetraceError(_message(changed, len(self._declared))) from error
            raise
        return result

    def _undeclared(self, batch: Any) -> Any:
        changed = self._changed(self._state, batch)
        if self._retrace == "stop":
            raise RetraceError(_message(changed, len(self._declared)))
        logger.warning("the step is compiled anew: %s", ", ".join(changed[:_MOST_TOLD]))
        step = self._steps[shapes_of(batch)] = self._compile_anew(batch)
        return step

    def _changed(self, state: Any, batch: Any) -> list[str]:
        """What differs from the declared arguments that are nearest."""
        now = signature((state, batch), _NAMES)
        found = [differences(signature((self._state, spec), _NAMES), now) for spec in self._declared]
        return min(found, key=len)


def shapes_of(batch: Any) -> tuple[tuple[int, ...], ...]:
    """What tells a bucket's batches from another's: the shapes of all arrays."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _message(changed: list[str], declared: int) -> str:
    more = f" and {len(changed) - _MOST_TOLD} more" if len(changed) > _MOST_TOLD else ""
    shapes = "1 shape" if declared == 1 else f"{declared} shapes"
    return (
        f"the step would be compiled anew: {', '.join(changed[:_MOST_TOLD])}{more} (declared: {shapes} of batch). "
        "Pad to a declared shape and keep dtypes, or go on with --retrace warn"
    )
