"""VITS in less than float32, and with its backward pass computing anew: the same training within stated bounds."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hayakuchi.config import TrainConfig
from hayakuchi.config.vits import VitsOptimizerConfig, VitsRecipe
from hayakuchi.data.batch import SpeechBatch
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.train.precision import all_finite
from hayakuchi.train.vits_task import VitsTask
from vits_models import moved_start, small_config

BETA1 = 0.8


class Run(NamedTuple):
    """A task, its compiled step, and the state it starts in."""

    task: VitsTask
    step: object
    state: object


def task_of(precision="float32", remat="none", *, rows=2, frames=24):
    recipe = VitsRecipe(
        model=small_config(discriminator_division=16),
        optimizer=VitsOptimizerConfig(beta1=BETA1, decay=0.5, decay_every="step"),
        train=TrainConfig(batch=rows, precision=precision, remat=remat),
    )
    return VitsTask(recipe, [Bucket(symbols=16, frames=frames)], 100)


@lru_cache
def run_of(precision="float32", remat="none"):
    task = task_of(precision, remat)
    return Run(task, jax.jit(task.step), moved_start(task))


def speech_batch(seed=0):
    """Two voices, each a tone of its own with a little noise."""
    random = np.random.default_rng(seed)
    [spec] = task_of().batch_specs()
    time = np.arange(spec.audio.shape[1]) / 8_000
    tones = np.stack([np.sin(2 * np.pi * hz * time + random.uniform(0, 6)) for hz in (300, 500)])
    return SpeechBatch(
        symbols=jnp.asarray(random.integers(1, 20, spec.symbols.shape), jnp.int32),
        symbol_lengths=jnp.asarray([15, 9], jnp.int32),
        audio=jnp.asarray(8_000 * tones + random.normal(0, 200, tones.shape), jnp.int16),
        frame_lengths=jnp.asarray([24, 18], jnp.int32),
        speakers=jnp.asarray([0, 1], jnp.int32),
    )


@jax.jit
def unscaled(moments):
    return jax.tree.map(lambda moment: moment / (1 - BETA1), moments)


def first_step(precision, remat="none", scale=None):
    """The gradients of both networks, from Adam's first moment after one step, and the losses."""
    run = run_of(precision, remat)
    state = run.state
    if scale is not None:
        state = state._replace(scaler=state.scaler._replace(scale=jnp.float32(scale)))
    after, metrics = run.step(state, speech_batch(), jax.random.key(1))
    moments = {name: optax.tree.get(optimizer, "mu") for name, optimizer in after.optimizer.items()}
    return unscaled(moments), metrics


@jax.jit
def distance(found, expected):
    """The norm of the difference, as a share of what is expected."""
    return optax.tree.norm(jax.tree.map(jnp.subtract, found, expected)) / optax.tree.norm(expected)


@pytest.mark.parametrize(("precision", "tolerance", "scale"), [("bfloat16", 0.05, None), ("float16", 0.01, 256)])
def test_gradients_are_close_to_those_of_float32(precision, tolerance, scale):
    """Of each network all together; float16 with its scale has three more bits."""
    exact, _ = first_step("float32")
    rough, _ = first_step(precision, scale=scale)
    for name, gradients in exact.items():
        assert 0 < distance(rough[name], gradients) < tolerance, name


def test_an_overflow_leaves_out_the_update_of_the_network_it_is_in_and_the_scale_recovers():
    """The mel loss has by far the larger gradients: there is a scale that the discriminators' bear, not these."""
    run, key = run_of("float16"), jax.random.key(1)
    state, metrics = run.step(run.state, speech_batch(), key)
    assert metrics["loss_scale"] == 2.0**15
    assert metrics["gradient_norm"] == 0 < metrics["discriminator_gradient_norm"]
    assert state.scaler.scale == 2.0**14
    assert state.scaler.skipped == 1
    for name, still in (("generator", True), ("discriminators", False)):
        before, after = ((x.parameters[name], x.optimizer[name]) for x in (run.state, state))
        same = [np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (before, after)), strict=True)]
        assert all(same) if still else not any(same), name

    # The second update of the discriminators, but the first of the generator.
    assert [float(run.task.schedule(jnp.int32(count))) for count in (0, 1)] == pytest.approx([2e-4, 1e-4])
    _, second = run.step(state, speech_batch(), key)
    assert float(second["learning_rate"]) == pytest.approx(2e-4)
    assert float(second["discriminator_learning_rate"]) == pytest.approx(1e-4)

    state = state._replace(scaler=state.scaler._replace(scale=jnp.float32(2.0**24)))
    norms = []
    for number in range(24):
        state, metrics = run.step(state, speech_batch(number), key)
        norms.append((float(metrics["gradient_norm"]), float(metrics["discriminator_gradient_norm"])))
        assert np.isfinite(metrics["loss"])
        assert bool(all_finite((state.parameters, state.optimizer)))
    assert norms[0] == (0, 0)
    assert min(norms[-1]) > 0
    assert 1 < state.scaler.scale < 2.0**15


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_recomputation_changes_no_gradient(remat):
    expected, losses = first_step("float32")
    found, again = first_step("float32", remat)
    for name, gradients in expected.items():
        assert distance(found[name], gradients) < 1e-5, name
    for name, value in losses.items():
        assert float(again[name]) == pytest.approx(float(value), rel=1e-5), name


def passes(remat):
    """The generator's forward pass and loss, and the discriminators' loss, as functions of parameters; and these."""
    task = task_of(remat=remat, rows=4, frames=200)
    [spec] = task.batch_specs()
    parameters = jax.eval_shape(task.init, jax.random.key(0)).parameters
    audio = jax.ShapeDtypeStruct((64, task.recipe.model.segment_samples), jnp.float32)

    def generator(parameters, batch):
        heard = task._heard(batch)
        outputs, start = task._outputs(parameters, batch, heard.spectrogram, jax.random.key(0))
        losses = task._reconstruction_losses(outputs, batch, heard, start, task._segments(heard, start))
        return sum(losses.values())

    return {
        "generator": (generator, parameters["generator"], spec),
        "discriminators": (task._discriminator_loss, parameters["discriminators"], audio, audio),
    }


def test_recomputation_keeps_less():
    """Bytes that the forward pass leaves for the backward pass: none > dots > full, whatever the compiler."""
    kept = {}
    for remat in ("none", "dots", "full"):
        for name, (function, parameters, *others) in passes(remat).items():

            def forward(parameters, *others, function=function):
                return jax.vjp(lambda parameters: function(parameters, *others), parameters)[1]

            leaves = jax.tree.leaves(jax.eval_shape(forward, parameters, *others))
            kept[name, remat] = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert kept["generator", "none"] > 1.2 * kept["generator", "dots"] > 1.44 * kept["generator", "full"], kept
    assert kept["discriminators", "none"] > 1.2 * kept["discriminators", "dots"], kept
    assert kept["discriminators", "dots"] > 1.2 * kept["discriminators", "full"], kept


def test_recomputation_saves_memory_where_the_compiler_keeps_the_parts_apart():
    """On a CPU that is in scans: the WaveNets over all the frames."""
    found = {}
    for remat in ("none", "full"):
        function, parameters, batch = passes(remat)["generator"]
        compiled = jax.jit(jax.grad(function)).lower(parameters, batch).compile()
        found[remat] = compiled.memory_analysis().temp_size_in_bytes
    assert found["none"] > 1.2 * found["full"], found
