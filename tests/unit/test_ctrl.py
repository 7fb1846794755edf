"""Properties of the CTRL model: who may look at whom, and that every way to run it gives the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.config import CtrlConfig
from hayakuchi.models.ctrl import Ctrl, sinusoid


def config(**changes):
    sizes = {"vocabulary_size": 50, "length": 12, "layers": 2, "width": 16, "heads": 2, "feed_forward": 24}
    return CtrlConfig(**{**sizes, "dropout": 0.0, **changes})


def plain_batch(rows=2, length=12, seed=0):
    tokens = jax.random.randint(jax.random.key(seed), (rows, length), 0, 50)
    return tokens, jnp.ones_like(tokens), jnp.broadcast_to(jnp.arange(length), tokens.shape)


KINDS = {
    "list": {},
    "scan": {"scan_layers": True},
    "shared": {"sharing": "all"},
    "shared-scan": {"layers": 4, "sharing": "attention", "sharing_groups": 2, "scan_layers": True},
    "factorised": {"embedding_width": 6},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def model(request):
    return Ctrl(config(**request.param), jax.random.key(1))


def input_gradient(model, segments, positions, tokens, place):
    """Gradient of all scores at one place with regard to every position's embedding."""
    graph, state = nnx.split(model, nnx.Param)
    parameters = nnx.to_pure_dict(state)
    table = parameters["embedding"]

    def scores(noise):
        # Every position gets a row of its own in a longer table, so that noise on a row reaches that position alone.
        longer = parameters | {"embedding": jnp.concatenate([table, table[tokens[0]] + noise])}
        private = table.shape[0] + jnp.arange(tokens.shape[1])[None]
        weights = jnp.arange(1.0, 1 + table.shape[1])  # the sum alone is constant after LayerNorm
        return nnx.merge(graph, longer).hidden(private, segments, positions)[0, place] @ weights

    return jax.grad(scores)(jnp.zeros((tokens.shape[1], table.shape[1])))


def test_causality_by_zero_gradients(model):
    tokens, segments, positions = plain_batch(rows=1)
    for place in (0, 5, 11):
        gradient = np.abs(input_gradient(model, segments, positions, tokens, place)).sum(-1)
        assert (gradient[: place + 1] > 0).all()
        assert (gradient[place + 1 :] == 0).all()


def test_packing_by_zero_gradients(model):
    tokens, _, _ = plain_batch(rows=1)
    segments = jnp.array([[1] * 5 + [2] * 7])
    positions = jnp.array([[*range(5), *range(7)]])
    gradient = np.abs(input_gradient(model, segments, positions, tokens, 11)).sum(-1)
    assert (gradient[:5] == 0).all()
    assert (gradient[5:] > 0).all()


def test_packed_logits_equal_unpacked_and_ignore_the_neighbour(model):
    """R3."""
    tokens, _, _ = plain_batch(rows=1)
    segments = jnp.array([[1] * 5 + [2] * 7])
    positions = jnp.array([[*range(5), *range(7)]])
    packed = model.logits(model.hidden(tokens, segments, positions))
    edited = model.logits(model.hidden(tokens.at[0, :5].add(1), segments, positions))
    np.testing.assert_array_equal(packed[:, 5:], edited[:, 5:])
    assert np.abs(packed[:, :5] - edited[:, :5]).max() > 1e-3
    for part in (slice(0, 5), slice(5, 12)):
        alone = tokens[:, part]
        unpacked = model.logits(model.hidden(alone, jnp.ones_like(alone), positions[:, part]))
        np.testing.assert_allclose(packed[:, part], unpacked, atol=2e-5)


def test_scanned_equals_listed():
    listed, scanned = Ctrl(config(), jax.random.key(1)), Ctrl(config(scan_layers=True), jax.random.key(1))
    batch = plain_batch()
    np.testing.assert_allclose(listed.hidden(*batch), scanned.hidden(*batch), atol=1e-5)


def test_cache_equals_whole_pass(model):
    tokens, segments, positions = plain_batch()
    whole = model.hidden(tokens, segments, positions)
    first, cache = model.extend(tokens[:, :7], model.empty_cache(2, 16))
    np.testing.assert_allclose(first, whole[:, :7], atol=1e-5)
    for place in range(7, 12):
        one, cache = model.extend(tokens[:, place : place + 1], cache)
        np.testing.assert_allclose(one[:, 0], whole[:, place], atol=1e-5)
    assert int(cache.filled) == 12


@pytest.mark.parametrize("scan", [False, True])
def test_dropout_differs_by_layer_and_step(scan):
    """R9: all masks of a pass differ from one another; another key, as each step has its own, draws others."""
    model = Ctrl(config(dropout=0.5, layers=2, scan_layers=scan), jax.random.key(0))
    tokens, segments, positions = plain_batch()
    one = model.hidden(tokens, segments, positions, jax.random.key(1))
    same = model.hidden(tokens, segments, positions, jax.random.key(1))
    other = model.hidden(tokens, segments, positions, jax.random.key(2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
    masks = layer_masks(model, tokens, segments, positions)
    assert len({mask.tobytes() for mask in masks}) == len(masks)


def layer_masks(model, tokens, segments, positions):
    """The bits that dropout masks of a pass are made of, recorded as the code draws them (inside the scan too)."""
    drawn = []
    plain = jax.random.bits

    def recording(key, shape, dtype):
        bits = plain(key, shape, dtype)
        jax.debug.callback(lambda found: drawn.append(np.asarray(found)), bits)
        return bits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "bits", recording)
        jax.block_until_ready(model.hidden(tokens, segments, positions, jax.random.key(3)))
        jax.effects_barrier()
    assert len(drawn) == 1 + 2 * model.config.layers
    return drawn


def test_sinusoid_is_not_interleaved():
    """All sines, then all cosines, as in the released code (salesforce/ctrl, transformer.py)."""
    table = np.asarray(sinusoid(jnp.arange(5), 6))
    np.testing.assert_allclose(table[0], [0, 0, 0, 1, 1, 1], atol=1e-7)
    np.testing.assert_allclose(table[3, 0], np.sin(3), rtol=1e-5)
    np.testing.assert_allclose(table[3, 4], np.cos(3 / 10_000 ** (2 / 6)), rtol=1e-5)


def test_loss_is_the_sum_of_token_losses(model):
    tokens, segments, positions = plain_batch()
    hidden = model.hidden(tokens, segments, positions)
    weights = jnp.zeros(tokens.shape).at[:, 3:6].set(0.5)
    expected = 0.5 * model.token_losses(hidden, tokens)[:, 3:6].sum()
    np.testing.assert_allclose(model.loss(hidden, tokens, weights), expected, rtol=1e-5)


def test_bfloat16_stays_close_and_keeps_float32_parameters():
    model = Ctrl(config(), jax.random.key(1))
    half = Ctrl(config(), jax.random.key(1), jnp.bfloat16)
    batch = plain_batch()
    logits = half.logits(half.hidden(*batch))
    assert logits.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    np.testing.assert_allclose(logits, model.logits(model.hidden(*batch)), atol=0.15)
