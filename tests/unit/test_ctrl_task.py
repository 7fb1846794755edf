"""The training step: what counts as a target, accumulation, and that it can learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, TrainConfig
from hayakuchi.data.batch import Batch
from hayakuchi.train.ctrl_task import CtrlTask, targets

LENGTH = 8


def recipe(**train):
    return CtrlRecipe(
        model=CtrlConfig(vocabulary_size=30, length=LENGTH, layers=2, width=16, heads=2, feed_forward=32, dropout=0.0),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=5, weight_decay=0.0, clip_norm=1.0),
        train=TrainConfig(**{"batch": 4, "steps": 20, **train}),
    )


def batch(segments, seed=0):
    segments = jnp.asarray(segments, jnp.int32)
    tokens = jax.random.randint(jax.random.key(seed), segments.shape, 1, 30)
    # Positions count from the first of each segment.
    first = jnp.concatenate([jnp.ones_like(segments[:, :1]), jnp.diff(segments, axis=1) != 0], axis=1)
    index = jnp.arange(segments.shape[1])
    start = jax.lax.cummax(jnp.where(first == 1, index, 0), axis=1)
    return Batch(jnp.where(segments > 0, tokens, 0), segments, jnp.where(segments > 0, index - start, 0))


def test_targets_stay_inside_segments():
    found = batch([[1, 1, 1, 2, 2, 0, 0, 0]])
    labels, weights = targets(found)
    np.testing.assert_array_equal(weights[0], [1, 1, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(labels[0, :2], found.tokens[0, 1:3])
    full = batch([[1] * LENGTH])
    np.testing.assert_array_equal(targets(full)[1][0], [1] * (LENGTH - 1) + [0])


def gradients(task, state, data):
    """The step's gradient, read through plain gradient descent at rate 1 (no clipping)."""
    import optax

    task.optimizer = optax.sgd(lambda _: 1.0)
    after, metrics = jax.jit(task.step)(
        state._replace(optimizer=task.optimizer.init(state.parameters)), data, jax.random.key(0)
    )
    return jax.tree.map(lambda a, b: a - b, state.parameters, after.parameters), metrics


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_gradient_is_that_of_the_one_batch(parts):
    """R1: micro-batches with 1 and with 7 valid tokens."""
    data = batch([[1, 1, 0, 0, 0, 0, 0, 0], [1] * 8, [1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 2, 2, 2, 3, 3]])
    task = CtrlTask(recipe())
    state = jax.jit(task.init)(jax.random.key(0))
    whole, one = gradients(task, state, data)
    split, many = gradients(CtrlTask(recipe(accumulate=parts)), state, data)
    np.testing.assert_allclose(one["loss"], many["loss"], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_learning_rate_does_not_depend_on_accumulation():
    """R12."""
    data = batch([[1] * LENGTH] * 4)
    found = {}
    for parts in (1, 4):
        task = CtrlTask(recipe(accumulate=parts))
        step, state = jax.jit(task.step), jax.jit(task.init)(jax.random.key(0))
        found[parts] = []
        for _ in range(12):
            state, metrics = step(state, data, jax.random.key(0))
            found[parts].append(float(metrics["learning_rate"]))
    assert found[1] == found[4]
    assert len(set(found[1])) > 8


def test_padding_rows_change_nothing():
    data = batch([[1] * LENGTH] * 2 + [[0] * LENGTH] * 2)
    other = Batch(data.tokens.at[2:].set(7), *data[1:])
    task = CtrlTask(recipe())
    state = jax.jit(task.init)(jax.random.key(0))
    for a, b in zip(
        jax.tree.leaves(gradients(task, state, data)), jax.tree.leaves(gradients(task, state, other)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_empty_batch_gives_finite_zero_gradient():
    data = batch([[0] * LENGTH] * 4)
    task = CtrlTask(recipe())
    found, metrics = gradients(task, jax.jit(task.init)(jax.random.key(0)), data)
    assert float(metrics["loss"]) == 0
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adagrad"])
@pytest.mark.parametrize("scan", [False, True])
def test_overfits_one_batch(optimizer, scan):
    """Loss under 0.05 on four windows."""
    rates = {"adamw": 1e-2, "muon": 1e-2, "adagrad": 3e-1}
    steps = 300
    plain = recipe(steps=steps)
    task = CtrlTask(
        dataclasses.replace(
            plain,
            model=dataclasses.replace(plain.model, scan_layers=scan),
            optimizer=OptimizerConfig(
                optimizer=optimizer, learning_rate=rates[optimizer], warmup_steps=10, weight_decay=0.0, clip_norm=1.0
            ),
        )
    )
    data = batch([[1, 1, 1, 1, 2, 2, 2, 0], [1] * 8, [1] * 8, [1, 1, 1, 1, 1, 0, 0, 0]])
    # What follows a segment's first token cannot be told apart unless the first tokens differ, as control codes do.
    firsts = (data.positions == 0) & (data.segments > 0)
    data = data._replace(tokens=jnp.where(firsts, jnp.cumsum(firsts.ravel()).reshape(firsts.shape), data.tokens))
    step, state = jax.jit(task.step, donate_argnums=0), jax.jit(task.init)(jax.random.key(0))
    for _ in range(steps):
        state, metrics = step(state, data, jax.random.key(0))
    assert float(metrics["loss"]) < 0.05


def test_held_out_loss_is_a_sum():
    task = CtrlTask(recipe())
    parameters = jax.jit(task.init)(jax.random.key(0)).parameters
    rows = batch([[1] * LENGTH, [1, 1, 1, 0, 0, 0, 0, 0]])
    whole = task.held_out_loss(parameters, rows)
    parts = [task.held_out_loss(parameters, jax.tree.map(lambda x, i=i: x[i : i + 1], rows)) for i in range(2)]
    assert float(whole["tokens"]) == 9
    np.testing.assert_allclose(whole["loss"], sum(float(part["loss"]) for part in parts), rtol=1e-5)


def test_dropout_follows_the_step_number():
    plain = recipe()
    task = CtrlTask(dataclasses.replace(plain, model=dataclasses.replace(plain.model, dropout=0.5)))
    data, state = batch([[1] * LENGTH] * 4), jax.jit(task.init)(jax.random.key(0))
    step = jax.jit(task.step)
    first = step(state, data, jax.random.key(0))[1]["loss"]
    again = step(state, data, jax.random.key(0))[1]["loss"]
    later = step(state._replace(step=jnp.int32(1)), data, jax.random.key(0))[1]["loss"]
    assert first == again
    assert first != later
