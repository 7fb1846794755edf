"""Decoders that end in an inverse short-time Fourier transform.

iSTFTNet (Kaneko et al. 2022, arXiv 2203.02395): the upsampling stops early, and magnitudes and phases of short
frames take it from there. Multi-band and multi-stream (Kawamura et al. 2022, arXiv 2210.15975): several such signals
at a lower rate, joined by a fixed pseudo-QMF bank or by filters that are learnt. As there, nothing bounds the samples.
"""

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models.convolutions import add_bias, convolution, transposed_convolution
from hayakuchi.models.vits import pqmf
from hayakuchi.models.vits.decoder import EDGE_KERNEL, Trunk
from hayakuchi.models.vits.layers import WeightNormed
from hayakuchi.models.vits.starts import Source


class IstftDecoder(Trunk):
    """The trunk of HiFi-GAN, then an inverse transform for each of N streams, then their union."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        super().__init__(config, source, dtype, remat)
        self.kind = config.decoder
        self.streams = config.subbands
        self.samples = config.istft_samples
        self.hop = config.istft_hop
        self.leave = WeightNormed((EDGE_KERNEL, self.channels, self.streams * (self.samples + 2)), source)
        width = pqmf.taps(self.streams) + 1
        self.filters = (
            nnx.Param(source.uniform((width, 1, self.streams), width * self.streams))
            if self.kind == "ms_istft"
            else None
        )

    def __call__(
        self,
        z: Float[Array, "B T C"],
        speaker: Float[Array, "B G"] | None,
        mask: Bool[Array, "B T"] | None = None,
    ) -> Float[Array, "B S"]:
        """Samples, float32. For arguments see `Trunk.features`; with a mask, samples past a row's end are 0."""
        audio = self.join(self.subbands(z, speaker, mask))
        if mask is None:
            return audio
        return audio * jnp.repeat(mask, audio.shape[1] // mask.shape[1], axis=1)

    def subbands(
        self,
        z: Float[Array, "B T C"],
        speaker: Float[Array, "B G"] | None,
        mask: Bool[Array, "B T"] | None = None,
    ) -> Float[Array, "B U N"]:
        """The streams, U = S / N, float32; for "mb_istft" these are subbands of rising frequency."""
        x, mask = self.features(z, speaker, mask)
        # One frame more than there are steps, centred on the start: the transform of a mirrored edge.
        x = lax.concatenate([lax.slice_in_dim(x, 1, 2, axis=1), x], 1)
        if mask is not None:
            mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        with jax.default_matmul_precision("highest"):
            x = add_bias(convolution(x, self.leave.kernel()), self.leave.bias[...])
            x = x.reshape(*x.shape[:2], self.streams, self.samples + 2)
            log_magnitude, angle = lax.split(x, (self.samples // 2 + 1,) * 2, axis=3)
            phase = math.pi * jnp.sin(angle)
            return inverse_stft(jnp.exp(log_magnitude), phase, self.hop, mask)

    def join(self, subbands: Float[Array, "B U N"]) -> Float[Array, "B S"]:
        """The waveform of the streams."""
        if self.kind == "istft":
            return subbands[..., 0]
        if self.filters is None:
            return pqmf.synthesis(subbands)
        return pqmf.join_streams(subbands, self.filters[...])


def inverse_stft(
    magnitude: Float[Array, "B F N K"],
    phase: Float[Array, "B F N K"],
    hop: int,
    mask: Bool[Array, "B F"] | None = None,
) -> Float[Array, "B U N"]:
    """Signals of short-time spectra under a periodic Hann window, U = (F - 1) * hop.

    Frame f is centred on sample f * hop. The sum of overlapping frames is divided by that of their squared windows:
    the least-squares inverse.

    Args:
      magnitude: of K = n / 2 + 1 bins.
      phase: in radians.
      hop: samples between frames.
      mask: frames that count. The others are as if they were not there, and samples past the last one are 0.
    """
    batch, frames, streams, bins = magnitude.shape
    samples = 2 * (bins - 1)
    kept = jnp.ones((1, frames, 1), jnp.float32)
    if mask is not None:
        kept = mask[..., None].astype(jnp.float32)
        magnitude = jnp.where(mask[..., None, None], magnitude, 0)
    parts = lax.concatenate([magnitude * jnp.cos(phase), magnitude * jnp.sin(phase)], 3)
    # Product with the basis and overlap-add are together one transposed convolution.
    basis, squares = _inverse_basis(samples, streams)
    signal = transposed_convolution(parts.reshape(batch, frames, -1), jnp.asarray(basis), hop, samples // 2)
    weight = transposed_convolution(kept, jnp.asarray(squares), hop, samples // 2)
    if mask is not None:
        reached = jnp.repeat(lax.slice_in_dim(mask, 1, frames, axis=1), hop, axis=1)[..., None]
        return jnp.where(reached, signal / jnp.where(reached, weight, 1), 0)
    return signal / weight


@lru_cache(maxsize=4)
def _inverse_basis(samples: int, streams: int) -> tuple[Float[np.ndarray, "W N I"], Float[np.ndarray, "W 1 1"]]:
    """Windowed inverse transform as the kernel of a transposed convolution, and the squared window as another.

    The inputs of the kernel are, stream by stream, real and imaginary parts; each stream has an output of its own.
    """
    bins = samples // 2 + 1
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(samples) / samples)
    units = np.concatenate([np.eye(bins), 1j * np.eye(bins)])
    basis = np.fft.irfft(units, samples).T * window[:, None]
    kernel = np.einsum("wi,nm->wnmi", basis, np.eye(streams)).reshape(samples, streams, -1)
    return kernel.astype(np.float32), np.square(window).astype(np.float32)[:, None, None]
