"""Schedules and update rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.config import OptimizerConfig
from hayakuchi.train.optimizer import decay_mask, make_optimizer, make_schedule, used_rate


def rates(config, steps):
    schedule = make_schedule(config, steps)
    return np.array([float(schedule(jnp.int32(step))) for step in range(steps)])


@pytest.mark.parametrize("name", ["cosine", "wsd", "constant"])
def test_warmup_rises_linearly_from_the_first_step(name):
    found = rates(OptimizerConfig(schedule=name, learning_rate=1.0, warmup_steps=5), 50)
    np.testing.assert_allclose(found[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-5)
    assert found.max() <= 1.0 + 1e-6


def test_cosine_ends_at_the_final_fraction():
    found = rates(OptimizerConfig(schedule="cosine", learning_rate=1.0, warmup_steps=0, final_fraction=0.1), 200)
    assert (np.diff(found) < 0).all()
    np.testing.assert_allclose(found[-1], 0.1, rtol=1e-5)


def test_wsd_stays_and_then_decays():
    config = OptimizerConfig(
        schedule="wsd", learning_rate=1.0, warmup_steps=10, decay_fraction=0.25, final_fraction=0.0
    )
    found = rates(config, 100)
    np.testing.assert_allclose(found[10:75], 1.0, rtol=1e-6)
    assert (np.diff(found[75:]) < 0).all()
    np.testing.assert_allclose(found[-1], 0.0, atol=1e-6)


def test_constant_stays():
    found = rates(OptimizerConfig(schedule="constant", learning_rate=0.5, warmup_steps=2), 10)
    np.testing.assert_allclose(found[2:], 0.5)


@pytest.mark.parametrize("name", ["cosine", "wsd", "constant"])
def test_warmup_longer_than_the_run_is_cut(name):
    assert np.isfinite(rates(OptimizerConfig(schedule=name, warmup_steps=100), 3)).all()


def parameters():
    return {
        "embedding": jnp.ones((6, 4)),
        "vocabulary_bias": jnp.ones(6),
        "blocks": {0: {"query": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)}, "norm": {"scale": jnp.ones(4)}}},
    }


def test_decay_reaches_matrices_only():
    mask = decay_mask(parameters())
    assert mask["embedding"]
    assert mask["blocks"][0]["query"]["kernel"]
    assert not mask["vocabulary_bias"]
    assert not mask["blocks"][0]["query"]["bias"]
    assert not mask["blocks"][0]["norm"]["scale"]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_weight_decay_shrinks_what_is_decayed(name):
    config = OptimizerConfig(optimizer=name, weight_decay=0.5, learning_rate=0.1, warmup_steps=0, schedule="constant")
    rule = make_optimizer(config, make_schedule(config, 10))
    start = parameters()
    updates, _ = rule.update(jax.tree.map(jnp.zeros_like, start), rule.init(start), start)
    np.testing.assert_allclose(updates["embedding"], -0.05, rtol=1e-5)
    np.testing.assert_allclose(updates["blocks"][0]["query"]["kernel"], -0.05, rtol=1e-5)
    np.testing.assert_array_equal(updates["vocabulary_bias"], 0)
    np.testing.assert_array_equal(updates["blocks"][0]["norm"]["scale"], 0)


@pytest.mark.parametrize("name", ["adamw", "adagrad", "muon"])
def test_every_rule_descends_a_quadratic(name):
    config = OptimizerConfig(
        optimizer=name, learning_rate=0.05, warmup_steps=0, schedule="constant", weight_decay=0.0, clip_norm=1.0
    )
    rule = make_optimizer(config, make_schedule(config, 200))
    target = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), parameters())

    def distance(point):
        return sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(point), jax.tree.leaves(target), strict=True))

    @jax.jit
    def step(point, state):
        updates, state = rule.update(jax.grad(distance)(point), state, point)
        return jax.tree.map(jnp.add, point, updates), state

    point, state = parameters(), rule.init(parameters())
    before = float(distance(point))
    for _ in range(100):
        point, state = step(point, state)
    assert float(distance(point)) < 0.5 * before


def test_muon_treats_scanned_layers_as_separate_matrices():
    config = OptimizerConfig(optimizer="muon", warmup_steps=0, schedule="constant", weight_decay=0.0)
    rule = make_optimizer(config, make_schedule(config, 10))
    layers = [jax.random.normal(jax.random.key(i), (4, 6)) for i in range(3)]
    grads = [jax.random.normal(jax.random.key(10 + i), (4, 6)) for i in range(3)]

    def updates(tree, gradients):
        return rule.update(gradients, rule.init(tree), tree)[0]

    stacked = updates({"kernel": jnp.stack(layers)}, {"kernel": jnp.stack(grads)})["kernel"]
    listed = updates({i: {"kernel": x} for i, x in enumerate(layers)}, {i: {"kernel": x} for i, x in enumerate(grads)})
    for index in range(3):
        np.testing.assert_allclose(stacked[index], listed[index]["kernel"], atol=1e-5)


def test_clipping_bounds_the_norm():
    config = OptimizerConfig(
        optimizer="adagrad", clip_norm=0.25, warmup_steps=0, schedule="constant", learning_rate=1.0
    )
    rule = make_optimizer(config, make_schedule(config, 10))
    huge = jax.tree.map(lambda x: 1e6 * x, parameters())
    updates, _ = rule.update(huge, rule.init(parameters()), parameters())
    clipped = jax.tree.map(
        lambda x: x * 0.25 / float(jnp.sqrt(sum(jnp.sum(y**2) for y in jax.tree.leaves(huge)))), huge
    )
    expected = jax.tree.map(lambda g: -g / jnp.sqrt(0.1 + g**2 + 1e-8), clipped)
    for got, want in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("name", ["adamw", "adagrad", "muon"])
def test_the_rate_used_is_by_the_optimisers_own_count(name):
    """Of any rule; the same as the one its updates are multiplied by."""
    config = OptimizerConfig(optimizer=name, warmup_steps=4, weight_decay=0.0)
    schedule = make_schedule(config, 10)
    rule = make_optimizer(config, schedule)
    parameters = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones((2,))}
    state = rule.init(parameters)
    for count in range(3):
        assert float(used_rate(schedule, state)) == pytest.approx(float(schedule(jnp.int32(count))))
        _, state = rule.update(parameters, state, parameters)
