"""Monotonic rational-quadratic splines with linear tails (Durkan et al. 2019, arXiv 1906.04032, section 3).

All in float32, and without boolean indexing: points outside the box are clipped into it, and the result is then
chosen between the spline and the identity.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

TAIL = 5.0
_LEAST_BIN = 1e-3
_LEAST_SLOPE = 1e-3


class Spline(NamedTuple):
    """Knots of a spline on [-TAIL, TAIL] and its slopes there: [..., K + 1] each for K bins."""

    x: Float[Array, "*B K1"]
    y: Float[Array, "*B K1"]
    slope: Float[Array, "*B K1"]


class _Bin(NamedTuple):
    """The bin a point falls into: left knot, sizes, slopes at its ends and mean slope."""

    x: Array
    y: Array
    width: Array
    height: Array
    left: Array
    right: Array
    mean: Array


def make_spline(
    widths: Float[Array, "*B K"], heights: Float[Array, "*B K"], slopes: Float[Array, "*B inner"]
) -> Spline:
    """Splines of unconstrained numbers: K widths and heights and K - 1 inner slopes; the outer slopes are 1."""
    inner = _LEAST_SLOPE + jax.nn.softplus(slopes)
    one = jnp.ones((*inner.shape[:-1], 1), inner.dtype)
    return Spline(_knots(widths), _knots(heights), jnp.concatenate([one, inner, one], axis=-1))


def spline_forward(x: Float[Array, "*B"], spline: Spline) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """The spline at x and the logarithm of its slope there."""
    clipped = jnp.clip(x, -TAIL, TAIL)
    part = _bin(clipped, spline.x, spline)
    theta = (clipped - part.x) / part.width
    cross = theta * (1 - theta)
    curve = part.left + part.right - 2 * part.mean
    y = part.y + part.height * (part.mean * theta * theta + part.left * cross) / (part.mean + curve * cross)
    inside = jnp.abs(x) < TAIL
    return jnp.where(inside, y, x), jnp.where(inside, _log_slope(theta, part), 0)


def spline_inverse(y: Float[Array, "*B"], spline: Spline) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """The inverse of the spline at y and the logarithm of the inverse's slope there (equations 6 to 8)."""
    clipped = jnp.clip(y, -TAIL, TAIL)
    part = _bin(clipped, spline.y, spline)
    rise = clipped - part.y
    curve = part.left + part.right - 2 * part.mean
    a = rise * curve + part.height * (part.mean - part.left)
    b = part.height * part.left - rise * curve
    c = -part.mean * rise
    theta = 2 * c / (-b - jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0)))
    inside = jnp.abs(y) < TAIL
    x = theta * part.width + part.x
    return jnp.where(inside, x, y), jnp.where(inside, -_log_slope(theta, part), 0)


def _knots(sizes: Float[Array, "*B K"]) -> Float[Array, "*B K1"]:
    """K + 1 rising positions from -TAIL to TAIL."""
    bins = sizes.shape[-1]
    shares = _LEAST_BIN + (1 - _LEAST_BIN * bins) * jax.nn.softmax(sizes, axis=-1)
    inner = 2 * TAIL * jnp.cumsum(shares[..., :-1], axis=-1) - TAIL
    edge = jnp.full((*inner.shape[:-1], 1), TAIL, inner.dtype)
    return jnp.concatenate([-edge, inner, edge], axis=-1)


def _bin(points: Float[Array, "*B"], knots: Float[Array, "*B K1"], spline: Spline) -> _Bin:
    bins = knots.shape[-1] - 1
    index = jnp.sum(points[..., None] >= knots[..., 1:-1], axis=-1)
    chosen = index[..., None] == np.arange(bins)
    values = jnp.stack(
        [
            spline.x[..., :-1],
            spline.y[..., :-1],
            spline.x[..., 1:] - spline.x[..., :-1],
            spline.y[..., 1:] - spline.y[..., :-1],
            spline.slope[..., :-1],
            spline.slope[..., 1:],
        ]
    )
    x, y, width, height, left, right = jnp.sum(values * chosen.astype(values.dtype), axis=-1)
    return _Bin(x, y, width, height, left, right, height / width)


def _log_slope(theta: Array, part: _Bin) -> Array:
    """Equation 5: logarithm of the slope at a share `theta` of the bin."""
    cross = theta * (1 - theta)
    curve = part.left + part.right - 2 * part.mean
    numerator = part.right * theta * theta + 2 * part.mean * cross + part.left * jnp.square(1 - theta)
    return 2 * jnp.log(part.mean) + jnp.log(numerator) - 2 * jnp.log(part.mean + curve * cross)
