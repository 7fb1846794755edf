"""What the backward pass computes anew instead of keeping (`TrainConfig.remat`).

XLA:CPU finds the recomputed part equal to the first and merges them again, except in the body of a scan: there it saves
memory with `scan_layers` only. GPU and TPU keep them apart.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from hayakuchi.config import Remat

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
_PRODUCT = "product"
_POLICIES: dict[Remat, Any] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    # Products by name, since the policies of JAX do not see those inside our own gradient rules.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.save_only_these_names(_PRODUCT),
        lambda primitive, *_, **__: primitive is lax.conv_general_dilated_p,
    ),
}


def recomputed(function: Callable[P, ResultT], remat: Remat) -> Callable[P, ResultT]:
    """The same function; of what it computes, its gradient keeps what the policy says and computes the rest anew."""
    if remat == "none":
        return function
    made: Callable[P, ResultT] = jax.checkpoint(function, policy=_POLICIES[remat])
    return made


def product(x: Array) -> Array:
    """x, marked as the result of a matrix product, which "dots" keeps; it knows convolutions by themselves."""
    marked: Array = checkpoint_name(x, _PRODUCT)
    return marked
