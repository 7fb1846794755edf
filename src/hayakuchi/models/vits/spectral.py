"""Spectrograms of waveforms, always in float32 (arXiv 2106.06103, sections 2.1.3 and 3.3)."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from hayakuchi.config.vits import AudioConfig
from hayakuchi.models.convolutions import reflect_pad, windows
from hayakuchi.models.sharding import by_rows

_LEAST_POWER = 1e-6
_LEAST_MEL = 1e-5


def linear_spectrogram(audio: Float[Array, "B S"], config: AudioConfig) -> Float[Array, "B T F"]:
    """Magnitudes of the short-time Fourier transform; T = S // hop.

    Hann window, mirrored edges of (fft - hop) / 2 samples, so that frame t is centred on its hop.
    """
    edge = (config.fft_samples - config.hop_samples) // 2
    frames = windows(reflect_pad(audio.astype(jnp.float32), edge, edge), config.fft_samples, config.hop_samples)
    spectrum = by_rows(jnp.fft.rfft, frames * _hann(config.fft_samples, config.window_samples))
    return jnp.sqrt(jnp.square(spectrum.real) + jnp.square(spectrum.imag) + _LEAST_POWER)


def log_mel(spectrogram: Float[Array, "B T F"], config: AudioConfig) -> Float[Array, "B T M"]:
    """Natural logarithm of mel bands of a linear spectrogram."""
    filters = mel_filters(config)
    mel = jnp.matmul(spectrogram.astype(jnp.float32), filters, precision=lax.Precision.HIGHEST)
    return jnp.log(jnp.maximum(mel, _LEAST_MEL))


@lru_cache(maxsize=8)
def mel_filters(config: AudioConfig) -> Float[np.ndarray, "F M"]:
    """Triangular filters of equal area on Slaney's mel scale: linear below 1 kHz, logarithmic above."""
    high = config.sample_rate_hz / 2 if config.mel_high_hz is None else config.mel_high_hz
    edges = _hz(np.linspace(_mel(config.mel_low_hz), _mel(high), config.mel_bins + 2))
    frequencies = np.linspace(0, config.sample_rate_hz / 2, config.bins)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    return np.asarray(triangles, np.float32)


_HZ_PER_MEL = 200 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def _mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _HZ_PER_MEL
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _hz(mel: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.where(mel < _BREAK_MEL, mel * _HZ_PER_MEL, _BREAK_HZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL)))


@lru_cache(maxsize=8)
def _hann(fft_samples: int, window_samples: int) -> Float[np.ndarray, " N"]:
    """Periodic Hann window, centred in the transform's length."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_samples) / window_samples)
    left = (fft_samples - window_samples) // 2
    return np.pad(window, (left, fft_samples - window_samples - left)).astype(np.float32)
