"""Hand-written gradients against plain autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.models import ops


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("platform_form", ["cpu", "other"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)])
@pytest.mark.parametrize("shape", [(64, 32, 96), (7, 5, 3), (96, 64, 33)])
def test_dense_equals_autodiff(monkeypatch, platform_form, dtype, tolerance, shape):
    monkeypatch.setattr(ops, "on_cpu", lambda: platform_form == "cpu")
    rows, inputs, outputs = shape
    x, kernel, bias = normal(0, rows, inputs), normal(1, inputs, outputs), normal(2, outputs)
    weights = normal(3, rows, outputs)

    def ours(x, kernel, bias):
        return jnp.sum(ops.dense(x.astype(dtype), kernel, bias).astype(jnp.float32) * weights)

    def plain(x, kernel, bias):
        return jnp.sum((x @ kernel + bias) * weights)

    found = jax.jit(jax.grad(ours, argnums=(0, 1, 2)))(x, kernel, bias)
    expected = jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(x, kernel, bias)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance * float(jnp.abs(want).max()))


@pytest.mark.parametrize("chunks", [1, 2, 6])
def test_weighted_loss_equals_autodiff(chunks):
    batch, length, width, vocabulary = 3, 6, 8, 11
    x, table, bias = normal(0, batch, length, width), normal(1, vocabulary, width), normal(2, vocabulary)
    labels = jax.random.randint(jax.random.key(3), (batch, length), 0, vocabulary)
    weights = jax.random.uniform(jax.random.key(4), (batch, length)).at[0, 2].set(0)

    def plain(x, table, bias):
        scores = jax.nn.log_softmax(x @ table.T + bias)
        return -jnp.sum(jnp.take_along_axis(scores, labels[..., None], -1)[..., 0] * weights)

    def ours(x, table, bias):
        return ops.weighted_loss(x, table, bias, labels, weights, chunks)

    np.testing.assert_allclose(ours(x, table, bias), plain(x, table, bias), rtol=1e-5)
    value, found = jax.value_and_grad(lambda *a: 2.5 * ours(*a), argnums=(0, 1, 2))(x, table, bias)
    np.testing.assert_allclose(value, 2.5 * plain(x, table, bias), rtol=1e-5)
    expected = jax.grad(lambda *a: 2.5 * plain(*a), argnums=(0, 1, 2))(x, table, bias)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_weighted_loss_never_holds_all_logits():
    batch, length, width, vocabulary = 4, 64, 8, 1000

    def gradient(x, table, bias, labels, weights):
        return jax.grad(lambda x: ops.weighted_loss(x, table, bias, labels, weights, 8))(x)

    shapes = (
        jax.ShapeDtypeStruct((batch, length, width), jnp.float32),
        jax.ShapeDtypeStruct((vocabulary, width), jnp.float32),
        jax.ShapeDtypeStruct((vocabulary,), jnp.float32),
        jax.ShapeDtypeStruct((batch, length), jnp.int32),
        jax.ShapeDtypeStruct((batch, length), jnp.float32),
    )
    temporary = jax.jit(gradient).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 4 * batch * length * vocabulary


def test_extreme_logits_give_finite_loss():
    x = jnp.full((1, 2, 4), 1e4)
    table = jnp.stack([jnp.ones(4), -jnp.ones(4)])
    value, gradient = jax.value_and_grad(ops.weighted_loss)(
        x, table, jnp.zeros(2), jnp.array([[0, 1]]), jnp.ones((1, 2)), 1
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("batch", "length", "vocabulary", "expected"), [(8, 256, 32_000, 4), (1, 2, 10, 1), (1024, 256, 250_000, 256)]
)
def test_head_chunks_divide_and_fit(batch, length, vocabulary, expected):
    chunks = ops.head_chunks(batch, length, vocabulary)
    assert chunks == expected
    assert length % chunks == 0


def test_dropout_keeps_the_mean_and_is_off_without_key():
    x = jnp.ones(20_000)
    dropped = ops.dropout(x, 0.25, jax.random.key(0))
    assert abs(float(dropped.mean()) - 1) < 0.02
    assert abs(float((dropped == 0).mean()) - 0.25) < 0.02
    assert ops.dropout(x, 0.25, None) is x
