"""Spectrograms against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.config.vits import AudioConfig
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel, mel_filters

CONFIG = AudioConfig(sample_rate_hz=8_000, fft_samples=64, window_samples=48, hop_samples=16, mel_bins=10)


def test_linear_spectrogram_by_its_definition():
    audio = np.random.default_rng(0).normal(size=160)
    edge = (64 - 16) // 2
    padded = np.pad(audio, edge, mode="reflect")
    window = np.pad(np.hanning(49)[:-1], 8)
    frames = np.stack([padded[start : start + 64] * window for start in range(0, 160, 16)])
    expected = np.sqrt(np.abs(np.fft.rfft(frames)) ** 2 + 1e-6)
    found = linear_spectrogram(jnp.asarray(audio, jnp.float32)[None], CONFIG)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hop", [16, 24, 10])
def test_one_frame_a_hop(hop):
    config = AudioConfig(sample_rate_hz=8_000, fft_samples=64, window_samples=64, hop_samples=hop, mel_bins=10)
    assert linear_spectrogram(jnp.zeros((1, 7 * hop + hop - 1)), config).shape == (1, 7, 33)


def test_mel_filters_have_equal_area_and_rising_peaks():
    config = AudioConfig(sample_rate_hz=24_000, fft_samples=2_048, mel_bins=40)
    filters = mel_filters(config)
    step = config.sample_rate_hz / config.fft_samples
    # Triangles of height 2 / base; the narrow ones hold few bins, so their sum is only near 1.
    np.testing.assert_allclose(filters.sum(0) * step, 1, atol=0.06)
    assert (np.diff(filters.argmax(0)) > 0).all()


def test_a_tone_falls_into_its_band():
    config = AudioConfig(sample_rate_hz=16_000, mel_bins=40)
    hz = 2_000.0
    tone = jnp.sin(2 * jnp.pi * hz * jnp.arange(16_000) / 16_000)[None]
    mel = np.asarray(log_mel(linear_spectrogram(tone, config), config))[0, 20]
    frequencies = np.linspace(0, 8_000, config.bins)
    centre = frequencies[mel_filters(config)[:, mel.argmax()].argmax()]
    assert abs(centre - hz) < 150


def test_computed_in_float32_whatever_comes_in():
    audio = (0.3 * jax.random.normal(jax.random.key(0), (1, 160))).astype(jnp.bfloat16)
    half = log_mel(linear_spectrogram(audio, CONFIG), CONFIG)
    whole = log_mel(linear_spectrogram(audio.astype(jnp.float32), CONFIG), CONFIG)
    assert half.dtype == jnp.float32
    np.testing.assert_array_equal(half, whole)


def test_silence_has_finite_gradients():
    gradient = jax.grad(lambda audio: jnp.sum(log_mel(linear_spectrogram(audio, CONFIG), CONFIG)))(jnp.zeros((1, 160)))
    assert np.isfinite(gradient).all()
