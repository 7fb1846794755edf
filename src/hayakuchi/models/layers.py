"""Layers that more than one model uses, as Flax NNX modules whose state is parameters only.

Randomness comes in as explicit keys, never as module state, so that a module can be split, scanned and merged freely.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from hayakuchi.models import ops
from hayakuchi.models.module import Module
from hayakuchi.models.remat import product
from hayakuchi.models.sharding import Rule


class Dense(Module):
    """Affine map of the last axis: kernel [I, O], bias [O], both float32."""

    def __init__(self, inputs: int, outputs: int, rule: Rule, key: Key[Array, ""]) -> None:
        self.kernel = nnx.Param(rule.init(key, (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32))

    def __call__(self, x: Float[Array, "N I"]) -> Float[Array, "N O"]:
        return product(ops.dense(x, self.kernel[...], self.bias[...]))


class LayerNorm(Module):
    """Layer normalisation (arXiv 1607.06450) over the last axis, computed in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        return ops.layer_norm(x, self.scale[...], self.bias[...], self.epsilon)


class FeedForward(Module):
    """Dense, ReLU, dense."""

    def __init__(self, width: int, inner: int, expand: Rule, contract: Rule, key: Key[Array, ""]) -> None:
        expand_key, contract_key = jax.random.split(key)
        self.expand = Dense(width, inner, expand, expand_key)
        self.contract = Dense(inner, width, contract, contract_key)

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        return self.contract(jax.nn.relu(self.expand(x)))
