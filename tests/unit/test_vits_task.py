"""The VITS step: what it computes, what it costs to compile, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from hayakuchi.config import TrainConfig
from hayakuchi.config.vits import VitsOptimizerConfig, VitsRecipe
from hayakuchi.data.batch import SpeechBatch
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.errors import UserError
from hayakuchi.models.vits.losses import adversarial_loss, discriminator_loss, feature_loss, kl_loss, mel_loss
from hayakuchi.models.vits.model import segments
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel
from hayakuchi.recipes import RECIPES, VITS_JVS, VITS_NANO
from hayakuchi.train.joined import join, part
from hayakuchi.train.vits_task import VitsTask
from helpers import count_equations
from vits_models import moved_start, small_config

BUCKET = Bucket(symbols=16, frames=24)


def small_task(*, steps=10, decay="epoch", epoch_steps=5, optimizer=None, train=None, **model):
    recipe = VitsRecipe(
        name="small",
        model=small_config(discriminator_division=16, **model),
        optimizer=optimizer or VitsOptimizerConfig(decay=0.5, decay_every=decay),
        train=train or TrainConfig(steps=steps, batch=2),
    )
    return VitsTask(recipe, [BUCKET], epoch_steps)


def batch_of(task, seed=0):
    random = np.random.default_rng(seed)
    [spec] = task.batch_specs()
    rows, room = spec.audio.shape
    time = np.arange(room) / 8_000
    tones = np.stack([np.sin(2 * np.pi * hz * time) for hz in (300, 500)])[:rows]
    return SpeechBatch(
        symbols=jnp.asarray(random.integers(1, 20, spec.symbols.shape), jnp.int32),
        symbol_lengths=jnp.asarray([15, 9], jnp.int32)[:rows],
        audio=jnp.asarray(8_000 * tones + random.normal(0, 200, (rows, room)), jnp.int16),
        frame_lengths=jnp.asarray([24, 18], jnp.int32)[:rows],
        speakers=jnp.asarray([0, 1], jnp.int32)[:rows],
    )


@pytest.fixture(scope="module")
def stepped():
    task = small_task()
    key = jax.random.key(3)
    state, batch = moved_start(task), batch_of(task)
    return task, state, batch, key, jax.jit(task.step)(state, batch, key)


def test_a_step_is_the_published_two(stepped):
    """The discriminators move first; the generator by what they are then. Here each pass is made anew."""
    task, state, batch, key, (after, metrics) = stepped
    step_key = jax.random.fold_in(key, 0)
    noise_key, dropout_key = jax.random.split(step_key)
    audio = batch.audio / jnp.float32(32_768)
    settings = task.recipe.model.audio
    spectrogram = linear_spectrogram(audio, settings)[:, : BUCKET.frames]
    rule = optax.adamw(2e-4, 0.8, 0.99, 1e-9, weight_decay=0.01)

    def passed(parameters):
        model = nnx.merge(task.graphs["generator"], parameters)
        return model.train_pass(
            batch.symbols,
            batch.symbol_lengths,
            spectrogram,
            batch.frame_lengths,
            model.noise(noise_key, 2, BUCKET.frames, BUCKET.symbols),
            batch.speakers,
            dropout_key,
        )

    def judged(discriminators, found):
        real = segments(audio, found.segment_start * settings.hop_samples, 64)
        return nnx.merge(task.graphs["discriminators"], discriminators)(jnp.concatenate([real, found.audio]))

    def discriminators_loss(parameters):
        return discriminator_loss(judged(parameters, passed(state.parameters["generator"])))

    def generator_loss(parameters, discriminators):
        found = passed(parameters)
        judgements = judged(discriminators, found)
        wanted = log_mel(segments(spectrogram, found.segment_start, 4), settings)
        made = log_mel(linear_spectrogram(found.audio, settings), settings)
        prior = found.prior_mean, found.prior_log_scale, found.frame_mask
        return (
            mel_loss(wanted, made)
            + kl_loss(found.z_prior, found.posterior.log_scale, *prior)
            + found.duration_loss
            + feature_loss(judgements)
            + adversarial_loss(judgements)
        )

    @jax.jit
    def reference(parameters):
        moved = {}
        loss_d, gradients_d = jax.value_and_grad(discriminators_loss)(parameters["discriminators"])
        updates, _ = rule.update(gradients_d, rule.init(parameters["discriminators"]), parameters["discriminators"])
        moved["discriminators"] = optax.apply_updates(parameters["discriminators"], updates)
        loss, gradients = jax.value_and_grad(generator_loss)(parameters["generator"], moved["discriminators"])
        updates, _ = rule.update(gradients, rule.init(parameters["generator"]), parameters["generator"])
        moved["generator"] = optax.apply_updates(parameters["generator"], updates)
        return loss, loss_d, optax.tree.norm(gradients), moved

    loss, loss_d, norm, moved = reference(state.parameters)
    np.testing.assert_allclose(metrics["generator_loss"], loss, rtol=1e-5)
    # "loss" is the sum of the same parts in a step as of what is held out: those that need no discriminators.
    parts = ("mel_loss", "kl_loss", "duration_loss")
    np.testing.assert_allclose(metrics["loss"], sum(metrics[name] for name in parts), rtol=1e-6)
    np.testing.assert_allclose(metrics["discriminator_loss"], loss_d, rtol=1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)
    # The first step of AdamW is the sign of the gradient: where that is nearly 0, rounding decides.
    close = jax.tree.map(lambda a, b: np.isclose(np.asarray(a), np.asarray(b), atol=2e-5), after.parameters, moved)
    shares = [leaf.mean() for leaf in jax.tree.leaves(close)]
    assert np.average(shares, weights=[leaf.size for leaf in jax.tree.leaves(close)]) > 0.995
    assert int(after.step) == 1


def test_all_parameters_move(stepped):
    _, state, _, _, (after, _) = stepped
    still = [
        jax.tree_util.keystr(path)
        for (path, before), now in zip(
            jax.tree_util.tree_leaves_with_path(state.parameters), jax.tree.leaves(after.parameters), strict=True
        )
        if np.array_equal(before, now)
    ]
    assert not still


def test_the_learning_rate_falls_by_epochs_or_by_steps():
    by_epoch, by_step = small_task(decay="epoch"), small_task(decay="step")
    rates = [float(by_epoch.schedule(jnp.int32(step))) for step in (0, 4, 5, 10)]
    assert rates == pytest.approx([2e-4, 2e-4, 1e-4, 5e-5])
    assert float(by_step.schedule(jnp.int32(3))) == pytest.approx(2.5e-5)
    warm = small_task(optimizer=VitsOptimizerConfig(warmup_steps=4))
    assert [float(warm.schedule(jnp.int32(step))) for step in range(5)] == pytest.approx(
        [5e-5, 1e-4, 1.5e-4, 2e-4, 2e-4]
    )


def test_the_average_follows_the_generator():
    task = small_task(optimizer=VitsOptimizerConfig(average_decay=0.75))
    assert float(task._average_decay(jnp.int32(90))) == 0.75
    state = jax.jit(task.init)(jax.random.key(0))
    after, _ = jax.jit(task.step)(state, batch_of(task), jax.random.key(1))
    before, now = (found.parameters["generator"] for found in (state, after))
    # At first it follows fast.
    expected = jax.tree.map(lambda old, new: 0.1 * np.asarray(old) + 0.9 * np.asarray(new), before, now)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.parameters["average"], expected)


def test_a_few_steps_lower_the_loss_and_held_out_losses_are_per_frame():
    task = small_task(optimizer=VitsOptimizerConfig(learning_rate=2e-3))
    state, batch, key = jax.jit(task.init)(jax.random.key(0)), batch_of(task), jax.random.key(1)
    held_out = jax.jit(task.held_out_loss)
    before = held_out(state.parameters, batch)
    step = jax.jit(task.step, donate_argnums=0)
    for _ in range(30):
        state, metrics = step(state, batch, key)
    after = held_out(state.parameters, batch)
    assert float(after["mel_loss"]) < 0.7 * float(before["mel_loss"])
    assert float(after["frames"]) == 42 == float(metrics["frames"])
    parts = ("mel_loss", "kl_loss", "duration_loss")
    assert float(after["loss"]) == pytest.approx(sum(float(after[name]) for name in parts), rel=1e-5)


def test_padding_does_not_change_what_is_heard(stepped):
    """Spectrograms of a clip in a longer batch are those of the clip alone."""
    task, _, batch, _, _ = stepped
    wide = VitsTask(task.recipe, [Bucket(16, 64)], 1)
    audio = np.zeros((2, (64 + task.framing.margin) * 16), np.int16)
    end = 24 * 16
    audio[:, :end] = batch.audio[:, :end]
    audio[:, end : end + task.framing.edge] = np.asarray(batch.audio)[:, end - 2 : end - 2 - task.framing.edge : -1]
    mirrored = np.asarray(batch.audio).copy()
    mirrored[:, end:] = audio[:, end : mirrored.shape[1]]
    alone = linear_spectrogram(jnp.asarray(mirrored[:, :end]) / jnp.float32(32_768), task.recipe.model.audio)
    padded = wide._heard(batch._replace(audio=jnp.asarray(audio))).spectrogram
    np.testing.assert_allclose(padded[:, :24], alone, atol=1e-4)


def test_examples_to_look_at_and_listen_to(stepped):
    task, state, batch, _, _ = stepped
    shown = jax.jit(task.show)(state.parameters, batch)
    samples = BUCKET.frames * 16
    assert {name: value.shape for name, value in shown.items()} == {
        "alignment": (16, 24),
        **{f"mel_{name}": (8, 24) for name in ("recorded", "reconstructed", "spoken")},
        **{f"audio_{name}": (samples,) for name in ("recorded", "reconstructed", "spoken")},
    }
    np.testing.assert_allclose(shown["alignment"].sum(axis=0), 1)  # each frame belongs to one symbol
    np.testing.assert_allclose(shown["audio_recorded"], batch.audio[0, :samples] / 32_768, atol=1e-6)


def test_micro_batches_are_refused_in_one_line():
    with pytest.raises(UserError, match="accumulate=2 must be 1"):
        small_task(train=TrainConfig(batch=2, accumulate=2))


def test_joining_is_undone_by_parting():
    tree = {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": {"c": jnp.ones((600, 500)), "d": jnp.float32(4)},
        "e": jnp.zeros(3),
    }
    joined = join(tree)
    assert joined["small"].shape == (10,)
    assert list(joined["large"]) == ["b.c"]
    jax.tree.map(np.testing.assert_array_equal, part(joined, tree), tree)


@pytest.mark.parametrize(("recipe", "budget"), [(VITS_JVS, 8_000), (VITS_NANO, 5_500)])
def test_equations_of_the_step_stay_within_their_budget(recipe, budget):
    """The seed's step had 90,000 lines and took 10 to 15 minutes to compile."""
    recipe = dataclasses.replace(
        recipe, model=dataclasses.replace(recipe.model, speakers=100), train=TrainConfig(batch=4)
    )
    task = VitsTask(recipe, [Bucket(256, 400)], 1)
    state = jax.eval_shape(task.init, jax.random.key(0))
    traced = jax.jit(task.step).trace(state, task.batch_specs()[0], jax.random.key(0))
    equations = count_equations(traced.jaxpr.jaxpr)
    assert 1_000 < equations < budget


def test_published_recipes_have_the_published_values():
    ljs, vctk = RECIPES["vits-ljs"], RECIPES["vits-vctk"]
    for recipe, speakers in ((ljs, 0), (vctk, 109)):
        assert recipe.model.audio.sample_rate_hz == 22_050
        assert recipe.model.speakers == speakers
        assert recipe.train.batch == 64
        assert recipe.optimizer == VitsOptimizerConfig(2e-4, 0.999875, "epoch", 0, 0.8, 0.99, 1e-9, 0.01)
    sizes = {"ljs": 36.3e6, "jvs": 39.7e6}
    for name, expected in sizes.items():
        task = VitsTask(RECIPES[f"vits-{name}"], [Bucket(16, 64)], 1)
        parameters = jax.eval_shape(task.init, jax.random.key(0)).parameters
        size = {side: sum(leaf.size for leaf in jax.tree.leaves(tree)) for side, tree in parameters.items()}
        assert size["generator"] == pytest.approx(expected, rel=0.01)
        assert size["discriminators"] == pytest.approx(46.7e6, rel=0.01)
