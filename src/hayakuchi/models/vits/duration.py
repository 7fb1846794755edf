"""Duration predictors (arXiv 2106.06103, section 2.2.2 and appendices A and B): flow-based, and deterministic.

Both are small and full of exponentials and logarithms, so they compute in true float32 on every device,
whatever the model's precision. Neither sends gradients into the text encoder or the speaker embedding, as published.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config.vits import VitsConfig
from hayakuchi.models import ops
from hayakuchi.models.convolutions import pad_time
from hayakuchi.models.module import Module
from hayakuchi.models.vits.layers import (
    ChannelNorm,
    Convolution,
    Pointwise,
    masked,
    scan_stack,
)
from hayakuchi.models.vits.spline import Spline, make_spline, spline_forward, spline_inverse
from hayakuchi.models.vits.starts import Source, stacked

_STACK_LAYERS = 3
_FLOWS = 4
_BINS = 10
_LOG_2PI = math.log(2 * math.pi)
_LEAST_DURATION = 1e-5
_DETERMINISTIC_OFFSET = 1e-6

_Pointwise = partial(Pointwise, precision=ops.HIGHEST)
_Convolution = partial(Convolution, precision=ops.HIGHEST)


class _SeparableLayer(Module):
    """Dilated depthwise convolution and pointwise one, each with LayerNorm and GELU, around a residual."""

    def __init__(self, channels: int, width: int, source: Source) -> None:
        self.depthwise = nnx.Param(source.uniform((width, channels), width))
        self.depthwise_bias = nnx.Param(source.uniform((channels,), width))
        self.depthwise_norm = ChannelNorm(channels)
        self.pointwise = _Pointwise(channels, channels, source)
        self.pointwise_norm = ChannelNorm(channels)

    def __call__(
        self,
        x: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        dilation: Int[Array, ""],
        reach: int,
        rate: float,
        key: Key[Array, ""] | None,
    ) -> Float[Array, "B L C"]:
        """`dilation` is a traced number of at most `reach`, so that layers of different dilation are one scan."""
        kernel = self.depthwise[...]
        half = kernel.shape[0] // 2
        padded = pad_time(masked(x, mask), half * reach, half * reach)
        y = self.depthwise_bias[...]
        for tap in range(kernel.shape[0]):
            start = (0, half * reach + (tap - half) * dilation, 0)
            y = y + lax.dynamic_slice(padded, start, x.shape, allow_negative_indices=False) * kernel[tap]
        y = jax.nn.gelu(self.depthwise_norm(y), approximate=False)
        y = jax.nn.gelu(self.pointwise_norm(self.pointwise(y)), approximate=False)
        return x + ops.dropout(y, rate, key)


class SeparableStack(Module):
    """Layers of dilation 1, W, W ** 2: the "dilated and depth-separable" stack of appendix B."""

    def __init__(self, channels: int, width: int, rate: float, source: Source) -> None:
        self.layers = stacked(lambda: _SeparableLayer(channels, width, source), _STACK_LAYERS)
        self.dilations = tuple(width**layer for layer in range(_STACK_LAYERS))
        self.rate = rate

    def __call__(
        self, x: Float[Array, "B L C"], mask: Bool[Array, "B L"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "B L C"]:
        keys = None if key is None else jax.random.split(key, _STACK_LAYERS)
        reach = self.dilations[-1]

        def body(layer: _SeparableLayer, x: Array, inputs: tuple[Array, Any]) -> tuple[Array, None]:
            dilation, key = inputs
            return layer(x, mask, dilation, reach, self.rate, key), None

        x = scan_stack(self.layers, body, x, (jnp.asarray(self.dilations, jnp.int32), keys))
        return masked(x, mask)


class _SplineFlow(Module):
    """Moves the second of two channels by splines that the first and the condition choose."""

    def __init__(self, channels: int, width: int, source: Source) -> None:
        self.enter = _Pointwise(1, channels, source)
        self.stack = SeparableStack(channels, width, 0.0, source)
        self.leave = _Pointwise(channels, 3 * _BINS - 1, source, zero=True)
        self.scale = 1 / math.sqrt(channels)

    def spline(
        self, first: Float[Array, "B L 1"], mask: Bool[Array, "B L"], condition: Float[Array, "B L C"]
    ) -> Spline:
        raw = masked(self.leave(self.stack(self.enter(first) + condition, mask)), mask)
        widths, heights, slopes = jnp.split(raw, (_BINS, 2 * _BINS), axis=-1)
        return make_spline(widths * self.scale, heights * self.scale, slopes)


class SplineFlows(Module):
    """An affine map of two channels, then spline flows with the channels swapped after each."""

    def __init__(self, channels: int, width: int, source: Source) -> None:
        self.mean = nnx.Param(jnp.zeros((2,), jnp.float32))
        self.log_scale = nnx.Param(jnp.zeros((2,), jnp.float32))
        self.flows = stacked(lambda: _SplineFlow(channels, width, source), _FLOWS)

    def forward(
        self, z: Float[Array, "B L 2"], mask: Bool[Array, "B L"], condition: Float[Array, "B L C"]
    ) -> tuple[Float[Array, "B L 2"], Float[Array, " B"]]:
        """The transformed channels, and each row's log-determinant."""
        log_scale = self.log_scale[...]
        z = masked(self.mean[...] + jnp.exp(log_scale) * z, mask)
        total = jnp.sum(mask, axis=1) * jnp.sum(log_scale)

        def body(flow: _SplineFlow, carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            z, total = carry
            first, second = z[..., 0], z[..., 1]
            second, log_slope = spline_forward(second, flow.spline(first[..., None], mask, condition))
            z = masked(jnp.stack([second, first], axis=-1), mask)
            return (z, total + jnp.sum(log_slope * mask, axis=1)), None

        z, total = scan_stack(self.flows, body, (z, total))
        return z, total

    def inverse(
        self, z: Float[Array, "B L 2"], mask: Bool[Array, "B L"], condition: Float[Array, "B L C"], first: int = 0
    ) -> Float[Array, "B L 2"]:
        """Undoes `forward`; `first` spline flows are left out."""

        def body(flow: _SplineFlow, z: Array, _: None) -> tuple[Array, None]:
            second, first = z[..., 0], z[..., 1]
            second, _log_slope = spline_inverse(second, flow.spline(first[..., None], mask, condition))
            return masked(jnp.stack([first, second], axis=-1), mask), None

        z = scan_stack(self.flows, body, z, first=first, reverse=True)
        if first % 2:
            z = lax.rev(z, (2,))
        return masked((z - self.mean[...]) * jnp.exp(-self.log_scale[...]), mask)


class StochasticDurations(Module):
    """Durations as samples of a flow, trained by a variational bound with dequantisation and augmentation."""

    def __init__(self, config: VitsConfig, source: Source) -> None:
        channels, width, rate = config.hidden_channels, config.text_kernel, config.duration_dropout
        self.enter = _Pointwise(channels, channels, source)
        self.stack = SeparableStack(channels, width, rate, source)
        self.leave = _Pointwise(channels, channels, source)
        self.flows = SplineFlows(channels, width, source)
        self.posterior_enter = _Pointwise(1, channels, source)
        self.posterior_stack = SeparableStack(channels, width, rate, source)
        self.posterior_leave = _Pointwise(channels, channels, source)
        self.posterior_flows = SplineFlows(channels, width, source)
        speaker_channels = config.condition_channels
        self.condition = _Pointwise(speaker_channels, channels, source) if speaker_channels else None

    def loss(
        self,
        hidden: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        durations: Float[Array, "B L"],
        noise: Float[Array, "B L 2"],
        speaker: Float[Array, "B G"] | None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, " B"]:
        """Upper bound of each row's -log p(durations) in nats (equation 7). `noise` is standard normal."""
        condition_key, posterior_key = (None, None) if key is None else jax.random.split(key)
        condition = self._condition(hidden, mask, speaker, condition_key)

        noise = masked(noise, mask)
        x = self.posterior_stack(self.posterior_enter(durations[..., None]), mask, posterior_key)
        x = masked(self.posterior_leave(x), mask)
        z, posterior_determinant = self.posterior_flows.forward(noise, mask, condition + x)
        raw, second = z[..., 0], z[..., 1]
        dequantised = jnp.where(mask, durations - jax.nn.sigmoid(raw), 0)
        log_slope = jax.nn.log_sigmoid(raw) + jax.nn.log_sigmoid(-raw)
        posterior_determinant += jnp.sum(log_slope * mask, axis=1)
        log_q = -0.5 * jnp.sum((_LOG_2PI + noise * noise) * mask[..., None], axis=(1, 2)) - posterior_determinant

        first = jnp.log(jnp.maximum(dequantised, _LEAST_DURATION)) * mask
        z, determinant = self.flows.forward(jnp.stack([first, second], axis=-1), mask, condition)
        determinant -= jnp.sum(first, axis=1)
        log_p = -0.5 * jnp.sum((_LOG_2PI + z * z) * mask[..., None], axis=(1, 2)) + determinant
        return log_q - log_p

    def log_durations(
        self,
        hidden: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        noise: Float[Array, "B L 2"],
        speaker: Float[Array, "B G"] | None,
    ) -> Float[Array, "B L"]:
        """Logarithms of sampled durations in frames. `noise` is normal, already scaled.

        The first spline flow is left out when sampling, as published.
        """
        condition = self._condition(hidden, mask, speaker, None)
        return self.flows.inverse(noise, mask, condition, first=1)[..., 0]

    def _condition(
        self,
        hidden: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        speaker: Float[Array, "B G"] | None,
        key: Key[Array, ""] | None,
    ) -> Float[Array, "B L C"]:
        x = self.enter(lax.stop_gradient(hidden))
        if self.condition is not None and speaker is not None:
            x = x + self.condition(lax.stop_gradient(speaker))[:, None]
        return masked(self.leave(self.stack(x, mask, key)), mask)


class DeterministicDurations(Module):
    """Log-durations by two convolutions (FastSpeech 2, arXiv 2006.04558), trained by squared error."""

    def __init__(self, config: VitsConfig, source: Source) -> None:
        channels, inner, width = config.hidden_channels, config.duration_channels, config.text_kernel
        self.first = _Convolution(width, channels, inner, source)
        self.first_norm = ChannelNorm(inner)
        self.second = _Convolution(width, inner, inner, source)
        self.second_norm = ChannelNorm(inner)
        self.leave = _Pointwise(inner, 1, source)
        speaker_channels = config.condition_channels
        self.condition = _Pointwise(speaker_channels, channels, source) if speaker_channels else None
        self.rate = config.duration_dropout

    def loss(
        self,
        hidden: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        durations: Float[Array, "B L"],
        speaker: Float[Array, "B G"] | None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, " B"]:
        """Each row's sum of squared errors of the log-durations."""
        target = jnp.log(durations + _DETERMINISTIC_OFFSET)
        difference = self.log_durations(hidden, mask, speaker, key) - target
        return jnp.sum(jnp.square(difference) * mask, axis=1)

    def log_durations(
        self,
        hidden: Float[Array, "B L C"],
        mask: Bool[Array, "B L"],
        speaker: Float[Array, "B G"] | None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B L"]:
        keys = [None, None] if key is None else list(jax.random.split(key))
        x = lax.stop_gradient(hidden)
        if self.condition is not None and speaker is not None:
            x = x + self.condition(lax.stop_gradient(speaker))[:, None]
        x = self.first_norm(jax.nn.relu(self.first(masked(x, mask))))
        x = ops.dropout(x, self.rate, keys[0])
        x = self.second_norm(jax.nn.relu(self.second(masked(x, mask))))
        x = ops.dropout(x, self.rate, keys[1])
        return masked(self.leave(masked(x, mask)), mask)[..., 0]
