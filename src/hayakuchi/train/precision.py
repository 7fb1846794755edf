"""Arithmetic of the forward and backward pass. Parameters, optimiser, softmax, losses and sums are always float32."""

from typing import Any

import jax.numpy as jnp

from hayakuchi.config import Precision

_DTYPES: dict[Precision, Any] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def compute_dtype(precision: Precision) -> Any:
    """Dtype of the operands of matrix products under a policy."""
    return _DTYPES[precision]
