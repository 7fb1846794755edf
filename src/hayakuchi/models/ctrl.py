"""CTRL, the conditional transformer language model (Keskar et al. 2019, arXiv 1909.05858, section 3.2).

Alphabet: B batch, L or T positions, D width, H heads, K head dim, F feed-forward, V vocabulary, N = B * T tokens.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config import CtrlConfig
from hayakuchi.models import ops
from hayakuchi.models.layers import Dense, FeedForward, LayerNorm
from hayakuchi.models.sharding import Rule

# How every parameter starts and lies. All are float32; whatever is not named starts at 0 (biases) or 1 (LayerNorm
# scales) and is replicated. The initialisers are those of the published code: Keras' defaults for a dense layer and
# for "random_normal".
RULES: dict[str, Rule] = {
    "embedding": Rule(nnx.initializers.normal(stddev=0.05), P("fsdp", None)),  # [V, D]
    "query.kernel": Rule(nnx.initializers.glorot_uniform(), P("fsdp", None)),  # [D, D]
    "key.kernel": Rule(nnx.initializers.glorot_uniform(), P("fsdp", None)),  # [D, D]
    "value.kernel": Rule(nnx.initializers.glorot_uniform(), P("fsdp", None)),  # [D, D]
    "output.kernel": Rule(nnx.initializers.glorot_uniform(), P(None, "fsdp")),  # [D, D]
    "expand.kernel": Rule(nnx.initializers.glorot_uniform(), P("fsdp", None)),  # [D, F]
    "contract.kernel": Rule(nnx.initializers.glorot_uniform(), P(None, "fsdp")),  # [F, D]
}
LAYER_NORM_EPSILON = 1e-6
_MASKED = float(np.finfo(np.float32).min)  # finite, so that a row without any allowed position stays finite


class LayerCache(NamedTuple):
    """Keys and values of the positions seen so far: [B, L, H, K] each, or [layers, B, L, H, K] of scanned blocks."""

    keys: Array
    values: Array


class Cache(NamedTuple):
    """State of incremental decoding.

    Attributes:
      layers: one `LayerCache` a block, or a single stacked one where the blocks are scanned.
      filled: number of positions written; the same for all rows.
    """

    layers: Any
    filled: Int[Array, ""]


def sinusoid(positions: Int[Array, "*B"], width: int) -> Float[Array, "*B D"]:
    """Fixed position encoding, as published: all sines first, then all cosines (not interleaved)."""
    rates = 1.0 / np.power(10_000.0, 2 * np.arange(width // 2) / width)
    angles = positions[..., None].astype(jnp.float32) * rates.astype(np.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def attention_mask(segments: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True where a position may look: at itself and earlier positions of its own segment."""
    length = segments.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return causal[None] & (segments[:, :, None] == segments[:, None, :])


class Attention(nnx.Module):
    """Multi-head attention with biases on all four maps and no dropout on the weights."""

    def __init__(self, config: CtrlConfig, key: Key[Array, ""]) -> None:
        width = config.width
        keys = jax.random.split(key, 4)
        self.query = Dense(width, width, RULES["query.kernel"], keys[0])
        self.key = Dense(width, width, RULES["key.kernel"], keys[1])
        self.value = Dense(width, width, RULES["value.kernel"], keys[2])
        self.output = Dense(width, width, RULES["output.kernel"], keys[3])
        self.heads = config.heads

    def __call__(
        self,
        x: Float[Array, "N D"],
        mask: Bool[Array, "B T S"],
        cache: LayerCache | None = None,
        filled: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "N D"], LayerCache | None]:
        """Attends from each of the T new positions to S positions: the same T, or those of the cache.

        With a cache, the new keys and values are written to it at `filled`, and the updated cache comes back.
        """
        batch, new, _ = mask.shape
        width = x.shape[-1]
        shape = (batch, new, self.heads, width // self.heads)
        query = self.query(x).reshape(shape)
        key = self.key(x).reshape(shape)
        value = self.value(x).reshape(shape)
        if cache is not None:
            start = (0, filled, 0, 0)
            key = lax.dynamic_update_slice(cache.keys, key.astype(cache.keys.dtype), start)
            value = lax.dynamic_update_slice(cache.values, value.astype(cache.values.dtype), start)
            cache = LayerCache(key, value)
        scores = jnp.einsum("bthk,bshk->bhts", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(mask[:, None], scores / math.sqrt(shape[-1]), _MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = jnp.einsum("bhts,bshk->bthk", weights, value, preferred_element_type=jnp.float32)
        return self.output(mixed.astype(x.dtype).reshape(batch * new, width)), cache


class Block(nnx.Module):
    """Pre-LayerNorm transformer block; dropout on each residual branch. The residual stream is float32."""

    def __init__(self, config: CtrlConfig, key: Key[Array, ""]) -> None:
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention_norm = LayerNorm(config.width, LAYER_NORM_EPSILON)
        self.attention = Attention(config, attention_key)
        self.feed_forward_norm = LayerNorm(config.width, LAYER_NORM_EPSILON)
        self.feed_forward = FeedForward(
            config.width, config.feed_forward, RULES["expand.kernel"], RULES["contract.kernel"], feed_forward_key
        )
        self.dropout = config.dropout

    def __call__(
        self,
        x: Float[Array, "N D"],
        mask: Bool[Array, "B T S"],
        key: Key[Array, ""] | None,
        dtype: Any,
        cache: LayerCache | None = None,
        filled: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "N D"], LayerCache | None]:
        attention_key, feed_forward_key = (None, None) if key is None else jax.random.split(key)
        mixed, cache = self.attention(self.attention_norm(x).astype(dtype), mask, cache, filled)
        x = x + ops.dropout(mixed, self.dropout, attention_key)
        expanded = self.feed_forward(self.feed_forward_norm(x).astype(dtype))
        return x + ops.dropout(expanded, self.dropout, feed_forward_key), cache


def _unstack(stacked: Block, layers: int) -> Any:
    """The blocks of a stacked one, each with parameters of its own."""
    graph, state = nnx.split(stacked)
    return nnx.List([nnx.merge(graph, jax.tree.map(lambda x, i=i: x[i], state)) for i in range(layers)])


class Ctrl(nnx.Module):
    """The model. Its state is float32 parameters only; `dtype` is that of the arithmetic in matrix products."""

    def __init__(self, config: CtrlConfig, key: Key[Array, ""], dtype: Any = jnp.float32) -> None:
        embedding_key, blocks_key = jax.random.split(key)
        shape = (config.vocabulary_size, config.width)
        self.config = config
        self.dtype = dtype
        self.embedding = nnx.Param(RULES["embedding"].init(embedding_key, shape, jnp.float32))
        self.vocabulary_bias = nnx.Param(jnp.zeros((config.vocabulary_size,), jnp.float32))
        keys = jax.random.split(blocks_key, config.layers)
        # One traced initialisation for all blocks, however many: it compiles as fast for 48 as for 2.
        stacked = nnx.vmap(lambda one: Block(config, one))(keys)
        self.blocks: Any = stacked if config.scan_layers else _unstack(stacked, config.layers)
        self.norm = LayerNorm(config.width, LAYER_NORM_EPSILON)

    def hidden(
        self,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"],
        positions: Int[Array, "B L"],
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B L D"]:
        """Final hidden states, in `dtype`; the logits are `self.logits` of them.

        Args:
          tokens: ids; the first of each segment is its control code.
          segments: number of the document a position belongs to; positions of different segments never meet.
          positions: distance from the segment's control code.
          key: dropout key; None turns dropout off.
        """
        x, _ = self._run(tokens, positions, attention_mask(segments), key, None, 0)
        return x.reshape(*tokens.shape, -1)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Scores of the next token in float32, by the embedding (tied) and the vocabulary bias."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        scores = ops.logits(flat, self.embedding[...], self.vocabulary_bias[...])
        return scores.reshape(*hidden.shape[:-1], -1)

    def loss(
        self, hidden: Float[Array, "B L D"], labels: Int[Array, "B L"], weights: Float[Array, "B L"]
    ) -> Float[Array, ""]:
        """Sum of weight * -log p(label) in nats; never holds all the logits."""
        return ops.weighted_loss(
            hidden, self.embedding[...], self.vocabulary_bias[...], labels, weights, self._chunks(labels)
        )

    def token_losses(self, hidden: Float[Array, "B L D"], labels: Int[Array, "B L"]) -> Float[Array, "B L"]:
        """-log p(label) of every position in nats."""
        return ops.token_losses(hidden, self.embedding[...], self.vocabulary_bias[...], labels, self._chunks(labels))

    def empty_cache(self, batch: int, length: int) -> Cache:
        """A cache for `length` positions of `batch` rows, in `dtype`."""
        shape = (batch, length, self.config.heads, self.config.width // self.config.heads)
        zeros = jnp.zeros(shape, self.dtype)
        if self.config.scan_layers:
            stacked = jnp.zeros((self.config.layers, *shape), self.dtype)
            return Cache(LayerCache(stacked, stacked), jnp.int32(0))
        return Cache([LayerCache(zeros, zeros) for _ in range(self.config.layers)], jnp.int32(0))

    def extend(self, tokens: Int[Array, "B T"], cache: Cache) -> tuple[Float[Array, "B T D"], Cache]:
        """Hidden states of T further positions of one segment per row, and the cache with them added.

        Positions past the first `cache.filled` are overwritten, so a padded prompt is extended in a fixed shape and
        `filled` then set to its true length.
        """
        batch, new = tokens.shape
        room = jax.tree.leaves(cache.layers)[0].shape[-3]
        places = cache.filled + jnp.arange(new)
        mask = jnp.arange(room)[None, :] <= places[:, None]
        mask = jnp.broadcast_to(mask, (batch, new, room))
        positions = jnp.broadcast_to(places, (batch, new))
        x, layers = self._run(tokens, positions, mask, None, cache.layers, cache.filled)
        return x.reshape(batch, new, -1), Cache(layers, cache.filled + new)

    def _chunks(self, labels: Array) -> int:
        return ops.head_chunks(labels.shape[0], labels.shape[1], self.config.vocabulary_size)

    def _run(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        mask: Bool[Array, "B T S"],
        key: Key[Array, ""] | None,
        caches: Any,
        filled: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "N D"], Any]:
        """Embedding, blocks and final LayerNorm over flat [N, D] activations."""
        config = self.config
        x = self.embedding[...][tokens] * math.sqrt(config.width) + sinusoid(positions, config.width)
        x = x.reshape(-1, config.width)
        keys = None
        if key is not None:
            embedding_key, blocks_key = jax.random.split(key)
            x = ops.dropout(x, config.dropout, embedding_key)
            keys = jax.random.split(blocks_key, config.layers)
        if config.scan_layers:
            graph, state = nnx.split(self.blocks)

            def body(x: Array, layer: tuple[Any, Any, Any]) -> tuple[Array, Any]:
                state, key, cache = layer
                block: Block = nnx.merge(graph, state)
                return block(x, mask, key, self.dtype, cache, filled)

            x, caches = lax.scan(body, x, (state, keys, caches))
        else:
            updated = []
            for index, block in enumerate(self.blocks):
                block_key = None if keys is None else keys[index]
                cache = None if caches is None else caches[index]
                x, cache = block(x, mask, block_key, self.dtype, cache, filled)
                updated.append(cache)
            caches = updated
        hidden: Float[Array, "N D"] = self.norm(x).astype(self.dtype)
        return hidden, caches
