"""Splines: inverse, slope, tails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.models.vits.spline import TAIL, make_spline, spline_forward, spline_inverse


def splines(points, seed=0, scale=2.0, bins=10):
    keys = jax.random.split(jax.random.key(seed), 3)
    sizes = [(points, bins), (points, bins), (points, bins - 1)]
    return make_spline(*(scale * jax.random.normal(key, size) for key, size in zip(keys, sizes, strict=True)))


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_inverse(scale):
    y = jnp.linspace(-7, 7, 501)
    spline = splines(len(y), scale=scale)
    x, inverse_log_slope = spline_inverse(y, spline)
    back, log_slope = spline_forward(x, spline)
    # At scale 4 slopes of exp(+-12) occur: a rounding error of x is then a step of y.
    np.testing.assert_allclose(back, y, atol=1e-5 if scale < 4 else 0.1)
    np.testing.assert_allclose(log_slope, -inverse_log_slope, atol=1e-3 if scale < 4 else 0.5)


def test_log_slope_is_that_of_the_curve():
    x = jnp.linspace(-6, 6, 301)
    spline = splines(len(x), scale=1.0)
    slope = jax.grad(lambda x: jnp.sum(spline_forward(x, spline)[0]))(x)
    np.testing.assert_allclose(jnp.log(slope), spline_forward(x, spline)[1], atol=1e-4)


def test_identity_outside_the_box_and_at_its_edges():
    x = jnp.array([-100.0, -TAIL, TAIL, 5.001, 1e6])
    for function in (spline_forward, spline_inverse):
        y, log_slope = function(x, splines(len(x)))
        np.testing.assert_allclose(y, x, rtol=1e-6)
        np.testing.assert_allclose(log_slope, 0, atol=1e-4)


def test_curves_rise():
    x = jnp.sort(jax.random.uniform(jax.random.key(3), (400,), minval=-6, maxval=6))
    one = jax.tree.map(lambda knots: jnp.broadcast_to(knots[:1], (len(x), knots.shape[1])), splines(1))
    y, _ = spline_forward(x, one)
    assert (jnp.diff(y) >= -1e-6).all()


@pytest.mark.parametrize("function", [spline_forward, spline_inverse])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_gradients_are_finite_everywhere(function, scale):
    x = jnp.array([-1e4, -TAIL, -4.99999, 0.0, 4.99999, TAIL, 1e4])

    def total(raw):
        y, log_slope = function(x, make_spline(*jnp.split(scale * raw, (10, 20), axis=-1)))
        return jnp.sum(y + log_slope)

    gradient = jax.grad(total)(jax.random.normal(jax.random.key(0), (len(x), 29)))
    assert np.isfinite(gradient).all()
