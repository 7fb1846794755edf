"""How fast the device multiplies matrices: what a step's arithmetic is held against."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from hayakuchi.models import ops

_SIZES = (512, 1_024, 2_048, 4_096, 8_192)
_CALLS = 4
_ENOUGH_SECONDS = 0.2
_product = jax.jit(ops.matmul)


def matmul_flops_per_second(dtype: jnp.dtype) -> float:
    """The best rate of square products, in the form in which the models multiply: operands of `dtype`, float32 sums.

    Takes a second or so: larger products are tried until one size takes a fifth of a second.
    """
    best = 0.0
    random = np.random.default_rng(0)
    for size in _SIZES:
        # Random numbers, since a GPU draws less power for zeros and then runs faster than it would.
        a, b = (jnp.asarray(random.standard_normal((size, size), np.float32), dtype) for _ in range(2))
        _product(a, b).block_until_ready()
        for _ in range(2):
            started = time.perf_counter()
            # All at once, so that a fast device never waits for the next call.
            jax.block_until_ready([_product(a, b) for _ in range(_CALLS)])
            seconds = time.perf_counter() - started
            best = max(best, _CALLS * 2 * size**3 / seconds)
        if seconds > _ENOUGH_SECONDS:
            break
    return best
