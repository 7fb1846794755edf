"""Floating-point operations of a program, counted on its jaxpr: before any compiler, and loops by their trips.

XLA's own count (`cost_analysis`) takes the body of a loop once, so that a scanned model would seem to cost what one of
its layers does.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

# One operation for each number that comes out.
_ARITHMETIC = (
    *("abs", "add", "add_any", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "digamma", "div", "erf"),
    *("erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "integer_pow", "lgamma", "log", "log1p", "logistic", "max"),
    *("min", "mul", "neg", "pow", "rem", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan"),
    "tanh",
)
# One operation for each number that goes in.
_REDUCTIONS = (
    *("argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_max", "reduce_min"),
    *("reduce_prod", "reduce_sum"),
)
# One operation for each number of the updates, the third argument.
_SCATTERS = ("scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")


@dataclass(frozen=True)
class Flops:
    """A count of floating-point operations, over all devices.

    Attributes:
      products: of matrix products and convolutions, a multiplication and an addition for each pair of numbers that
        meet. Zeros that a convolution puts around or between numbers are not counted.
      others: of elementwise arithmetic, reductions and Fourier transforms.
      open_loops: loops of which the number of trips is not known before they run: their bodies count once.
    """

    products: int = 0
    others: int = 0
    open_loops: int = 0

    @property
    def total(self) -> int:
        return self.products + self.others

    def __add__(self, more: "Flops") -> "Flops":
        return Flops(self.products + more.products, self.others + more.others, self.open_loops + more.open_loops)

    def __mul__(self, times: int) -> "Flops":
        """So many times the operations; an open loop stays one place in the program."""
        return Flops(self.products * times, self.others * times, self.open_loops)


def count_flops(jaxpr: Any) -> Flops:
    """Floating-point operations of a jaxpr, those it calls included.

    A scan counts by its length, and so does a `fori_loop` of known bounds, which JAX makes a scan. Of the branches of a
    `cond` the dearest counts; a `shard_map` counts on each of its devices.

    Args:
      jaxpr: from `jax.make_jaxpr(function)(*shapes)`, or one that it holds.
    """
    return sum((_count(equation) for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns), start=Flops())


def _count(equation: Any) -> Flops:
    rule = _RULES.get(equation.primitive.name)
    if rule is not None:
        return rule(equation)
    return sum((count_flops(inner) for inner in _inner(equation.params)), start=Flops())


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs that an equation calls: of `jit`, `checkpoint`, `custom_vjp_call` and their like."""
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(one, "jaxpr", one), "eqns"):
                yield one


def _numbers(variables: list[Any]) -> Flops:
    """One operation for each floating-point number in these variables."""
    avals = [variable.aval for variable in variables]
    return Flops(others=sum(aval.size for aval in avals if jnp.issubdtype(aval.dtype, jnp.inexact)))


def _product(equation: Any) -> Flops:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return Flops(products=2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted))


def _while(equation: Any) -> Flops:
    params = equation.params
    return count_flops(params["cond_jaxpr"]) + count_flops(params["body_jaxpr"]) + Flops(open_loops=1)


def _cond(equation: Any) -> Flops:
    return max((count_flops(branch) for branch in equation.params["branches"]), key=lambda flops: flops.total)


def _shard_map(equation: Any) -> Flops:
    params = equation.params
    devices: int = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return count_flops(params["jaxpr"]) * devices


def _fft(equation: Any) -> Flops:
    avals = equation.invars[0].aval, equation.outvars[0].aval
    # The usual 5 N log2 N of a complex transform, half of it where one side is real.
    both = all(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in avals)
    points = math.prod(equation.params["fft_lengths"])
    return Flops(others=round((5 if both else 2.5) * max(aval.size for aval in avals) * math.log2(max(points, 2))))


def _convolution(equation: Any) -> Flops:
    params, y = equation.params, equation.outvars[0].aval.shape
    x, kernel = (variable.aval.shape for variable in equation.invars)
    x_axes, kernel_axes, y_axes = params["dimension_numbers"]  # batch or outputs, features, space or time
    # Of a grouped convolution the kernel has the input features of one group only.
    count = 2 * y[y_axes[0]] * y[y_axes[1]] * kernel[kernel_axes[1]]
    for number, (of_x, of_kernel, of_y) in enumerate(zip(x_axes[2:], kernel_axes[2:], y_axes[2:], strict=True)):
        count *= _pairs(
            x[of_x],
            kernel[of_kernel],
            y[of_y],
            params["window_strides"][number],
            params["padding"][number][0],
            params["lhs_dilation"][number],
            params["rhs_dilation"][number],
        )
    return Flops(products=count)


@lru_cache
def _pairs(length: int, taps: int, results: int, stride: int, left: int, spread: int, dilation: int) -> int:
    """How often along one axis a tap of the kernel meets a number of the input, and not a zero put in."""
    many, few = np.arange(results) * stride, np.arange(taps) * dilation
    if len(few) > len(many):  # the gradient of a kernel is a convolution with a kernel as long as the input
        many, few = few, many
    found = 0
    for offset in few.tolist():
        place = many + (offset - left)
        found += int(np.count_nonzero((place >= 0) & (place <= (length - 1) * spread) & (place % spread == 0)))
    return found


_RULES: dict[str, Callable[[Any], Flops]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "scan": lambda equation: count_flops(equation.params["jaxpr"]) * int(equation.params["length"]),
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "fft": _fft,
    **dict.fromkeys(_ARITHMETIC, lambda equation: _numbers(equation.outvars)),
    **dict.fromkeys(_REDUCTIONS, lambda equation: _numbers(equation.invars)),
    **dict.fromkeys(_SCATTERS, lambda equation: _numbers(equation.invars[2:])),
}
