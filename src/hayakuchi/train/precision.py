"""Arithmetic of the forward and backward pass. Parameters, optimiser, softmax, losses and sums are always float32.

They are so on every device: products among them ask for `ops.HIGHEST`. Those inside Muon's update do not, which its
authors compute in bfloat16. The products of the model in "float32" are what a device makes of them
(`TrainConfig.precision`).

"float16" needs a loss scale: its gradients would sink below the smallest number it has. The scale grows while
gradients are finite and shrinks when one is not, whose update is then left out (arXiv 1710.03740, section 3.2).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hayakuchi.config import Precision

_DTYPES: dict[Precision, Any] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
_FIRST_SCALE, _SMALLEST_SCALE, _LARGEST_SCALE = 2.0**15, 1.0, 2.0**24
_GROWTH_INTERVAL = 1_000


class LossScale(NamedTuple):
    """State of the dynamic loss scale.

    Attributes:
      scale: what the loss is multiplied by, a power of two.
      finite_steps: steps with finite gradients since it changed.
      skipped: steps in all whose update was left out.
    """

    scale: Float[Array, ""]
    finite_steps: Int[Array, ""]
    skipped: Int[Array, ""]


def compute_dtype(precision: Precision) -> Any:
    """Dtype of the operands of matrix products under a policy."""
    return _DTYPES[precision]


def first_scale(precision: Precision) -> LossScale | None:
    """The loss scale of step 0; None where the precision has the range of float32."""
    if precision != "float16":
        return None
    return LossScale(jnp.float32(_FIRST_SCALE), jnp.int32(0), jnp.int32(0))


def next_scale(state: LossScale, finite: Bool[Array, ""], growth_interval: int = _GROWTH_INTERVAL) -> LossScale:
    """The scale after a step: doubled after `growth_interval` finite steps, halved after one that was not.

    It stays between 1 and 2**24: without a bound it would grow to infinity, from where halving finds no way back.
    """
    finite_steps = jnp.where(finite, state.finite_steps + 1, 0)
    grown = finite_steps >= growth_interval
    factor = jnp.where(finite, jnp.where(grown, 2.0, 1.0), 0.5)
    scale = jnp.clip(state.scale * factor, _SMALLEST_SCALE, _LARGEST_SCALE)
    return LossScale(scale, jnp.where(grown, 0, finite_steps), state.skipped + ~finite)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number of the floating arrays is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def unscaled(tree: Any, state: LossScale | None) -> Any:
    """Gradients of the loss from those of the scaled loss."""
    return tree if state is None else jax.tree.map(lambda leaf: leaf / state.scale, tree)


def guarded(state: LossScale | None, gradients: Any, new: Any, old: Any) -> tuple[Any, Bool[Array, ""]]:
    """`new` where the gradients are finite, else `old`: the update is left out. And whether they are.

    Without a loss scale an update is always made.
    """
    if state is None:
        return new, jnp.bool_(True)
    finite = all_finite(gradients)
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old), finite


def scale_metrics(state: LossScale | None, before: LossScale | None) -> dict[str, Array]:
    """What to log of the scale."""
    if state is None or before is None:
        return {}
    return {"loss_scale": before.scale, "skipped_steps": state.skipped.astype(jnp.float32)}


def told_norm(norm: Float[Array, ""], state: LossScale | None) -> Float[Array, ""]:
    """A gradient's norm for the log: 0 of an update left out, as long as a smaller scale can still be tried.

    At the smallest scale a number that is not finite is the model's own, and is told as it is: it ends the run.
    """
    if state is None:
        return norm
    return jnp.where(jnp.isfinite(norm) | (state.scale <= _SMALLEST_SCALE), norm, 0.0)
