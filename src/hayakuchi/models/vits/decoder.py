"""HiFi-GAN generator (Kong et al. 2020, arXiv 2010.05646, section 2.2): latent frames to a waveform."""

import itertools
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models import ops
from hayakuchi.models.convolutions import add_bias, convolution, leaky_relu, transposed_convolution
from hayakuchi.models.module import Module
from hayakuchi.models.remat import recomputed
from hayakuchi.models.vits.layers import Convolution, Pointwise, WeightNormed, masked, unstack
from hayakuchi.models.vits.starts import Source

_SLOPE = 0.1
_LAST_SLOPE = 0.01
EDGE_KERNEL = 7


class ResBlock(Module):
    """Residual pairs ("1": a dilated convolution, then a plain one) or residual dilated convolutions ("2").

    All its convolutions have one shape, so their parameters are one stack, in the order they are applied.
    """

    def __init__(self, kind: str, channels: int, width: int, dilations: tuple[int, ...], source: Source) -> None:
        self.dilations = tuple((dilation, 1) if kind == "1" else (dilation,) for dilation in dilations)
        count = sum(map(len, self.dilations))
        self.convolutions = WeightNormed((width, channels, channels), source, (count,))

    def __call__(self, x: Float[Array, "B T C"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B T C"]:
        weights = zip(unstack(self.convolutions.kernel()), unstack(self.convolutions.bias[...]), strict=True)
        for group in self.dilations:
            y = x
            for dilation, (kernel, bias) in zip(group, itertools.islice(weights, len(group)), strict=True):
                y = add_bias(convolution(_clean(leaky_relu(y, _SLOPE), mask), kernel, dilation=dilation), bias)
            x = x + y
        return x


class Trunk(Module):
    """Upsampling by transposed convolutions, each followed by the mean of parallel residual blocks."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        channels = config.upsample_channels
        self.enter = Convolution(EDGE_KERNEL, config.latent_channels, channels, source)
        speaker_channels = config.condition_channels
        self.condition = (
            Pointwise(speaker_channels, channels, source, precision=ops.HIGHEST) if speaker_channels else None
        )
        self.upsamples: Any = nnx.List()
        self.blocks: Any = nnx.List()
        for width in config.upsample_kernels:
            # Weight norm of a transposed convolution is taken per input channel: [W, O, I].
            self.upsamples.append(WeightNormed((width, channels // 2, channels), source, biases=channels // 2))
            channels //= 2
            for kernel, dilations in zip(config.resblock_kernels, config.resblock_dilations, strict=True):
                self.blocks.append(ResBlock(config.resblock, channels, kernel, dilations, source))
        self.channels = channels
        self.rates = config.upsample_rates
        self.parallel = len(config.resblock_kernels)
        self.dtype = dtype
        self.remat: Remat = remat

    def features(
        self,
        z: Float[Array, "B T C"],
        speaker: Float[Array, "B G"] | None,
        mask: Bool[Array, "B T"] | None,
    ) -> tuple[Float[Array, "B U D"], Bool[Array, "B U"] | None]:
        """What the last layer makes sound of, float32, and the mask at its rate.

        Args:
          z: latent frames.
          speaker: speaker vectors, None for one speaker.
          mask: frames that count. With it the samples of a padded row are those of the row alone: every convolution
            sees zeros past the row's end, as it does past the end of an array.
        """
        x = self.enter(_clean(z.astype(self.dtype), mask))
        if self.condition is not None and speaker is not None:
            x = x + self.condition(speaker)[:, None].astype(x.dtype)
        for stage, (rate, layer) in enumerate(zip(self.rates, self.upsamples, strict=True)):
            kernel = layer.kernel()
            x = _clean(leaky_relu(x, _SLOPE), mask)
            x = transposed_convolution(x, kernel, rate, (kernel.shape[0] - rate) // 2)
            x = add_bias(x, layer.bias[...])
            if mask is not None:
                mask = jnp.repeat(mask, rate, axis=1)
            blocks = [
                recomputed(block, self.remat)
                for block in list(self.blocks)[stage * self.parallel : (stage + 1) * self.parallel]
            ]
            total = blocks[0](x, mask)
            for block in blocks[1:]:
                total = total + block(x, mask)
            x = total / self.parallel
        return _clean(leaky_relu(x, _LAST_SLOPE).astype(jnp.float32), mask), mask


class Decoder(Trunk):
    """HiFi-GAN: the trunk goes up to single samples."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        super().__init__(config, source, dtype, remat)
        self.leave = Convolution(EDGE_KERNEL, self.channels, 1, source, biased=False, precision=ops.HIGHEST)

    def __call__(
        self,
        z: Float[Array, "B T C"],
        speaker: Float[Array, "B G"] | None,
        mask: Bool[Array, "B T"] | None = None,
    ) -> Float[Array, "B S"]:
        """Samples in (-1, 1), float32. For arguments see `features`; with a mask, samples past a row's end are 0."""
        x, mask = self.features(z, speaker, mask)
        return jnp.tanh(_clean(self.leave(x), mask))[..., 0]


def _clean(x: Float[Array, "B T C"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B T C"]:
    return x if mask is None else masked(x, mask)
