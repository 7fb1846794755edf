"""A tree of parameters as fewer, larger arrays, for the equations of an update rule.

Two hundred biases, gains and norms of a few hundred numbers cost a program as many equations each as a matrix of
millions: joined into one vector they cost them once, and run as one loop. The rule must treat all elements alike, as
AdamW without a mask does.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

LARGE = 1 << 18
"""Arrays of this many elements stay by themselves: copying them would cost more than it saves."""


def join(tree: Any) -> dict[str, Any]:
    """{"small": one vector of all small arrays, "large": the other arrays by name}."""
    small, large = [], {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.size < LARGE:
            small.append(leaf.reshape(-1))
        else:
            large[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
    return {"large": large, "small": lax.concatenate(small, 0) if small else jnp.zeros((0,), jnp.float32)}


def part(joined: dict[str, Any], like: Any) -> Any:
    """The inverse of `join`, in the structure and shapes of `like`."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(like) if leaf.size < LARGE]
    pieces = iter(lax.split(joined["small"], [math.prod(shape) for shape in shapes]) if shapes else ())

    def one(path: Any, leaf: Array) -> Array:
        if leaf.size < LARGE:
            return next(pieces).reshape(leaf.shape)
        large: Array = joined["large"][jax.tree_util.keystr(path, simple=True, separator=".")]
        return large

    return jax.tree_util.tree_map_with_path(one, like)
