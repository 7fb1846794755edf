"""Text encoder: a transformer with windowed relative positions (arXiv 2106.06103, sections 2.2.1 and 2.5.1)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models import ops
from hayakuchi.models.module import Module
from hayakuchi.models.remat import product, recomputed
from hayakuchi.models.vits.layers import ChannelNorm, Convolution, Pointwise, masked, scan_stack
from hayakuchi.models.vits.starts import Source, stacked

_MASKED = float(np.finfo(np.float32).min)  # finite, so that a row without any allowed position stays finite


class RelativeAttention(Module):
    """Self-attention with embeddings of the offsets -W..W, shared by the heads (arXiv 1803.02155)."""

    def __init__(self, config: VitsConfig, source: Source) -> None:
        channels, window = config.hidden_channels, config.attention_window
        head = channels // config.heads
        self.query = Pointwise(channels, channels, source, glorot=True)
        self.key = Pointwise(channels, channels, source, glorot=True)
        self.value = Pointwise(channels, channels, source, glorot=True)
        self.output = Pointwise(channels, channels, source)
        shape = (2 * window + 1, head)
        self.relative_keys = nnx.Param(source.normal(shape, 1 / math.sqrt(head)))
        self.relative_values = nnx.Param(source.normal(shape, 1 / math.sqrt(head)))
        self.heads = config.heads
        self.dropout = config.text_dropout

    def __call__(
        self, x: Float[Array, "B L C"], mask: Bool[Array, "B L"], key: Key[Array, ""] | None
    ) -> Float[Array, "B L C"]:
        batch, length, channels = x.shape
        shape = (batch, length, self.heads, channels // self.heads)
        query = product(self.query(x)).reshape(shape) * (1 / math.sqrt(shape[-1]))
        keys = product(self.key(x)).reshape(shape)
        values = product(self.value(x)).reshape(shape)
        # The products with the few offsets are float32: they are small, and XLA:CPU lacks one of them in bf16.
        offsets = jnp.einsum("blhk,rk->bhlr", query.astype(jnp.float32), self.relative_keys[...], precision=ops.HIGHEST)
        scores = jnp.einsum("blhk,bmhk->bhlm", query, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(mask[:, None, None], scores + spread_offsets(offsets), _MASKED)
        weights = ops.dropout(jax.nn.softmax(scores, axis=-1), self.dropout, key)
        relative_values = self.relative_values[...]
        offsets = gather_offsets(weights, len(relative_values))
        mixed = jnp.einsum("bhlm,bmhk->blhk", weights.astype(x.dtype), values, preferred_element_type=jnp.float32)
        mixed = mixed + jnp.einsum("bhlr,rk->blhk", offsets, relative_values, precision=ops.HIGHEST)
        return self.output(mixed.astype(x.dtype).reshape(x.shape))


def spread_offsets(x: Float[Array, "B H L R"]) -> Float[Array, "B H L L"]:
    """Moves the value of offset r - W, R = 2 * W + 1, of position l to column l + r - W; 0 in all other columns.

    Rows one element longer than the matrix they are read as shift by one column from row to row.
    """
    batch, heads, length, offsets = x.shape
    width = length + offsets - 1
    rows = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, width + 1 - offsets)))
    flat = rows.reshape(batch, heads, length * (width + 1))[..., : length * width]
    return flat.reshape(batch, heads, length, width)[..., offsets // 2 : offsets // 2 + length]


def gather_offsets(x: Float[Array, "B H L L"], offsets: int) -> Float[Array, "B H L {offsets}"]:
    """Transpose of `spread_offsets`: the columns l - W..l + W of row l; 0 for those outside the matrix."""
    batch, heads, length, _ = x.shape
    width = length + offsets - 1
    flat = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (offsets // 2, offsets // 2))).reshape(batch, heads, length * width)
    rows = jnp.pad(flat, ((0, 0), (0, 0), (0, length))).reshape(batch, heads, length, width + 1)
    return rows[..., :offsets]


class _Layer(Module):
    """Post-LayerNorm transformer layer with convolutions in the feed-forward part. The stream is float32."""

    def __init__(self, config: VitsConfig, source: Source) -> None:
        channels, inner, width = config.hidden_channels, config.filter_channels, config.text_kernel
        self.attention = RelativeAttention(config, source)
        self.attention_norm = ChannelNorm(channels)
        self.expand = Convolution(width, channels, inner, source)
        self.contract = Convolution(width, inner, channels, source)
        self.feed_forward_norm = ChannelNorm(channels)
        self.dropout = config.text_dropout

    def __call__(
        self, x: Float[Array, "B L C"], mask: Bool[Array, "B L"], key: Key[Array, ""] | None, dtype: Any
    ) -> Float[Array, "B L C"]:
        keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
        mixed = self.attention(x.astype(dtype), mask, keys[0])
        x = self.attention_norm(x + ops.dropout(mixed, self.dropout, keys[1]))
        inner = jax.nn.relu(self.expand(masked(x.astype(dtype), mask)))
        expanded = self.contract(masked(ops.dropout(inner, self.dropout, keys[2]), mask))
        return self.feed_forward_norm(x + ops.dropout(masked(expanded, mask), self.dropout, keys[3]))


class TextEncoder(Module):
    """Symbols to hidden states and to the mean and log-scale of the prior."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        channels = config.hidden_channels
        self.embedding = nnx.Param(source.normal((config.vocabulary_size, channels), 1 / math.sqrt(channels)))
        self.layers = stacked(lambda: _Layer(config, source), config.text_layers)
        self.projection = Pointwise(channels, 2 * config.latent_channels, source, precision=ops.HIGHEST)
        self.count = config.text_layers
        self.dtype = dtype
        self.remat: Remat = remat

    def __call__(
        self, text: Int[Array, "B L"], mask: Bool[Array, "B L"], key: Key[Array, ""] | None = None
    ) -> tuple[Float[Array, "B L C"], Float[Array, "B L Z"], Float[Array, "B L Z"]]:
        """Hidden states, mean and log-scale, all float32 and 0 past each text's end."""
        table = self.embedding[...]
        x = masked(table[text] * math.sqrt(table.shape[1]), mask)
        keys = None if key is None else jax.random.split(key, self.count)

        def body(layer: _Layer, x: Array, key: Any) -> tuple[Array, None]:
            return layer(x, mask, key, self.dtype), None

        x = scan_stack(self.layers, recomputed(body, self.remat), x, keys)
        x = masked(x, mask)
        mean, log_scale = jnp.split(masked(self.projection(x), mask), 2, axis=-1)
        return x, mean, log_scale
