"""Arithmetic policies: the loss scale of float16, and that training in less than float32 follows float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, TrainConfig
from hayakuchi.data.batch import Batch
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.precision import LossScale, all_finite, first_scale, next_scale

LENGTH, VOCABULARY = 32, 60


def task_of(precision, **train):
    return CtrlTask(
        CtrlRecipe(
            model=CtrlConfig(
                vocabulary_size=VOCABULARY, length=LENGTH, layers=2, width=32, heads=2, feed_forward=64, dropout=0.1
            ),
            optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=20, clip_norm=1.0),
            train=TrainConfig(batch=8, steps=300, precision=precision, **train),
        )
    )


def text_batch(step):
    """Text with something to learn: each token is one of three that may follow the one before."""
    random = np.random.default_rng(step)
    tokens = np.zeros((8, LENGTH), np.int32)
    tokens[:, 0] = random.integers(0, VOCABULARY, 8)
    for place in range(1, LENGTH):
        tokens[:, place] = (7 * tokens[:, place - 1] + random.integers(0, 3, 8)) % VOCABULARY
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
    return Batch(jnp.asarray(tokens), jnp.ones(tokens.shape, jnp.int32), jnp.asarray(positions))


def test_the_scale_stays_finite_and_recovers():
    """R2: growth at every step, 70 steps; then overflows, then growth again."""
    state = first_scale("float16")
    for _ in range(70):
        state = next_scale(state, jnp.bool_(True), growth_interval=1)
    assert state.scale == 2.0**24
    for _ in range(70):
        state = next_scale(state, jnp.bool_(False), growth_interval=1)
    assert state.scale == 1
    assert state.skipped == 70
    for _ in range(3):
        state = next_scale(state, jnp.bool_(True), growth_interval=1)
    assert state.scale == 8


def test_the_scale_grows_after_as_many_finite_steps_in_a_row():
    state = LossScale(jnp.float32(4), jnp.int32(0), jnp.int32(0))
    for finite, expected in [(1, 4), (1, 4), (0, 2), (1, 2), (1, 2), (1, 4), (1, 4)]:
        state = next_scale(state, jnp.bool_(finite), growth_interval=3)
        assert state.scale == expected


def test_only_float16_is_scaled():
    assert first_scale("float32") is None
    assert first_scale("bfloat16") is None


def test_an_update_with_an_overflow_is_left_out_and_the_next_is_made():
    task = task_of("float16")
    step, state = jax.jit(task.step), jax.jit(task.init)(jax.random.key(0))
    huge = state._replace(scaler=state.scaler._replace(scale=jnp.float32(2.0**24)))
    after, metrics = step(huge, text_batch(0), jax.random.key(1))
    assert metrics["gradient_norm"] == 0
    assert metrics["skipped_steps"] == 1
    assert after.scaler.scale == 2.0**23
    assert after.step == 1
    for old, new in zip(
        jax.tree.leaves((state.parameters, state.optimizer)),
        jax.tree.leaves((after.parameters, after.optimizer)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)
    for number in range(1, 24):
        after, metrics = step(after, text_batch(number), jax.random.key(1))
    assert metrics["gradient_norm"] > 0
    assert bool(all_finite(after.parameters))
    done = 24 - int(after.scaler.skipped)
    assert 0 < done < 24
    # The schedule counts the updates that were made, as the optimiser does.
    assert float(metrics["learning_rate"]) == pytest.approx(float(task.schedule(done - 1)))


def test_at_the_smallest_scale_the_trouble_is_told():
    task = task_of("float16")
    state = jax.jit(task.init)(jax.random.key(0))
    scaler = state.scaler._replace(scale=jnp.float32(1))
    broken = jax.tree.map(lambda x: x, state.parameters)
    broken["norm"]["scale"] = broken["norm"]["scale"] * 1e6
    _, metrics = jax.jit(task.step)(state._replace(scaler=scaler, parameters=broken), text_batch(0), jax.random.key(1))
    assert not np.isfinite(metrics["gradient_norm"])


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_gradients_are_close_to_those_of_float32(precision, tolerance):
    """The norm of the difference, of all gradients together; float16 with its scale has three more bits."""
    found = {}
    for name in ("float32", precision):
        task = task_of(name)
        state = jax.jit(task.init)(jax.random.key(0))
        task.optimizer = optax.sgd(lambda _: 1.0)
        state = state._replace(optimizer=task.optimizer.init(state.parameters))
        after, _ = jax.jit(task.step)(state, text_batch(0), jax.random.key(1))
        found[name] = jax.tree.map(jnp.subtract, state.parameters, after.parameters)
    difference = optax.tree.norm(jax.tree.map(jnp.subtract, found[precision], found["float32"]))
    assert 0 < float(difference / optax.tree.norm(found["float32"])) < tolerance


def test_small_gradients_survive_float16():
    """Without its scale float16 would round them to 0: a batch of many tokens has gradients of 1e-8 a token."""
    task = task_of("float16")
    state = jax.jit(task.init)(jax.random.key(0))
    _, metrics = jax.jit(task.step)(state, text_batch(0), jax.random.key(1))
    plain = state._replace(scaler=state.scaler._replace(scale=jnp.float32(1)))
    small = jax.tree.map(lambda x: x, plain.parameters)
    small["embedding"] = small["embedding"] * 1e-4
    _, lost = jax.jit(task.step)(plain._replace(parameters=small), text_batch(0), jax.random.key(1))
    _, kept = jax.jit(task.step)(state._replace(parameters=small), text_batch(0), jax.random.key(1))
    exact = task_of("float32")
    _, true = jax.jit(exact.step)(
        jax.jit(exact.init)(jax.random.key(0))._replace(parameters=small), text_batch(0), jax.random.key(1)
    )
    errors = [abs(float(each["gradient_norm"] / true["gradient_norm"]) - 1) for each in (kept, lost)]
    assert errors[0] < 0.01
    assert errors[0] < errors[1]
    assert metrics["loss_scale"] == 2.0**15


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_training_follows_the_float32_curve(precision):
    """Over 300 steps the loss, as a mean of ten steps, stays within 2% of that of float32."""
    curves = {}
    for name in ("float32", precision):
        task = task_of(name)
        step, state = jax.jit(task.step, donate_argnums=0), jax.jit(task.init)(jax.random.key(0))
        losses = []
        for number in range(300):
            state, metrics = step(state, text_batch(number), jax.random.key(1))
            losses.append(float(metrics["loss"]))
        curves[name] = np.array(losses).reshape(-1, 10).mean(1)
    assert curves["float32"][-1] < 0.6 * curves["float32"][0], "something must be learnt"
    np.testing.assert_allclose(curves[precision], curves["float32"], rtol=0.02)


def test_accumulation_in_float16_equals_the_whole_batch():
    data, found = text_batch(0), []
    for parts in (1, 4):
        plain = task_of("float16", accumulate=parts).recipe
        task = CtrlTask(dataclasses.replace(plain, model=dataclasses.replace(plain.model, dropout=0.0)))
        _, metrics = jax.jit(task.step)(jax.jit(task.init)(jax.random.key(0)), data, jax.random.key(1))
        found.append((float(metrics["loss"]), float(metrics["gradient_norm"])))
    np.testing.assert_allclose(*found, rtol=2e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adagrad"])
@pytest.mark.parametrize("changes", [{"vocabulary_size": 64}, {"scan_layers": True, "embedding_width": 8}])
def test_every_product_of_a_step_runs(precision, optimizer, changes):
    """XLA:CPU compiles some products of two transposed bf16 operands that it cannot run; one or more chunks of loss."""
    plain = task_of(precision).recipe
    settings = dataclasses.replace(plain.model, **changes)
    recipe = dataclasses.replace(
        plain, model=settings, optimizer=dataclasses.replace(plain.optimizer, optimizer=optimizer)
    )
    task = CtrlTask(recipe)
    for chunks in (1, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ctrl, "_chunks", lambda *_, chunks=chunks: chunks)
            state, metrics = jax.jit(task.step)(jax.jit(task.init)(jax.random.key(0)), text_batch(0), jax.random.key(1))
        assert np.isfinite(metrics["loss"])
        assert bool(all_finite(state.parameters))
