"""Monotonic alignment search against every path there is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.models.vits.alignment import align, alignment_scores, along, expand
from hayakuchi.models.vits.layers import length_mask

RANDOM = np.random.default_rng(0)


def run(scores, frame_lengths, text_lengths):
    scores = jnp.asarray(scores, jnp.float32)
    _, frames, symbols = scores.shape
    masks = length_mask(jnp.asarray(frame_lengths), frames), length_mask(jnp.asarray(text_lengths), symbols)
    return np.asarray(jax.jit(align)(scores, *masks))


def best_of_all(scores):
    """The path of the largest sum, by trying all."""
    frames, symbols = scores.shape
    best, best_score = None, -np.inf
    for cuts in itertools.combinations(range(1, frames), symbols - 1):
        edges = (0, *cuts, frames)
        path = np.zeros((frames, symbols))
        for symbol, (first, last) in enumerate(itertools.pairwise(edges)):
            path[first:last, symbol] = 1
        score = float((path * scores).sum())
        if score > best_score:
            best, best_score = path, score
    return best


@pytest.mark.parametrize(("frames", "symbols"), [(1, 1), (2, 1), (5, 5), (7, 3), (9, 4), (8, 7)])
@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_equals_the_best_of_all_paths(frames, symbols, scale):
    scores = scale * RANDOM.normal(size=(4, frames, symbols)).astype(np.float32)
    found = run(scores, [frames] * 4, [symbols] * 4)
    for row in range(4):
        np.testing.assert_array_equal(found[row], best_of_all(scores[row].astype(np.float64)))


def test_scores_far_below_any_finite_mask_value():
    """A mask of -1e9 would be better than these true scores."""
    scores = -1e12 * (1 + RANDOM.random((1, 6, 3)))
    np.testing.assert_array_equal(run(scores, [6], [3])[0], best_of_all(scores[0].astype(np.float32)))


def test_padding_changes_nothing():
    scores = RANDOM.normal(size=(3, 9, 6))
    frame_lengths, text_lengths = [9, 7, 4], [6, 3, 4]
    found = run(scores, frame_lengths, text_lengths)
    for row, (frames, symbols) in enumerate(zip(frame_lengths, text_lengths, strict=True)):
        alone = run(scores[row : row + 1, :frames, :symbols], [frames], [symbols])[0]
        np.testing.assert_array_equal(found[row, :frames, :symbols], alone)
        assert found[row].sum() == frames


def test_more_symbols_than_frames_has_a_defined_result():
    """The reference reads out of bounds here."""
    found = run(RANDOM.normal(size=(1, 3, 5)), [3], [5])[0]
    np.testing.assert_array_equal(found, np.eye(5)[2:])
    padded = run(RANDOM.normal(size=(1, 8, 6)), [3], [5])[0]
    np.testing.assert_array_equal(padded[:3, :5], np.eye(5)[2:])
    assert padded.sum() == 3


def test_scores_the_wrong_way_round_are_refused():
    """S11."""
    scores = jnp.zeros((2, 3, 5))
    frame_mask, text_mask = jnp.ones((2, 5), bool), jnp.ones((2, 3), bool)
    with pytest.raises(Exception, match=r"frames|shape|type"):
        align(scores, frame_mask, text_mask)
    # The same without the run-time checks of the test suite.
    with pytest.raises(ValueError, match=r"scores are \[batch, frames, text\] = \(2, 3, 5\)"):
        align.__wrapped__(scores, frame_mask, text_mask)


def test_scores_are_log_densities():
    keys = jax.random.split(jax.random.key(0), 3)
    z, mean = jax.random.normal(keys[0], (2, 5, 4)), jax.random.normal(keys[1], (2, 3, 4))
    log_scale = 0.3 * jax.random.normal(keys[2], (2, 3, 4))
    expected = jax.scipy.stats.norm.logpdf(z[:, :, None], mean[:, None], jnp.exp(log_scale)[:, None]).sum(-1)
    np.testing.assert_allclose(alignment_scores(z, mean, log_scale), expected, rtol=1e-4, atol=1e-4)


def test_no_gradient_through_the_path():
    masks = jnp.ones((1, 4), bool), jnp.ones((1, 2), bool)
    gradient = jax.grad(lambda scores: jnp.sum(align(scores, *masks) * scores))(jnp.ones((1, 4, 2)))
    np.testing.assert_array_equal(gradient, align(jnp.ones((1, 4, 2)), *masks))


def test_expand_gives_each_symbol_its_frames():
    durations = jnp.array([[2.0, 0.0, 3.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    text_mask, frame_mask = length_mask(jnp.array([3, 2]), 4), length_mask(jnp.array([5, 2]), 6)
    path = expand(durations, frame_mask, text_mask)
    np.testing.assert_array_equal(path.sum(1), durations)
    symbols = jnp.arange(4.0)[None, :, None] + jnp.zeros((2, 4, 1))
    np.testing.assert_array_equal(along(path, symbols)[..., 0], [[0, 0, 2, 2, 2, 0], [0, 1, 0, 0, 0, 0]])
