"""Decoders with an inverse transform: the transform, the pseudo-QMF bank, padding, gradients, precision, the loss."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from hayakuchi.config.vits import VitsConfig
from hayakuchi.errors import UserError
from hayakuchi.models.vits import pqmf
from hayakuchi.models.vits.decoder import Decoder
from hayakuchi.models.vits.istft_decoder import inverse_stft
from hayakuchi.models.vits.model import TrainingNoise, Vits, make_decoder
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel
from hayakuchi.models.vits.starts import Source
from hayakuchi.models.vits.subband_loss import subband_loss
from vits_models import SMALL_AUDIO, small_config

HOP = SMALL_AUDIO.hop_samples
KINDS = {
    "hifigan": {},
    "istft": {"decoder": "istft", "upsample_rates": (2, 2), "upsample_kernels": (4, 4)},
    "mb_istft": {
        "decoder": "mb_istft",
        "subbands": 4,
        "istft_hop": 2,
        "istft_samples": 8,
        "upsample_rates": (2,),
        "upsample_kernels": (4,),
        "segment_samples": 38 * HOP,
    },
}
KINDS["ms_istft"] = {**KINDS["mb_istft"], "decoder": "ms_istft", "segment_samples": 4 * HOP}


@cache
def decoder_of(kind, dtype=jnp.float32):
    config = small_config(**KINDS[kind])
    return nnx.jit(lambda key: make_decoder(config, Source(key), dtype))(jax.random.key(0))


def latents(frames, rows=2):
    return jax.random.normal(jax.random.key(1), (rows, frames, 8)), jax.random.normal(jax.random.key(2), (rows, 4))


@nnx.jit
def decoded(decoder, z, speaker, mask=None):
    return decoder(z, speaker, mask)


bands_of = jax.jit(pqmf.analysis, static_argnums=1)
joined = jax.jit(pqmf.synthesis)
inverted = jax.jit(inverse_stft, static_argnums=2)
loss_and_gradient = jax.jit(jax.value_and_grad(subband_loss, argnums=1))


def stft(x, samples, hop):
    """[F, K] of a signal with zeros beyond both ends, frame f centred on f * hop, periodic Hann window."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(samples) / samples)
    padded = np.pad(x, samples // 2)
    starts = range(0, len(x) + 1, hop)
    return np.stack([np.fft.rfft(window * padded[start : start + samples]) for start in starts])


def decibels(error, signal):
    return 10 * np.log10(np.mean(np.square(error)) / np.mean(np.square(signal)))


@pytest.mark.parametrize(("samples", "hop"), [(16, 4), (8, 4), (12, 3), (32, 4)])
def test_inverse_of_a_transform_is_the_signal_up_to_its_ends(samples, hop):
    signals = np.random.default_rng(0).standard_normal((2, 3, 20 * hop))  # rows, streams
    spectra = np.stack([[stft(x, samples, hop) for x in row] for row in signals]).swapaxes(1, 2)
    found = inverted(jnp.asarray(np.abs(spectra)), jnp.asarray(np.angle(spectra)), hop)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, signals.swapaxes(1, 2), atol=1e-5)


def test_frames_out_of_the_mask_are_as_if_not_there():
    magnitude, phase = jax.random.uniform(jax.random.key(0), (2, 2, 9, 1, 9))
    mask = jnp.arange(9) < jnp.array([[9], [5]])
    found = inverted(magnitude.at[1, 5:].set(jnp.inf), phase, 4, mask)
    assert (found[1, 16:] == 0).all()
    np.testing.assert_allclose(found[1:, :16], inverted(magnitude[1:, :5], phase[1:, :5], 4), atol=1e-6)


@pytest.mark.parametrize("subbands", [4, 8, 16])
def test_bank_reconstructs_without_delay(subbands):
    taps = pqmf.taps(subbands)
    noise = jax.random.normal(jax.random.key(0), (1, 256 * subbands))
    found = joined(bands_of(noise, subbands))
    inside = slice(taps, -taps)  # beyond the ends there are zeros, which cut off the filters' tails
    assert decibels((found - noise)[:, inside], noise) < -60
    places = 2 * taps + np.arange(subbands)
    impulses = np.eye(4 * taps, dtype=np.float32)[places]
    answers = joined(bands_of(jnp.asarray(impulses), subbands))
    np.testing.assert_array_equal(np.argmax(answers, axis=1), places)
    np.testing.assert_allclose(answers, impulses, atol=3e-3)


@pytest.mark.parametrize("frequency", [0.02, 0.11, 0.125, 0.2, 0.25, 0.33, 0.375, 0.49])  # of the sample rate
def test_tones_stay_in_their_bands_and_leave_no_alias(frequency):
    tone = jnp.sin(2 * jnp.pi * frequency * jnp.arange(4096))[None]
    bands = bands_of(tone, 4)
    power = np.mean(np.square(bands[0, 100:-100]), axis=0)
    far = [band for band in range(4) if abs(frequency - (band + 0.5) / 8) > 1.5 / 8]
    assert power[far].sum() < 1e-6 * power.sum()
    inside = slice(200, -200)
    found = np.asarray(joined(bands))[0, inside]
    spectrum = np.abs(np.fft.rfft(found * np.blackman(len(found))))
    peak = int(np.argmax(spectrum))
    assert abs(peak / len(found) - frequency) < 1e-3
    spectrum[max(peak - 8, 0) : peak + 9] = 0
    assert spectrum.max() < 1e-3 * np.abs(np.fft.rfft(tone[0, inside] * np.blackman(len(found)))).max()


def test_streams_are_spread_out_and_filtered():
    x, filters = (
        np.random.default_rng(0).standard_normal((2, 9, 4)),
        np.random.default_rng(1).standard_normal((7, 1, 4)),
    )
    spread = np.zeros((2, 36, 4))
    spread[:, ::4] = 4 * x
    expected = [sum(np.convolve(row[:, n], filters[:, 0, n], "same") for n in range(4)) for row in spread]
    found = pqmf.join_streams(jnp.asarray(x, jnp.float32), jnp.asarray(filters, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_rows_are_the_rows_alone_and_then_silent(kind):
    """S5."""
    decoder = decoder_of(kind)
    assert isinstance(decoder, Decoder) == (kind == "hifigan")
    z, speaker = latents(9)
    lengths = (9, 3)
    mask = jnp.arange(9) < jnp.array(lengths)[:, None]
    padded = decoded(decoder, jnp.where(mask[..., None], z, 7), speaker, mask)
    assert padded.shape == (2, 9 * HOP)
    assert padded.dtype == jnp.float32
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone = decoded(decoder, z[one, :length], speaker[one])
        assert float(jnp.std(alone)) > 1e-3
        np.testing.assert_allclose(padded[one, : length * HOP], alone, atol=1e-5)
        assert (padded[row, length * HOP :] == 0).all()


def test_one_frame_is_enough():
    z, speaker = latents(1)
    assert np.isfinite(decoded(decoder_of("istft"), z, speaker)).all()


@pytest.mark.parametrize("kind", ["istft", "ms_istft"])
def test_every_parameter_has_a_finite_gradient(kind):
    decoder = decoder_of(kind)
    z, speaker = latents(4)
    graph, state = nnx.split(decoder, nnx.Param)

    @jax.jit
    def gradients(state, z):
        return jax.grad(lambda *parts: jnp.sum(nnx.merge(graph, parts[0])(parts[1], speaker) ** 2), (0, 1))(state, z)

    for gradient in jax.tree.leaves(gradients(state, z)):
        assert np.isfinite(gradient).all()
        assert float(jnp.abs(gradient).max()) > 0


def test_learnt_filters_can_be_those_of_the_bank():
    streams, bank = (decoder_of(kind) for kind in ("ms_istft", "mb_istft"))
    x = jax.random.normal(jax.random.key(0), (2, 40, 4))
    assert float(jnp.abs(streams.join(x) - bank.join(x)).max()) > 0.1
    # The answer of the bank to an impulse in each subband is its filter.
    impulses = jnp.zeros((4, 33, 4)).at[jnp.arange(4), 16, jnp.arange(4)].set(1.0)
    answers = bank.join(impulses)[:, 16 * 4 - 31 : 16 * 4 + 32]
    streams.filters[...] = answers.T[:, None] / 4
    np.testing.assert_allclose(streams.join(x), bank.join(x), atol=1e-5)


def test_bfloat16_changes_little_and_ends_in_float32():
    z, speaker = latents(9)
    exact, rough = (decoded(decoder_of("istft", dtype), z, speaker) for dtype in (jnp.float32, jnp.bfloat16))
    assert rough.dtype == jnp.float32
    assert 0 < float(jnp.abs(rough - exact).max()) < 0.05 * float(jnp.abs(exact).max())


@pytest.mark.parametrize("kind", KINDS)
def test_training_pass_has_subbands_where_there_are_fixed_ones(kind):
    config = small_config(**KINDS[kind])
    frames = config.segment_frames + 2
    noise = TrainingNoise(jnp.zeros((2, frames, 8)), jnp.zeros((2, 5, 2)), jnp.zeros(2))
    lengths = jnp.array([5, 4]), jnp.array([frames, frames])

    def one_pass(key):
        model = Vits(config, key)
        spectrogram = jnp.ones((2, frames, SMALL_AUDIO.bins))
        return model.train_pass(jnp.ones((2, 5), int), lengths[0], spectrogram, lengths[1], noise, jnp.array([0, 1]))

    found = jax.eval_shape(one_pass, jax.random.key(0))
    assert found.audio.shape == (2, config.segment_samples)
    assert (found.subbands is None) == (kind != "mb_istft")
    if found.subbands is not None:
        assert found.subbands.shape == (2, config.segment_samples // 4, 4)


def test_speech_is_never_louder_than_full_scale():
    config = small_config(**KINDS["mb_istft"])
    model = nnx.jit(lambda key: Vits(config, key))(jax.random.key(0))
    model.decoder.leave.bias[...] = jnp.full(model.decoder.leave.bias.shape, 3.0)
    spectrogram = jnp.ones((1, 6, SMALL_AUDIO.bins))
    one = jnp.array([0])
    speech = nnx.jit(lambda model, *parts: model.convert(*parts))(
        model, spectrogram, jnp.array([6]), jnp.zeros((1, 6, 8)), one, one
    )
    assert float(jnp.abs(speech.audio).max()) == 1.0


def published_subband_loss(real, fake):
    """The loss as multi-band MelGAN's code has it, of [R, U] signals."""
    total = 0.0
    for transform, hop, window in ((384, 30, 150), (683, 60, 300), (171, 10, 60)):
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
        left = (transform - window) // 2
        hann = np.pad(hann, (left, transform - window - left))

        def magnitudes(rows, hann=hann, transform=transform, hop=hop):
            padded = np.pad(rows, ((0, 0), (transform // 2, transform // 2)), mode="reflect")
            frames = np.lib.stride_tricks.sliding_window_view(padded, transform, axis=1)[:, ::hop]
            return np.sqrt(np.maximum(np.abs(np.fft.rfft(hann * frames)) ** 2, 1e-7))

        true, made = magnitudes(real), magnitudes(fake)
        total += np.linalg.norm(true - made) / np.linalg.norm(true) + np.mean(np.abs(np.log(true) - np.log(made)))
    return total / 3


def test_subband_loss_is_the_published_one():
    real = jax.random.normal(jax.random.key(0), (2, 4096))
    fake = 0.5 * jax.random.normal(jax.random.key(1), (2, 1024, 4))
    rows = [np.asarray(x).swapaxes(1, 2).reshape(8, 1024) for x in (bands_of(real, 4), fake)]
    np.testing.assert_allclose(loss_and_gradient(real, fake)[0], published_subband_loss(*rows), rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_subband_loss_of_equals_is_nothing_and_has_a_gradient(scale):
    real = scale * jax.random.normal(jax.random.key(0), (2, 4096))
    loss, gradient = loss_and_gradient(real, bands_of(real, 4))
    assert float(loss) < 1e-4
    assert np.isfinite(gradient).all()


def test_training_lowers_both_losses():
    config = small_config(**KINDS["mb_istft"])
    graph, state = nnx.split(decoder_of("mb_istft"), nnx.Param)
    frames = config.segment_frames
    z, speaker = latents(frames)
    times = jnp.arange(config.segment_samples) / SMALL_AUDIO.sample_rate_hz
    real = 0.3 * jnp.sin(2 * jnp.pi * jnp.array([[300.0], [700.0]]) * times)
    wanted = log_mel(linear_spectrogram(real, SMALL_AUDIO), SMALL_AUDIO)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(state, moments):
        def losses(state):
            decoder = nnx.merge(graph, state)
            subbands = decoder.subbands(z, speaker)
            mel = log_mel(linear_spectrogram(decoder.join(subbands), SMALL_AUDIO), SMALL_AUDIO)
            parts = jnp.mean(jnp.abs(mel - wanted)), subband_loss(real, subbands)
            return sum(parts), parts

        gradients, parts = jax.grad(losses, has_aux=True)(state)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(state, updates), moments, parts

    moments, history = optimizer.init(state), []
    for _ in range(40):
        state, moments, parts = step(state, moments)
        history.append([float(part) for part in parts])
    assert history[-1][0] < 0.5 * history[0][0]
    assert history[-1][1] < 0.7 * history[0][1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": "vocos"}, "decoder='vocos' must be one of hifigan, istft, mb_istft, ms_istft"),
        (
            {"decoder": "istft"},
            r"upsample_rates=\(4, 4\) times istft_hop \(4\) times subbands \(1\) must be hop_samples",
        ),
        ({"subbands": 4}, "subbands=4 must be 1 with decoder='hifigan'"),
        ({"decoder": "mb_istft"}, "subbands=1 must be 4, 8 or 16 with decoder='mb_istft'"),
        ({**KINDS["mb_istft"], "istft_samples": 6}, r"istft_samples=6 must be a multiple of twice istft_hop \(2\)"),
        ({**KINDS["istft"], "istft_hop": 0}, "istft_hop=0 must be 1 or more"),
        ({**KINDS["istft"], "istft_hop": 16, "istft_samples": 32, "upsample_rates": ()}, "must multiply to 2 or more"),
        (
            {**KINDS["mb_istft"], "segment_samples": 592},
            "segment_samples=592 must be 604 or more for the loss on 4 subb",
        ),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        small_config(**changes)


def test_published_sizes():
    """27.5 million parameters to speak with, 7.2 in the small model (arXiv 2210.15975, table 1)."""
    published = {
        "decoder": "mb_istft",
        "subbands": 4,
        "upsample_rates": (4, 4),
        "upsample_kernels": (16, 16),
        "stochastic_durations": False,
    }
    small = {"upsample_channels": 256, "hidden_channels": 96, "text_layers": 3}
    for changes, expected in (({}, 27.49e6), (small, 7.23e6)):
        config = VitsConfig(**published, **changes)
        model = nnx.eval_shape(lambda config=config: Vits(config, jax.random.key(0)))
        total, unused = (
            sum(x.size for x in jax.tree.leaves(nnx.state(part))) for part in (model, model.posterior_encoder)
        )
        assert abs(total - unused - expected) < 0.02 * expected
