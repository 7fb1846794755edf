"""The blocks of CTRL (arXiv 1909.05858, section 3.2), and how they are run: listed or scanned, shared or not.

Alphabet: B batch, L, T or S positions, D width, H heads, K head dim, F feed-forward, N = B * T tokens.
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

from hayakuchi.config import CtrlConfig, Remat, Sharing
from hayakuchi.models import ops
from hayakuchi.models.layers import Dense, FeedForward, LayerNorm
from hayakuchi.models.module import Module, within
from hayakuchi.models.remat import recomputed
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
    "widen.kernel": Rule(nnx.initializers.glorot_uniform(), P("fsdp", None)),  # [E, D]
    "narrow.kernel": Rule(nnx.initializers.glorot_uniform(), P(None, "fsdp")),  # [D, E]
}
LAYER_NORM_EPSILON = 1e-6
# The parts of a block that layers of a group have in common.
_SHARED: dict[Sharing, tuple[str, ...]] = {
    "none": (),
    "attention": ("attention_norm", "attention"),
    "feed_forward": ("feed_forward_norm", "feed_forward"),
    "all": ("attention_norm", "attention", "feed_forward_norm", "feed_forward"),
}
_MASKED = float(np.finfo(np.float32).min)  # finite, so that a row without any allowed position stays finite


class LayerCache(NamedTuple):
    """Keys and values of the positions seen so far: [B, H, L, K] each, or [layers, B, H, L, K] of scanned blocks.

    With the heads in front of the positions a decoding step reads them as they lie; the other way round XLA:CPU would
    turn the whole cache round for every token (half the time of a step of eight samples).
    """

    keys: Array
    values: Array


def attention_mask(segments: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True where a position may look: at itself and earlier positions of its own segment."""
    length = segments.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return causal[None] & (segments[:, :, None] == segments[:, None, :])


class Attention(Module):
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
        places = "bshk"
        if cache is not None:
            places, start = "bhsk", (0, 0, filled, 0)
            new_keys, new_values = (x.swapaxes(1, 2).astype(cache.keys.dtype) for x in (key, value))
            key = lax.dynamic_update_slice(cache.keys, new_keys, start)
            value = lax.dynamic_update_slice(cache.values, new_values, start)
            cache = LayerCache(key, value)
        scores = jnp.einsum(f"bthk,{places}->bhts", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(mask[:, None], scores / math.sqrt(shape[-1]), _MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = jnp.einsum(f"bhts,{places}->bthk", weights, value, preferred_element_type=jnp.float32)
        return self.output(mixed.astype(x.dtype).reshape(batch * new, width)), cache


class Block(Module):
    """Pre-LayerNorm transformer block; dropout on each residual branch. The residual stream is float32.

    Where layers share, a listed block lacks the parts that the first block of its group has for it.
    """

    def __init__(self, config: CtrlConfig, key: Key[Array, ""]) -> None:
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention_norm = LayerNorm(config.width, LAYER_NORM_EPSILON)
        self.attention = Attention(config, attention_key)
        self.feed_forward_norm = LayerNorm(config.width, LAYER_NORM_EPSILON)
        self.feed_forward = FeedForward(
            config.width, config.feed_forward, RULES["expand.kernel"], RULES["contract.kernel"], feed_forward_key
        )


def make_blocks(config: CtrlConfig, key: Key[Array, ""]) -> Any:
    """The blocks of a model: a list, or a single stacked one where they are scanned.

    Parts that layers share are in the first block of each group only; stacked, they have `sharing_groups` in front
    where the others have `layers`.
    """
    # One traced initialisation for all blocks, however many: it compiles as fast for 48 as for 2.
    stacked = nnx.vmap(lambda one: Block(config, one))(jax.random.split(key, config.layers))
    shared, size = _SHARED[config.sharing], config.layers // config.sharing_groups
    if config.scan_layers:
        for name in shared:
            part = getattr(stacked, name)
            nnx.update(part, jax.tree.map(lambda x: x[::size], nnx.state(part)))
        return stacked
    graph, state = nnx.split(stacked)
    blocks = [nnx.merge(graph, jax.tree.map(lambda x, i=i: x[i], state)) for i in range(config.layers)]
    for index, block in enumerate(blocks):
        for name in shared if index % size else ():
            delattr(block, name)
    return nnx.List(blocks)


def run_blocks(
    blocks: Any,
    config: CtrlConfig,
    x: Float[Array, "N D"],
    mask: Bool[Array, "B T S"],
    *,
    keys: Key[Array, " layers"] | None = None,
    caches: Any = None,
    filled: Int[Array, ""] | int = 0,
    dtype: Any = jnp.float32,
    remat: Remat = "none",
) -> tuple[Float[Array, "N D"], Any]:
    """The residual stream after all layers, and the updated caches.

    Args:
      blocks: from `make_blocks`.
      config: the model's.
      x: the residual stream.
      mask: who attends to whom.
      keys: one dropout key a layer; None turns dropout off.
      caches: one `LayerCache` a layer in a list, or a single stacked one where the blocks are scanned; None without.
      filled: positions the caches hold.
      dtype: of the operands of matrix products.
      remat: what the backward pass computes anew.
    """
    size = config.layers // config.sharing_groups
    shared = _SHARED[config.sharing]

    def layer(attending: Block, transforming: Block, x: Array, key: Any, cache: Any) -> tuple[Array, Any]:
        """One layer: the first block gives the attention branch, the second the feed-forward branch."""
        attention_key, feed_forward_key = (None, None) if key is None else jax.random.split(key)
        mixed, cache = attending.attention(attending.attention_norm(x).astype(dtype), mask, cache, filled)
        x = x + ops.dropout(mixed, config.dropout, attention_key)
        expanded = transforming.feed_forward(transforming.feed_forward_norm(x).astype(dtype))
        return x + ops.dropout(expanded, config.dropout, feed_forward_key), cache

    layer = recomputed(layer, remat)

    if not config.scan_layers:
        updated = []
        for index in range(config.layers):
            first = index - index % size
            attending = blocks[first if "attention" in shared else index]
            transforming = blocks[first if "feed_forward" in shared else index]
            key, cache = (None if each is None else each[index] for each in (keys, caches))
            with within(attending, f"blocks/{index}"):
                x, cache = layer(attending, transforming, x, key, cache)
            updated.append(cache)
        return x, updated

    graph, state = nnx.split(blocks)
    parts = nnx.to_pure_dict(state)
    common = {name: parts.pop(name) for name in shared}

    def scan(common: Any, x: Array, each: Any) -> tuple[Array, Any]:
        """Layers that have `common` in common; `each` is (own parameters, key, cache) of every layer, stacked."""

        def body(x: Array, one: tuple[Any, Any, Any]) -> tuple[Array, Any]:
            own, key, cache = one
            block: Block = nnx.merge(graph, {**common, **own})
            with within(block, "blocks"):
                return layer(block, block, x, key, cache)

        return lax.scan(body, x, each, length=size)

    each = (parts, keys, caches)
    if not common:
        return scan({}, x, each)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(config.sharing_groups, size, *leaf.shape[1:]), each)
    x, caches = lax.scan(lambda x, group: scan(group[0], x, group[1]), x, (common, grouped))
    return x, jax.tree.map(lambda leaf: leaf.reshape(config.layers, *leaf.shape[2:]), caches)


def unshared(parameters: dict[str, Any], config: CtrlConfig) -> dict[str, Any]:
    """Parameters of the equal model whose layers share nothing: what is shared is repeated.

    Args:
      parameters: pure dict of a `Ctrl` of this configuration.
      config: its configuration; that of the result has sharing "none" and sharing_groups 1.
    """
    shared, size = _SHARED[config.sharing], config.layers // config.sharing_groups
    blocks = parameters["blocks"]
    if config.scan_layers:
        repeated = {name: jax.tree.map(lambda x: jnp.repeat(x, size, axis=0), blocks[name]) for name in shared}
        return {**parameters, "blocks": {**blocks, **repeated}}
    listed = {i: {**blocks[i - i % size], **blocks.get(i, {})} for i in range(config.layers)}
    return {**parameters, "blocks": listed}
