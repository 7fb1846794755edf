"""The rewritten convolutions against `lax.conv_general_dilated`, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hayakuchi.models import ops
from hayakuchi.models.convolutions import (
    add_bias,
    convolution,
    convolution_in_scan,
    grouped_convolution,
    leaky_relu,
    reflect_pad,
    transposed_convolution,
    weight_norm,
    windows,
)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def assert_same_function(ours, theirs, *arguments):
    """Equal values, and equal gradients of a random projection with regard to every argument."""
    expected = theirs(*arguments)
    weights = normal(9, *expected.shape)
    assert_close(ours(*arguments), expected)
    places = tuple(range(len(arguments)))
    found = jax.jit(jax.grad(lambda *a: jnp.sum(ours(*a) * weights), places))(*arguments)
    wanted = jax.jit(jax.grad(lambda *a: jnp.sum(theirs(*a) * weights), places))(*arguments)
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want)


def assert_close(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max()))


@pytest.mark.parametrize(
    ("width", "stride", "padding"), [(16, 8, 4), (4, 2, 1), (3, 1, 1), (7, 3, 2), (5, 4, 0), (2, 2, 0), (8, 4, 3)]
)
@pytest.mark.parametrize("length", [1, 9])
def test_transposed_convolution(width, stride, padding, length):
    def native(x, kernel_woi):
        pad = width - 1 - padding
        return lax.conv_general_dilated(
            x,
            jnp.flip(kernel_woi, 0).swapaxes(1, 2),
            (1,),
            [(pad, pad)],
            lhs_dilation=(stride,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def ours(x, kernel_woi):
        return transposed_convolution(x, kernel_woi, stride, padding)

    assert_same_function(ours, native, normal(0, 2, length, 6), normal(1, width, 4, 6))


@pytest.mark.parametrize("platform", ["cpu", "other"])
@pytest.mark.parametrize(
    ("width", "stride", "padding", "groups", "length"),
    [(41, 4, 20, 4, 64), (41, 4, 20, 2, 3), (5, 1, 2, 4, 9), (7, 3, 3, 1, 20), (4, 2, 0, 8, 11)],
)
def test_grouped_convolution(monkeypatch, platform, width, stride, padding, groups, length):
    monkeypatch.setattr(ops, "on_cpu", lambda: platform == "cpu")

    def native(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride,),
            [(padding, padding)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )

    def ours(x, kernel):
        return grouped_convolution(x, kernel, groups, stride, padding)

    assert_same_function(ours, native, normal(0, 2, length, 16), normal(1, width, 16 // groups, 24))


@pytest.mark.parametrize(
    ("width", "stride", "dilation", "padding", "length"), [(7, 1, 5, 15, 40), (5, 3, 1, 2, 2), (7, 1, 3, 9, 4)]
)
def test_convolution(width, stride, dilation, padding, length):
    def native(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride,),
            [(padding, padding)],
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def ours(x, kernel):
        return convolution(x, kernel, stride=stride, dilation=dilation, padding=padding)

    assert_same_function(ours, native, normal(0, 2, length, 6), normal(1, width, 6, 4))


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("length", [1, 12])
def test_convolution_in_scan(width, length):
    assert_same_function(convolution_in_scan, convolution, normal(0, 2, length, 6), normal(1, width, 6, 4))


@pytest.mark.parametrize(("width", "dilation"), [(1, 1), (3, 1), (7, 5), (11, 3)])
def test_convolution_keeps_the_length_and_its_centre(width, dilation):
    kernel = jnp.zeros((width, 3, 3)).at[width // 2].set(jnp.eye(3))
    x = normal(0, 2, 20, 3)
    assert_close(convolution(x, kernel, dilation=dilation), x)


@pytest.mark.parametrize(("width", "stride", "length"), [(4, 2, 10), (5, 2, 10), (3, 4, 12), (6, 1, 6), (7, 3, 30)])
@pytest.mark.parametrize("rest", [(), (2,)])
def test_windows(width, stride, length, rest):
    x = normal(0, 2, length, *rest)
    starts = range(0, length - width + 1, stride)
    expected = jnp.stack([x[:, start : start + width] for start in starts], axis=1)
    np.testing.assert_array_equal(windows(x, width, stride), expected)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (0, 4), (5, 5)])
def test_reflect_pad(left, right):
    x = normal(0, 2, 6)
    np.testing.assert_array_equal(
        reflect_pad(x, left, right), np.pad(np.asarray(x), ((0, 0), (left, right)), mode="reflect")
    )


def test_reflect_pad_refuses_a_signal_that_is_too_short():
    with pytest.raises(ValueError, match="reflect 6 samples of a signal of 6"):
        reflect_pad(jnp.ones((1, 6)), 0, 6)


def test_add_bias():
    assert_same_function(add_bias, lambda x, bias: x + bias, normal(0, 2, 5, 3), normal(1, 3))


@pytest.mark.parametrize("platform", ["cpu", "other"])
@pytest.mark.parametrize("stack", [(), (3,), (2, 3)])
def test_weight_norm(monkeypatch, platform, stack):
    monkeypatch.setattr(ops, "on_cpu", lambda: platform == "cpu")
    axes = (-3, -2)

    def plain(direction, gain):
        norm = jnp.sqrt(jnp.sum(direction**2, axis=axes, keepdims=True))
        return gain[..., None, None, :] * direction / norm

    def ours(direction, gain):
        return weight_norm(direction, gain, len(stack))

    direction, gain = normal(0, *stack, 5, 2, 4), normal(1, *stack, 4)
    assert_same_function(ours, plain, direction, gain)
    assert_close(jnp.sqrt(jnp.sum(ours(direction, gain) ** 2, axis=axes)), jnp.abs(gain))


@pytest.mark.parametrize("slope", [0.1, 0.01])
def test_leaky_relu(slope):
    assert_same_function(lambda x: leaky_relu(x, slope), lambda x: jnp.where(x > 0, x, slope * x), normal(0, 2, 5, 3))


def test_bfloat16_results_are_bfloat16_and_weight_gradients_float32():
    x, kernel = normal(0, 2, 16, 4).astype(jnp.bfloat16), normal(1, 8, 4, 4)
    for function in (
        lambda x, kernel: convolution(x, kernel, padding=4),
        lambda x, kernel: transposed_convolution(x, kernel, 4, 2),
        lambda x, kernel: grouped_convolution(x, kernel[:, :2], 2, 2, 3),
    ):
        y = function(x, kernel)
        assert y.dtype == jnp.bfloat16
        assert_bfloat16_close(y, function(x.astype(jnp.float32), kernel))
        gradient = jax.grad(lambda k, f=function: jnp.sum(f(x, k).astype(jnp.float32)))(kernel)
        assert gradient.dtype == jnp.float32


def assert_bfloat16_close(got, want):
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.02 * float(jnp.abs(want).max()))
