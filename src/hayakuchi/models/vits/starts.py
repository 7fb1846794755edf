"""Where parameters start: PyTorch's defaults, as in the published code, drawn so that a jitted `init` compiles fast."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

_BLOCK = 1 << 22
_ABOVE_MINUS_ONE = float(np.nextafter(np.float32(-1), np.float32(0)))

LayerT = TypeVar("LayerT", bound=nnx.Module)


class Source:
    """Random numbers for the parameters of a model, in the order its layers are built.

    They are pieces of a few long draws: XLA compiles a draw in a few tenths of a second whatever its length, and a
    model has hundreds of parameters.
    """

    def __init__(self, key: Key[Array, ""]) -> None:
        self._key = key
        self._draws = 0
        self._block: Array | None = None
        self._taken = 0

    def uniform(self, shape: tuple[int, ...], fan_in: int) -> Float[Array, "..."]:
        """Uniform in +-1/sqrt(fan_in)."""
        return self._take(shape) * (1 / math.sqrt(fan_in))

    def normal(self, shape: tuple[int, ...], deviation: float) -> Float[Array, "..."]:
        return jax.lax.erf_inv(self._take(shape)) * (math.sqrt(2) * deviation)

    def glorot(self, inputs: int, outputs: int) -> Float[Array, "I O"]:
        """Uniform in +-sqrt(6 / (I + O))."""
        return self._take((inputs, outputs)) * math.sqrt(6 / (inputs + outputs))

    def _take(self, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Uniform in (-1, 1)."""
        count = math.prod(shape)
        if count > _BLOCK:
            return self._draw(count).reshape(shape)
        if self._block is None or self._taken + count > _BLOCK:
            self._block, self._taken = self._draw(_BLOCK), 0
        piece = jax.lax.slice_in_dim(self._block, self._taken, self._taken + count)
        self._taken += count
        return piece.reshape(shape)

    def _draw(self, count: int) -> Float[Array, " N"]:
        self._draws += 1
        key = jax.random.fold_in(self._key, self._draws)
        return jax.random.uniform(key, (count,), jnp.float32, _ABOVE_MINUS_ONE, 1)


def stacked(build: Callable[[], LayerT], count: int) -> LayerT:
    """One module whose every parameter holds those of `count` modules in front, for `layers.scan_stack`."""
    graph, first = nnx.split(build(), nnx.Param)
    states = [first, *(nnx.split(build(), nnx.Param)[1] for _ in range(count - 1))]
    merged: LayerT = nnx.merge(graph, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
    return merged
