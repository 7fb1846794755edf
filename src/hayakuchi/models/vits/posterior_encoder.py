"""Posterior encoder: linear spectrogram to latent frames (arXiv 2106.06103, sections 2.2.1 and 2.5.2)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models import ops
from hayakuchi.models.module import Module
from hayakuchi.models.vits.layers import Pointwise, masked
from hayakuchi.models.vits.starts import Source
from hayakuchi.models.vits.wavenet import WaveNet


class Posterior(NamedTuple):
    """A sample of q(z|x) and the distribution it is from: [B, T, C] float32 each, 0 past each clip's end."""

    sample: Float[Array, "B T C"]
    mean: Float[Array, "B T C"]
    log_scale: Float[Array, "B T C"]


class PosteriorEncoder(Module):
    """Spectrogram to the mean and log-scale of z, and a sample."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        channels = config.hidden_channels
        self.enter = Pointwise(config.audio.bins, channels, source)
        self.wavenet = WaveNet(
            channels, config.wavenet_kernel, config.posterior_layers, config.condition_channels, source, remat
        )
        self.projection = Pointwise(channels, 2 * config.latent_channels, source, precision=ops.HIGHEST)
        self.dtype = dtype

    def __call__(
        self,
        spectrogram: Float[Array, "B T F"],
        mask: Bool[Array, "B T"],
        noise: Float[Array, "B T C"],
        speaker: Float[Array, "B G"] | None,
    ) -> Posterior:
        """`noise` is standard normal."""
        x = masked(self.enter(spectrogram.astype(self.dtype)), mask)
        x = self.wavenet(x, mask, speaker)
        mean, log_scale = jnp.split(masked(self.projection(x), mask), 2, axis=-1)
        return Posterior(masked(mean + noise * jnp.exp(log_scale), mask), mean, log_scale)
