"""CTRL, the conditional transformer language model (Keskar et al. 2019, arXiv 1909.05858, section 3.2).

Alphabet: B batch, L, T or S positions, D width, E width of the embedding, H heads, K head dim, V vocabulary,
N = B * T tokens.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config import CtrlConfig, Remat
from hayakuchi.models import ops
from hayakuchi.models.ctrl_blocks import LAYER_NORM_EPSILON, RULES, LayerCache, attention_mask, make_blocks, run_blocks
from hayakuchi.models.layers import Dense, LayerNorm
from hayakuchi.models.module import Module


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


class Ctrl(Module):
    """The model. Its state is float32 parameters only.

    Args:
      config: sizes.
      key: of the initialisation.
      dtype: arithmetic of matrix products.
      remat: what the backward pass computes anew.
    """

    def __init__(
        self, config: CtrlConfig, key: Key[Array, ""], dtype: Any = jnp.float32, remat: Remat = "none"
    ) -> None:
        embedding_key, blocks_key = jax.random.split(key)
        shape = (config.vocabulary_size, config.embedding_width or config.width)
        self.config = config
        self.dtype = dtype
        self.remat: Remat = remat
        self.embedding = nnx.Param(RULES["embedding"].init(embedding_key, shape, jnp.float32))
        self.vocabulary_bias = nnx.Param(jnp.zeros((config.vocabulary_size,), jnp.float32))
        if config.embedding_width:
            widen_key, narrow_key = jax.random.split(jax.random.fold_in(embedding_key, 1))
            self.widen = Dense(config.embedding_width, config.width, RULES["widen.kernel"], widen_key)
            self.narrow = Dense(config.width, config.embedding_width, RULES["narrow.kernel"], narrow_key)
        self.blocks: Any = make_blocks(config, blocks_key)
        self.norm = LayerNorm(config.width, LAYER_NORM_EPSILON)

    def hidden(
        self,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"],
        positions: Int[Array, "B L"],
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B L E"]:
        """Final hidden states, in `dtype`; the logits are `self.logits` of them.

        E is the width, or that of a factorised embedding.

        Args:
          tokens: ids; the first of each segment is its control code.
          segments: number of the document a position belongs to; positions of different segments never meet.
          positions: distance from the segment's control code.
          key: dropout key; None turns dropout off.
        """
        x, _ = self._run(tokens, positions, attention_mask(segments), key, None, 0)
        return x.reshape(*tokens.shape, -1)

    def logits(self, hidden: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Scores of the next token in float32, by the embedding (tied) and the vocabulary bias."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        scores = ops.logits(flat, self.embedding[...], self.vocabulary_bias[...])
        return scores.reshape(*hidden.shape[:-1], -1)

    @jax.named_scope("loss")
    def loss(
        self, hidden: Float[Array, "B L E"], labels: Int[Array, "B L"], weights: Float[Array, "B L"]
    ) -> Float[Array, ""]:
        """Sum of weight * -log p(label) in nats; never holds all the logits."""
        return ops.weighted_loss(
            hidden, self.embedding[...], self.vocabulary_bias[...], labels, weights, self._chunks(labels)
        )

    @jax.named_scope("loss")
    def distilled_loss(
        self,
        hidden: Float[Array, "B L E"],
        labels: Int[Array, "B L"],
        weights: Float[Array, "B L"],
        teacher: ops.Teacher,
        soft_weight: float,
        temperature: float,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The loss of a student, and of it the cross-entropy (see `ops.distilled_loss`)."""
        return ops.distilled_loss(
            hidden,
            self.embedding[...],
            self.vocabulary_bias[...],
            labels,
            weights,
            teacher,
            soft_weight,
            temperature,
            self._chunks(labels),
        )

    @jax.named_scope("loss")
    def token_losses(self, hidden: Float[Array, "B L E"], labels: Int[Array, "B L"]) -> Float[Array, "B L"]:
        """-log p(label) of every position in nats."""
        return ops.token_losses(hidden, self.embedding[...], self.vocabulary_bias[...], labels, self._chunks(labels))

    def empty_cache(self, batch: int, length: int) -> Cache:
        """A cache for `length` positions of `batch` rows, in `dtype`."""
        shape = (batch, self.config.heads, length, self.config.width // self.config.heads)
        zeros = jnp.zeros(shape, self.dtype)
        if self.config.scan_layers:
            stacked = jnp.zeros((self.config.layers, *shape), self.dtype)
            return Cache(LayerCache(stacked, stacked), jnp.int32(0))
        return Cache([LayerCache(zeros, zeros) for _ in range(self.config.layers)], jnp.int32(0))

    def extend(self, tokens: Int[Array, "B T"], cache: Cache) -> tuple[Float[Array, "B T E"], Cache]:
        """Hidden states of T further positions of one segment per row, and the cache with them added.

        Positions past the first `cache.filled` are overwritten, so a padded prompt is extended in a fixed shape and
        `filled` then set to its true length.
        """
        batch, new = tokens.shape
        room = jax.tree.leaves(cache.layers)[0].shape[-2]
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
    ) -> tuple[Float[Array, "N E"], Any]:
        """Embedding, blocks and final LayerNorm over flat [N, D] activations."""
        config = self.config
        x = self.embedding[...][tokens.reshape(-1)] * math.sqrt(config.width)
        if config.embedding_width:
            x = self.widen(x.astype(self.dtype)).astype(jnp.float32)
        x = x + sinusoid(positions.reshape(-1), config.width)
        keys = None
        if key is not None:
            embedding_key, blocks_key = jax.random.split(key)
            x = ops.dropout(x, config.dropout, embedding_key)
            keys = jax.random.split(blocks_key, config.layers)
        x, caches = run_blocks(
            self.blocks,
            config,
            x,
            mask,
            keys=keys,
            caches=caches,
            filled=filled,
            dtype=self.dtype,
            remat=self.remat,
        )
        hidden: Float[Array, "N E"] = self.norm(x).astype(self.dtype)
        return self.narrow(hidden) if config.embedding_width else hidden, caches
