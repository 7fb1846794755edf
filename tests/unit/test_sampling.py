"""Sampling against plain NumPy references on random scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from hayakuchi.errors import UserError
from hayakuchi.infer.sampling import (
    History,
    Rules,
    SamplingConfig,
    draw,
    keep_best,
    keep_mass,
    next_tokens,
    penalise,
    repeated_ngrams,
    seen_tokens,
)

VOCABULARY = 23

# Compiled once, since a conditional outside of jit is compiled at every call.
step = jax.jit(next_tokens, static_argnames="rules")
filtered = jax.jit(lambda logits, top_k, top_p: keep_mass(keep_best(logits, top_k), top_p))
repeated = jax.jit(repeated_ngrams, static_argnums=(1, 2))


def scores(seed, rows=3, vocabulary=VOCABULARY, scale=4.0):
    return (scale * np.random.default_rng(seed).normal(size=(rows, vocabulary))).astype(np.float32)


def history(seed, length, rows=3, room=40, vocabulary=VOCABULARY):
    # What lies beyond `length` are ids too, so that reading it would show.
    tokens = np.random.default_rng(seed).integers(0, vocabulary, size=(rows, room)).astype(np.int32)
    return History(jnp.asarray(tokens), jnp.int32(length))


def row_keys(rows, seed=0):
    return jax.random.split(jax.random.key(seed), rows)


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


# --- penalty ---


def reference_penalty(logits, seen, theta, mode):
    out = logits.astype(np.float64).copy()
    if mode == "shift_invariant":
        out = np.log(softmax(logits)) + np.log(logits.shape[-1])
    for row, token in zip(*np.nonzero(seen), strict=True):
        raised = mode != "paper" and out[row, token] < 0
        out[row, token] *= theta if raised else 1 / theta
    return out


@pytest.mark.parametrize("mode", ["paper", "hf", "shift_invariant"])
@pytest.mark.parametrize("theta", [1.0, 1.2, 3.0])
def test_penalty_matches_the_reference(mode, theta):
    logits, seen = scores(1), np.random.default_rng(2).random((3, VOCABULARY)) < 0.4
    got = penalise(jnp.asarray(logits), jnp.asarray(seen), jnp.float32(theta), mode)
    np.testing.assert_allclose(got, reference_penalty(logits, seen, theta, mode), rtol=1e-5, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(-50, 50, width=32))
def test_the_shift_invariant_penalty_ignores_a_constant(seed, shift):
    logits, seen = scores(seed), np.random.default_rng(seed).random((3, VOCABULARY)) < 0.4
    plain = penalise(jnp.asarray(logits), jnp.asarray(seen), jnp.float32(1.3), "shift_invariant")
    shifted = penalise(jnp.asarray(logits + np.float32(shift)), jnp.asarray(seen), jnp.float32(1.3), "shift_invariant")
    np.testing.assert_allclose(softmax(np.asarray(plain)), softmax(np.asarray(shifted)), atol=1e-4)


@pytest.mark.parametrize("mode", ["paper", "hf"])
def test_the_published_penalties_do_not(mode):
    logits, seen = scores(3), np.arange(VOCABULARY)[None].repeat(3, 0) < 9
    plain = penalise(jnp.asarray(logits), jnp.asarray(seen), jnp.float32(1.3), mode)
    shifted = penalise(jnp.asarray(logits + 20), jnp.asarray(seen), jnp.float32(1.3), mode)
    assert np.abs(softmax(np.asarray(plain)) - softmax(np.asarray(shifted))).max() > 0.05


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_shift_invariant_penalty_never_raises_a_seen_token(seed):
    logits = scores(seed, rows=1)
    seen = np.arange(VOCABULARY)[None] == seed % VOCABULARY
    got = softmax(np.asarray(penalise(jnp.asarray(logits), jnp.asarray(seen), jnp.float32(1.5), "shift_invariant")))
    assert got[0, seed % VOCABULARY] <= softmax(logits)[0, seed % VOCABULARY] + 1e-6


def test_the_shift_invariant_penalty_holds_back_a_token_the_model_is_sure_of():
    logits = np.full((1, 1000), 0.0, np.float32)
    logits[0, 5] = 12.0
    seen = np.arange(1000)[None] == 5
    got = softmax(np.asarray(penalise(jnp.asarray(logits), jnp.asarray(seen), jnp.float32(2.0), "shift_invariant")))
    before = softmax(logits)[0, 5]
    assert before > 0.99
    assert got[0, 5] / (1 - got[0, 5]) < 0.1 * before / (1 - before)


# --- history ---


@pytest.mark.parametrize("length", [0, 1, 7, 40])
def test_seen_tokens_are_those_before_length(length):
    past = history(4, length)
    got = np.asarray(seen_tokens(past, VOCABULARY))
    for row in range(3):
        assert set(np.flatnonzero(got[row])) == set(np.asarray(past.tokens)[row, :length].tolist())


def reference_ngrams(tokens, n):
    """Tokens t for which tokens + [t] ends in an n-gram of tokens."""
    known = {tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)}
    ending = tuple(tokens[len(tokens) - n + 1 :])
    return {t for t in range(VOCABULARY) if (*ending, t) in known and len(tokens) >= n - 1}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(0, 12), n=st.integers(1, 5))
def test_repeated_ngrams_match_the_reference(seed, length, n):
    past = history(seed, length, room=12, vocabulary=3)
    got = np.asarray(repeated(past, VOCABULARY, n))
    for row in range(3):
        want = reference_ngrams(np.asarray(past.tokens)[row, :length].tolist(), n)
        assert set(np.flatnonzero(got[row])) == want


def test_an_ngram_longer_than_the_history_bans_nothing():
    assert not np.any(repeated_ngrams(history(0, 5, room=8), VOCABULARY, 9))


# --- filters ---


def reference_top(logits, top_k, top_p):
    out = np.full_like(logits, -np.inf)
    for row, line in enumerate(logits):
        kept = np.ones(len(line), bool)
        if top_k:
            kept = line >= np.sort(line)[::-1][min(top_k, len(line)) - 1]
        if top_p < 1:
            p = softmax(np.where(kept, line, -np.inf)[None])[0]
            ranked = np.sort(p)[::-1]
            kept &= p >= ranked[np.flatnonzero(np.cumsum(ranked) >= top_p - 1e-7)[0]]
        out[row, kept] = line[kept]
    return out


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.sampled_from([0, 1, 2, 5, 22, 23, 1000]),
    top_p=st.sampled_from([1e-30, 0.11, 0.5, 0.93, 0.9999, 1.0]),
    ties=st.booleans(),
)
def test_filters_match_the_reference(seed, top_k, top_p, ties):
    logits = scores(seed)
    if ties:
        logits = np.round(logits / 3).astype(np.float32)
    got = filtered(jnp.asarray(logits), jnp.int32(top_k), jnp.float32(top_p))
    np.testing.assert_array_equal(got, reference_top(logits, top_k, top_p))


def test_top_p_stops_when_the_mass_is_reached_exactly():
    logits = jnp.log(jnp.asarray([[0.125, 0.5, 0.125, 0.25]], jnp.float32))
    kept = np.isfinite(keep_mass(logits, jnp.float32(0.75)))
    assert kept.tolist() == [[False, True, False, True]]


def test_filters_keep_one_token_of_scores_far_apart():
    logits = jnp.asarray([[-1e30, 3e4, -jnp.inf, 0.0]], jnp.float32)
    for top_k, top_p in [(1, 1.0), (0, 0.5), (3, 1e-38)]:
        assert np.argmax(filtered(logits, jnp.int32(top_k), jnp.float32(top_p))) == 1


# --- the draw ---


def test_draws_follow_the_probabilities():
    logits = np.array([2.0, 0.0, -np.inf, 1.0, -1.0, -np.inf], np.float32)
    rows = 20_000
    drawn = np.asarray(draw(jnp.broadcast_to(jnp.asarray(logits), (rows, 6)), row_keys(rows)))
    p = softmax(logits[None])[0]
    share = np.bincount(drawn, minlength=6) / rows
    assert share[2] == share[5] == 0
    assert np.all(np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / rows) + 1e-12)


def test_a_token_without_weight_is_never_drawn():
    rows = 20_000
    logits = np.where(np.arange(200) % 7 == 3, 0.0, -np.inf).astype(np.float32)
    drawn = np.asarray(draw(jnp.broadcast_to(jnp.asarray(logits), (rows, 200)), row_keys(rows, 9)))
    assert set(drawn % 7) == {3}


def test_rows_are_drawn_independently_of_their_neighbours():
    logits, keys = jnp.asarray(scores(5, rows=6)), row_keys(6)
    np.testing.assert_array_equal(draw(logits, keys)[:2], draw(logits[:2], keys[:2]))


# --- all together ---


def choose(logits, past, config, exempt=(), banned=(), seed=0):
    rules = Rules(config.penalty_mode, config.ban_ngram, exempt, banned)
    return np.asarray(step(jnp.asarray(logits), past, row_keys(len(logits), seed), config.knobs, rules=rules))


def test_greedy_takes_the_best_allowed_token():
    logits, past = scores(6), history(6, 0)
    greedy = SamplingConfig(temperature=0.0, penalty=1.0)
    best = np.argmax(logits, axis=-1)
    np.testing.assert_array_equal(choose(logits, past, greedy), best)
    chosen = choose(logits, past, greedy, banned=tuple(best.tolist()))
    np.testing.assert_array_equal(chosen, np.argmax(np.where(np.isin(np.arange(VOCABULARY), best), -9e9, logits), -1))


def test_an_exempt_token_is_not_penalised():
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [4, 7]] = [5.0, 4.9]
    past = History(jnp.asarray([[4, 4, 9, 0]], jnp.int32), jnp.int32(3))
    strong = SamplingConfig(temperature=0.0, penalty=2.0)
    assert choose(logits, past, strong) == [7]
    assert choose(logits, past, strong, exempt=(4,)) == [4]


def test_the_ngram_ban_moves_on_to_another_token():
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [4, 7]] = [5.0, 4.9]
    past = History(jnp.asarray([[3, 4, 9, 3]], jnp.int32), jnp.int32(4))
    assert choose(logits, past, SamplingConfig(temperature=0.0, penalty=1.0, ban_ngram=2)) == [7]
    assert choose(logits, past, SamplingConfig(temperature=0.0, penalty=1.0, ban_ngram=3)) == [4]


@pytest.mark.parametrize("temperature", [0.01, 0.5, 100.0])
def test_banned_tokens_never_appear(temperature):
    logits, banned = scores(8, rows=500), tuple(range(VOCABULARY - 3))
    config = SamplingConfig(temperature=temperature, top_p=1.0)
    chosen = choose(logits, history(1, 9, rows=500), config, banned=banned)
    assert set(chosen) <= {20, 21, 22}


def test_a_low_temperature_is_nearly_greedy():
    logits = scores(9)
    config = SamplingConfig(temperature=0.01, top_p=1.0, penalty=1.0)
    np.testing.assert_array_equal(choose(logits, history(1, 0), config), np.argmax(logits, -1))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": 1e-9}, "temperature=1e-09"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_k": 2**31}, "top_k="),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.01}, "top_p=1.01"),
        ({"penalty": 0.9}, "penalty=0.9"),
        ({"penalty": float("inf")}, "penalty=inf"),
        ({"ban_ngram": -1}, "ban_ngram=-1"),
        ({"ban_ngram": 1_000_000}, "ban_ngram=1000000"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(UserError, match="must be") as caught:
        SamplingConfig(**options)
    assert str(caught.value).startswith(named)


def test_an_unknown_penalty_mode_is_refused():
    # Where the annotations are checked, as in these tests, that comes first.
    with pytest.raises((UserError, TypeCheckError), match="penalty_mode"):
        SamplingConfig(penalty_mode="other")
