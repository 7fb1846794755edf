"""Discriminators: one at the scale of samples and five at periods (arXiv 2010.05646, section 2.3)."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from hayakuchi.config import Remat
from hayakuchi.models.convolutions import add_bias, convolution, grouped_convolution, leaky_relu, reflect_pad
from hayakuchi.models.module import Module
from hayakuchi.models.remat import recomputed
from hayakuchi.models.vits.layers import WeightNormed, unstack
from hayakuchi.models.vits.starts import Source

PERIODS = (2, 3, 5, 7, 11)
_SLOPE = 0.1
# Kernel width, input and output channels, stride, groups.
_SCALE_LAYERS = (
    (15, 1, 16, 1, 1),
    (41, 16, 64, 4, 4),
    (41, 64, 256, 4, 16),
    (41, 256, 1024, 4, 64),
    (41, 1024, 1024, 4, 256),
    (5, 1024, 1024, 1, 1),
    (3, 1024, 1, 1, 1),
)
_PERIOD_LAYERS = (
    (5, 1, 32, 3),
    (5, 32, 128, 3),
    (5, 128, 512, 3),
    (5, 512, 1024, 3),
    (5, 1024, 1024, 1),
    (3, 1024, 1, 1),
)


class Judgement(NamedTuple):
    """What one discriminator says of a batch of waveforms.

    Attributes:
      score: [B, N]; near 1 is real.
      features: the output of every layer, the score's too, for feature matching: [B', T', C], B' a multiple of B.
    """

    score: Array
    features: tuple[Array, ...]


class ScaleDiscriminator(Module):
    """Strided grouped convolutions over the samples."""

    def __init__(self, source: Source, division: int) -> None:
        self.plan = tuple(_narrowed(*layer, division) for layer in _SCALE_LAYERS)
        self.layers = nnx.List(
            WeightNormed((width, inputs // groups, outputs), source) for width, inputs, outputs, _, groups in self.plan
        )

    def __call__(self, x: Float[Array, "B S"], dtype: Any) -> Judgement:
        y = x[..., None].astype(dtype)
        features = []
        for layer, (width, _, outputs, stride, groups) in zip(self.layers, self.plan, strict=True):
            padding = width // 2
            if groups == 1:
                y = convolution(y, layer.kernel(), stride=stride, padding=padding)
            else:
                y = grouped_convolution(y, layer.kernel(), groups, stride, padding)
            y = add_bias(y, layer.bias[...])
            if outputs > 1:
                y = leaky_relu(y, _SLOPE)
            features.append(y)
        return Judgement(y[..., 0].astype(jnp.float32), tuple(features))


class PeriodDiscriminators(Module):
    """Convolutions over every p-th sample, for each period p. Their parameters have equal shapes and are stacked."""

    def __init__(self, source: Source, division: int) -> None:
        plan = (_narrowed(*layer, 1, division) for layer in _PERIOD_LAYERS)
        self.layers = nnx.List(
            WeightNormed((width, inputs, outputs), source, (len(PERIODS),)) for width, inputs, outputs, *_ in plan
        )

    def __call__(self, x: Float[Array, "B S"], dtype: Any, remat: Remat) -> list[Judgement]:
        kernels = zip(*(unstack(layer.kernel()) for layer in self.layers), strict=True)
        biases = zip(*(unstack(layer.bias[...]) for layer in self.layers), strict=True)
        x = x.astype(dtype)
        judges = [recomputed(partial(_judge_period, period), remat) for period in PERIODS]
        return [judge(x, *layers) for judge, *layers in zip(judges, kernels, biases, strict=True)]


class Discriminators(Module):
    """All six.

    Args:
      key: of the initialisation.
      dtype: arithmetic of convolutions.
      division: makes all channels fewer (see `VitsConfig.discriminator_division`).
      remat: what the backward pass computes anew.
    """

    def __init__(self, key: Key[Array, ""], dtype: Any = jnp.float32, division: int = 1, remat: Remat = "none") -> None:
        source = Source(key)
        self.scale = ScaleDiscriminator(source, division)
        self.periods = PeriodDiscriminators(source, division)
        self.dtype = dtype
        self.remat: Remat = remat

    def __call__(self, x: Float[Array, "B S"]) -> list[Judgement]:
        """The scale discriminator's judgement, then those of the periods in rising order."""
        scale = recomputed(partial(self.scale, dtype=self.dtype), self.remat)
        return [scale(x), *self.periods(x, self.dtype, self.remat)]


def _judge_period(
    period: int, x: Float[Array, "B S"], kernels: tuple[Array, ...], biases: tuple[Array, ...]
) -> Judgement:
    batch, samples = x.shape
    x = reflect_pad(x, 0, -samples % period)
    # The columns of a period never meet before the score, so they are rows of a longer batch.
    y = x.reshape(batch, -1, period).swapaxes(1, 2).reshape(batch * period, -1, 1)
    features = []
    for kernel, bias, (width, _, _, stride) in zip(kernels, biases, _PERIOD_LAYERS, strict=True):
        y = add_bias(convolution(y, kernel, stride=stride, padding=width // 2), bias)
        if kernel.shape[-1] > 1:
            y = leaky_relu(y, _SLOPE)
        features.append(y)
    score = y.reshape(batch, period, -1).swapaxes(1, 2).reshape(batch, -1)
    return Judgement(score.astype(jnp.float32), tuple(features))


def _narrowed(
    width: int, inputs: int, outputs: int, stride: int, groups: int, division: int
) -> tuple[int, int, int, int, int]:
    """A layer with its channels divided, but for those of the waveform and of the score."""
    inputs, outputs = (channels if channels == 1 else channels // division for channels in (inputs, outputs))
    return width, inputs, outputs, stride, math.gcd(groups, inputs, outputs)
