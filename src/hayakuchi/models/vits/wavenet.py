"""The non-causal WaveNet of VITS' posterior encoder and flow (arXiv 2106.06103, section 2.5.2 and appendix B)."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from hayakuchi.config import Remat
from hayakuchi.models import ops
from hayakuchi.models.convolutions import add_bias, convolution_in_scan
from hayakuchi.models.module import Module
from hayakuchi.models.remat import product, recomputed
from hayakuchi.models.vits.layers import WeightNormed, masked
from hayakuchi.models.vits.starts import Source


class WaveNet(Module):
    """Gated convolutions of dilation 1 with residual and skip connections, as one scan over the layers."""

    def __init__(
        self,
        channels: int,
        kernel_width: int,
        layers: int,
        speaker_channels: int,
        source: Source,
        remat: Remat = "none",
    ) -> None:
        self.inner = WeightNormed((kernel_width, channels, 2 * channels), source, (layers,))
        # Every layer but the last gives a residual and a skip half; the last gives a skip only.
        self.outer = WeightNormed((channels, 2 * channels), source, (layers - 1,))
        self.last = WeightNormed((channels, channels), source)
        self.condition = WeightNormed((speaker_channels, layers * 2 * channels), source) if speaker_channels else None
        self.layers = layers
        self.remat: Remat = remat

    def __call__(
        self, x: Float[Array, "B T C"], mask: Bool[Array, "B T"], speaker: Float[Array, "B G"] | None
    ) -> Float[Array, "B T C"]:
        """Sum of the layers' skips in float32. The products of the layers are computed in `x.dtype`."""
        batch, length, channels = x.shape
        dtype = x.dtype
        shift = jnp.zeros((self.layers, 1, 1, 2 * channels), jnp.float32)
        if self.condition is not None and speaker is not None:
            shift = ops.dense(speaker, self.condition.kernel(), self.condition.bias[...], ops.HIGHEST)
            shift = shift.reshape(batch, self.layers, 1, 2 * channels).swapaxes(0, 1)
        no_residual = jnp.zeros((channels, channels), jnp.float32)
        last_kernel = lax.concatenate([no_residual, self.last.kernel()], 1)
        last_bias = lax.concatenate([no_residual[0], self.last.bias[...]], 0)
        weights = (
            self.inner.kernel(),
            self.inner.bias[...],
            shift,
            lax.concatenate([self.outer.kernel(), last_kernel[None]], 0),
            lax.concatenate([self.outer.bias[...], last_bias[None]], 0),
        )

        def layer(streams: tuple[Array, Array], weights: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
            x, skips = streams
            kernel, bias, shift, out_kernel, out_bias = weights
            gates = add_bias(convolution_in_scan(x.astype(dtype), kernel), bias) + shift.astype(dtype)
            filtered, gate = jnp.split(gates, 2, axis=-1)
            gated = jnp.tanh(filtered) * jax.nn.sigmoid(gate)
            out = product(ops.dense(gated.reshape(-1, channels), out_kernel, out_bias)).reshape(batch, length, -1)
            residual, skip = jnp.split(out.astype(jnp.float32), 2, axis=-1)
            return (masked(x + residual, mask), skips + skip), None

        streams = (x.astype(jnp.float32), jnp.zeros(x.shape, jnp.float32))
        (_, skips), _ = lax.scan(recomputed(layer, self.remat), streams, weights)
        return masked(skips, mask)
