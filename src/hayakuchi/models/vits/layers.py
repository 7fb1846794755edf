"""Layers that several components share."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from hayakuchi.models import ops
from hayakuchi.models.convolutions import add_bias, convolution_in_scan, weight_norm
from hayakuchi.models.layers import LayerNorm
from hayakuchi.models.module import Module
from hayakuchi.models.vits.starts import Source

LAYER_NORM_EPSILON = 1e-5


class Pointwise(Module):
    """Convolution of width 1, an affine map of every position: kernel [I, O], bias [O]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        source: Source,
        *,
        glorot: bool = False,
        zero: bool = False,
        precision: lax.Precision | None = None,
    ) -> None:
        """With `glorot` the kernel starts as Glorot's uniform, with `zero` kernel and bias start at 0."""
        self.precision = precision
        if zero:
            self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))
            self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32))
            return
        self.kernel = nnx.Param(source.glorot(inputs, outputs) if glorot else source.uniform((inputs, outputs), inputs))
        self.bias = nnx.Param(source.uniform((outputs,), inputs))

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        y = ops.dense(x.reshape(-1, x.shape[-1]), self.kernel[...], self.bias[...], self.precision)
        return y.reshape(*x.shape[:-1], -1)


class Convolution(Module):
    """Convolution that keeps the length: kernel [W, I, O], bias [O] or none."""

    def __init__(
        self,
        width: int,
        inputs: int,
        outputs: int,
        source: Source,
        *,
        biased: bool = True,
        precision: lax.Precision | None = None,
    ) -> None:
        self.precision = precision
        self.kernel = nnx.Param(source.uniform((width, inputs, outputs), width * inputs))
        self.bias = nnx.Param(source.uniform((outputs,), width * inputs)) if biased else None

    def __call__(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        y = convolution_in_scan(x, self.kernel[...], self.precision)
        return y if self.bias is None else add_bias(y, self.bias[...])


class WeightNormed(Module):
    """Kernel and bias of a weight-normalised layer, or of a stack of equal ones (arXiv 1602.07868).

    direction [*N, *K, O] and gain [*N, O]: the kernel is gain * direction / ||direction||, the norm taken over K.
    """

    def __init__(
        self, shape: tuple[int, ...], source: Source, stack: tuple[int, ...] = (), biases: int | None = None
    ) -> None:
        """`shape` is (*K, O), `stack` is N; the bias has O elements or `biases`."""
        fan_in = math.prod(shape[:-1])
        direction = source.uniform((*stack, *shape), fan_in)
        self.direction = nnx.Param(direction)
        self.gain = nnx.Param(jnp.linalg.norm(direction.reshape(*stack, fan_in, shape[-1]), axis=-2))
        self.bias = nnx.Param(source.uniform((*stack, biases or shape[-1]), fan_in))

    def kernel(self) -> Float[Array, "..."]:
        """The folded kernel, [*N, *K, O] float32."""
        return weight_norm(self.direction[...], self.gain[...], self.gain[...].ndim - 1)


class ChannelNorm(LayerNorm):
    """LayerNorm of every position of [B, T, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, LAYER_NORM_EPSILON)

    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        return super().__call__(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def unstack(stack: Float[Array, "N D ..."]) -> list[Float[Array, "D ..."]]:
    """The N parts of a stack; unlike indexing, its gradient is one concatenation."""
    number, first, *rest = stack.shape
    return list(lax.split(stack.reshape(number * first, *rest), (first,) * number, axis=0))


def scan_stack(
    stack: nnx.Module,
    body: Callable[[Any, Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    *,
    first: int = 0,
    reverse: bool = False,
) -> Any:
    """Runs body(layer, carry, x) -> (carry, y) over a module of stacked parameters; returns the last carry.

    Args:
      stack: a module whose every parameter has the layers in front, as `starts.stacked` makes it.
      body: one layer's computation.
      carry: what goes from layer to layer.
      xs: further values that differ by layer, stacked.
      first: layers before this one are left out.
      reverse: from the last layer to the first.
    """
    graph, state = nnx.split(stack)

    def step(carry: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
        state, x = inputs
        return body(nnx.merge(graph, state), carry, x)

    inputs = (state, xs)
    if first:
        inputs = jax.tree.map(lambda leaf: leaf[first:], inputs)
    return lax.scan(step, carry, inputs, reverse=reverse)[0]


def length_mask(lengths: Int[Array, " B"], length: int) -> Bool[Array, "B {length}"]:
    """True at the first `lengths` of `length` positions."""
    return jnp.arange(length) < lengths[:, None]


def masked(x: Float[Array, "B T C"], mask: Bool[Array, "B T"]) -> Float[Array, "B T C"]:
    """x where the mask is true, 0 elsewhere."""
    return x * mask[..., None].astype(x.dtype)
