"""What is told of an array: how large its numbers are, and how many of them no longer are numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

FLOAT16_LARGEST, FLOAT16_SMALLEST = 65_504.0, 6.104e-5
_LARGEST_SQUARED = 1e15


class Measures(NamedTuple):
    """Of an array, or of several together.

    Attributes:
      values: how many there are.
      nan: of these NaN.
      infinite: of these infinite.
      largest: absolute value, of the finite ones.
      smallest: absolute value, of the finite ones that are not 0; infinity where there are none.
      squares: sum of squares of the finite ones, those beyond 1e15 as that: their squares are more than float32 holds.
      beyond: finite ones that are too large for float16.
      below: those not 0 that are too small for float16's full precision.
    """

    values: Any
    nan: Any
    infinite: Any
    largest: Any
    smallest: Any
    squares: Any
    beyond: Any
    below: Any


def measure(values: Sequence[Array]) -> Measures:
    """Measures of floating arrays; a pure function."""
    flat = [jnp.ravel(value).astype(jnp.float32) for value in values]
    value = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
    nan, infinite = jnp.isnan(value), jnp.isinf(value)
    finite = jnp.where(nan | infinite, 0, jnp.abs(value))

    def count(which: Array) -> Float[Array, ""]:
        return jnp.sum(which, dtype=jnp.float32)

    return Measures(
        values=jnp.float32(value.size),
        nan=count(nan),
        infinite=count(infinite),
        largest=jnp.max(finite),
        smallest=jnp.min(jnp.where(finite > 0, finite, jnp.inf)),
        squares=jnp.sum(jnp.square(jnp.minimum(finite, _LARGEST_SQUARED))),
        beyond=count(finite > FLOAT16_LARGEST),
        below=count((finite > 0) & (finite < FLOAT16_SMALLEST)),
    )


def together(measures: Measures) -> Measures:
    """Of [R] arrays, one entry an array measured, those of all."""
    sums = {name: value.sum(0) for name, value in measures._asdict().items()}
    return Measures(**{**sums, "largest": measures.largest.max(0), "smallest": measures.smallest.min(0)})
