"""Properties of the whole generator: batch equals single, padding, precision, randomness, size of the program."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.config.vits import VitsConfig
from hayakuchi.models.vits.discriminators import PERIODS, Discriminators
from hayakuchi.models.vits.losses import adversarial_loss, discriminator_loss, feature_loss, kl_loss, mel_loss
from hayakuchi.models.vits.model import TrainingNoise, Vits, segments
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel
from hayakuchi.models.vits.text_encoder import gather_offsets, spread_offsets
from helpers import count_equations
from vits_models import small_config, small_vits

TEXT_LENGTHS = jnp.array([9, 5])
FRAME_LENGTHS = jnp.array([20, 13])


def inputs(config, seed=0, symbols=9, frames=20):
    keys = jax.random.split(jax.random.key(seed), 4)
    text = jax.random.randint(keys[0], (2, symbols), 0, config.vocabulary_size)
    audio = 0.3 * jax.random.normal(keys[1], (2, frames * config.audio.hop_samples))
    return text, audio, jax.random.normal(keys[2], (2, frames, config.latent_channels)), keys[3]


def training_pass(model, key=None, pad=0):
    """A pass over two clips, with `pad` positions more of padding in text and audio."""
    config = model.config
    text, audio, posterior, _ = inputs(config)
    spectrogram = linear_spectrogram(audio, config.audio)
    noise = TrainingNoise(
        longer(posterior, pad), longer(jax.random.normal(jax.random.key(5), (2, 9, 2)), pad), jnp.array([0.4, 0.9])
    )
    speaker = jnp.array([0, 1]) if config.speakers else None
    return trained(model, longer(text, pad), TEXT_LENGTHS, longer(spectrogram, pad), FRAME_LENGTHS, noise, speaker, key)


# Models and inputs are arguments of what is compiled: XLA takes long to fold constants.
@nnx.jit
def trained(model, *arguments):
    return model.train_pass(*arguments)


@nnx.jit
def judged(model, x):
    return model(x)


@nnx.jit
def converted(model, *arguments):
    return model.convert(*arguments)


@nnx.jit
def planned(model, *arguments):
    return model.plan(*arguments)


@nnx.jit
def spoken(model, *arguments):
    return model.speak(*arguments)


def longer(x, positions):
    """Padding that would do harm if anything looked at it."""
    return jnp.pad(x, ((0, 0), (0, positions), *((0, 0) for _ in x.shape[2:])), constant_values=7)


def kl_of(found):
    return kl_loss(found.z_prior, found.posterior.log_scale, found.prior_mean, found.prior_log_scale, found.frame_mask)


@pytest.mark.parametrize("changes", [{}, {"stochastic_durations": False, "resblock": "2", "speakers": 0}])
def test_padding_changes_no_loss(changes):
    model = small_vits(**changes)
    plain, padded = training_pass(model), training_pass(model, pad=6)
    np.testing.assert_array_equal(padded.path[:, :20, :9], plain.path)
    np.testing.assert_allclose(padded.audio, plain.audio, atol=1e-5)
    np.testing.assert_allclose(padded.duration_loss, plain.duration_loss, rtol=1e-5)
    np.testing.assert_allclose(kl_of(padded), kl_of(plain), rtol=1e-5)


@pytest.mark.parametrize("stochastic", [True, False])
def test_batch_equals_single_and_is_silent_after_its_end(stochastic):
    """S5: texts of 5 and 9 symbols in one batch."""
    model = small_vits(stochastic_durations=stochastic)
    text, _, noise, key = inputs(model.config, frames=64)
    duration_noise, speaker = jax.random.normal(key, (2, 9, 2)), jnp.array([1, 0])
    plan = planned(model, text, TEXT_LENGTHS, duration_noise, speaker)
    frames = plan.frame_lengths
    assert int(frames.max()) < 64
    assert (plan.durations[1, 5:] == 0).all()
    speech = spoken(model, plan, noise, speaker)
    for row, length in enumerate((9, 5)):
        one = slice(row, row + 1)
        alone = planned(model, text[one, :length], TEXT_LENGTHS[one], duration_noise[one, :length], speaker[one])
        np.testing.assert_array_equal(alone.durations[0], plan.durations[row, :length])
        wanted = spoken(model, alone, noise[one, : int(frames[row])], speaker[one])
        samples = int(wanted.sample_lengths[0])
        assert samples == int(speech.sample_lengths[row]) == wanted.audio.shape[1]
        np.testing.assert_allclose(speech.audio[row, :samples], wanted.audio[0], atol=1e-6)
        assert (speech.audio[row, samples:] == 0).all()
        assert samples == 0 or float(jnp.abs(wanted.audio).max()) > 1e-3


def test_speech_is_cut_at_the_room_given():
    model = small_vits()
    text, _, noise, key = inputs(model.config)
    plan = planned(model, text, TEXT_LENGTHS, jax.random.normal(key, (2, 9, 2)), jnp.array([0, 1]), 30.0)
    speech = spoken(model, plan, noise, jnp.array([0, 1]))
    np.testing.assert_array_equal(speech.sample_lengths, [320, 320])
    assert np.isfinite(speech.audio).all()


def test_conversion_to_the_same_speaker_is_a_plain_reconstruction():
    model = small_vits()
    _, audio, noise, _ = inputs(model.config)
    spectrogram = linear_spectrogram(audio, model.config.audio)
    arguments = spectrogram, FRAME_LENGTHS, noise, jnp.array([0, 1])
    same, other = (converted(model, *arguments, jnp.array(target)) for target in ([0, 1], [1, 0]))
    mask = jnp.arange(20) < FRAME_LENGTHS[:, None]
    voice = model.speakers[...][jnp.array([0, 1])]
    z = model.posterior_encoder(spectrogram, mask, noise, voice).sample
    np.testing.assert_allclose(same.audio, model.decoder(z, voice, mask), atol=1e-5)
    assert float(jnp.abs(other.audio - same.audio).max()) > 1e-3


def test_mel_loss_of_a_bfloat16_pass():
    """S3."""
    values = []
    for dtype in (jnp.float32, jnp.bfloat16):
        model = small_vits(dtype)
        found = training_pass(model)
        assert found.audio.dtype == jnp.float32
        config = model.config
        real = segments(inputs(config)[1], found.segment_start * config.audio.hop_samples, config.segment_samples)
        mels = [log_mel(linear_spectrogram(audio, config.audio), config.audio) for audio in (real, found.audio)]
        values.append(float(mel_loss(*mels)))
    assert abs(values[1] / values[0] - 1) < 1e-3


def test_kl_is_that_of_the_formula_and_may_be_negative():
    """S4: prior = posterior, one sample."""
    log_scale = jnp.array([[[0.3], [-0.2], [5.0]]])
    mask = jnp.array([[True, True, False]])
    mean = jnp.ones((1, 3, 1))
    at_mean = kl_loss(mean, log_scale, mean, log_scale, mask)
    np.testing.assert_allclose(at_mean, -0.5)
    noise = jax.random.normal(jax.random.key(0), (1, 40_000, 1))
    many = kl_loss(noise, jnp.zeros_like(noise), jnp.zeros_like(noise), jnp.zeros_like(noise), noise[..., 0] < 99)
    assert abs(float(many)) < 0.02


def test_segments_stay_inside_their_clips():
    model = small_vits()
    text, audio, posterior, _ = inputs(model.config)
    spectrogram = linear_spectrogram(audio, model.config.audio)

    for draw, first in ((0.0, 0), (0.5, 8), (float(np.nextafter(np.float32(1), np.float32(0))), 16)):
        noise = TrainingNoise(posterior, jnp.zeros((2, 9, 2)), jnp.full(2, draw))
        # The second clip is shorter than a segment of 4 frames.
        lengths = jnp.array([9, 3]), jnp.array([20, 3])
        found = trained(model, text, lengths[0], spectrogram, lengths[1], noise, jnp.array([0, 1]))
        np.testing.assert_array_equal(found.segment_start, [first, 0])


def test_dropout_is_a_matter_of_the_key():
    model = small_vits()
    keys = [None, jax.random.key(0), jax.random.key(0), jax.random.key(1)]
    losses = [float(training_pass(model, key=key).duration_loss) for key in keys]
    assert losses[1] == losses[2]
    assert len({losses[0], losses[1], losses[3]}) == 3


def test_a_model_of_several_speakers_needs_a_speaker():
    model = small_vits()
    with pytest.raises(ValueError, match="2 speakers"):
        model.plan(jnp.zeros((1, 3), int), jnp.array([3]), jnp.zeros((1, 3, 2)))


def test_state_is_float32_parameters_only():
    for model in (small_vits(jnp.bfloat16), Discriminators(jax.random.key(0), jnp.bfloat16)):
        graph, state = nnx.split(model, nnx.Param)
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}
        nnx.merge(graph, state)


def test_published_parameter_counts():
    """36.3M for one speaker, 39.7M for 100, and the discriminators' 46.7M (FACTS 6)."""
    for config, expected in ((VitsConfig(), 36.3e6), (VitsConfig(speakers=100), 39.7e6)):
        model = nnx.eval_shape(lambda config=config: Vits(config, jax.random.key(0)))
        assert abs(count(model) - expected) < 0.1e6
    assert count(nnx.eval_shape(lambda: Discriminators(jax.random.key(0)))) == 46_747_132


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_relative_offsets_there_and_back():
    x = jnp.arange(1.0, 1 + 5 * 7).reshape(1, 1, 5, 7)
    table = np.asarray(spread_offsets(x))[0, 0]
    for row, column in itertools.product(range(5), range(5)):
        offset = column - row + 3
        assert table[row, column] == (x[0, 0, row, offset] if 0 <= offset < 7 else 0)
    back = np.asarray(gather_offsets(jnp.asarray(table)[None, None], 7))[0, 0]
    for row, offset in itertools.product(range(5), range(7)):
        assert back[row, offset] == (x[0, 0, row, offset] if 0 <= row + offset - 3 < 5 else 0)
    for length in (1, 2):  # shorter than the window
        assert spread_offsets(jnp.ones((1, 1, length, 9))).shape == (1, 1, length, length)
        assert gather_offsets(jnp.ones((1, 1, length, length)), 9).sum() == length * length


def test_discriminators_judge_each_clip_alone():
    model = Discriminators(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 333))
    both, alone = judged(model, x), judged(model, x[1:])
    assert len(both) == 1 + len(PERIODS)
    for one, single in zip(both, alone, strict=True):
        np.testing.assert_allclose(one.score[1:], single.score, atol=1e-5)
        for feature, other in zip(one.features, single.features, strict=True):
            np.testing.assert_allclose(jnp.split(feature, 2)[1], other, atol=1e-4)


def test_adversarial_losses_of_equal_halves():
    x = jax.random.normal(jax.random.key(1), (1, 333))
    model = Discriminators(jax.random.key(0))
    judgements = judged(model, jnp.concatenate([x, x]))
    scores = [judgement.score[0] for judgement in judgements]
    assert float(feature_loss(judgements)) < 1e-6
    np.testing.assert_allclose(adversarial_loss(judgements), sum(jnp.mean((1 - s) ** 2) for s in scores), rtol=1e-5)
    expected = sum(jnp.mean((1 - s) ** 2) + jnp.mean(s**2) for s in scores)
    np.testing.assert_allclose(discriminator_loss(judgements), expected, rtol=1e-5)


def test_losses_and_gradients_of_the_published_size_are_a_small_program():
    config = VitsConfig(speakers=100)
    graphs, states = zip(
        *(
            nnx.split(nnx.eval_shape(build), nnx.Param)
            for build in (lambda: Vits(config, jax.random.key(0)), lambda: Discriminators(jax.random.key(1)))
        ),
        strict=True,
    )
    batch, symbols, frames = 4, 120, 400
    generator, discriminators = graphs

    def losses_and_gradients(parameters, text, lengths, audio, key):
        def generator_loss(parameters, judges):
            model = nnx.merge(generator, parameters)
            spectrogram = linear_spectrogram(audio, config.audio)
            noise = model.noise(key, batch, frames, symbols)
            found = model.train_pass(text, lengths, spectrogram, lengths, noise, lengths, key)
            real = segments(audio, found.segment_start * config.audio.hop_samples, config.segment_samples)
            judgements = nnx.merge(discriminators, judges)(jnp.concatenate([real, found.audio]))
            mel = segments(log_mel(spectrogram, config.audio), found.segment_start, config.segment_frames)
            fake_mel = log_mel(linear_spectrogram(found.audio, config.audio), config.audio)
            total = found.duration_loss + kl_of(found) + mel_loss(mel, fake_mel)
            return total + adversarial_loss(judgements) + feature_loss(judgements), (real, found.audio)

        def judge_loss(parameters, real, fake):
            return discriminator_loss(nnx.merge(discriminators, parameters)(jnp.concatenate([real, fake])))

        result, (real, fake) = jax.grad(generator_loss, has_aux=True)(*parameters)
        return result, jax.grad(judge_loss)(parameters[1], real, fake)

    jaxpr = jax.make_jaxpr(losses_and_gradients)(
        states,
        jax.ShapeDtypeStruct((batch, symbols), jnp.int32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((batch, frames * config.audio.hop_samples), jnp.float32),
        jax.eval_shape(lambda: jax.random.key(0)),
    )
    total = count_equations(jaxpr.jaxpr)
    print(f"{total} equations")
    assert total < 7_300


def test_small_config_is_the_published_one_scaled_down():
    assert small_config().segment_frames * small_config().audio.hop_samples == small_config().segment_samples
