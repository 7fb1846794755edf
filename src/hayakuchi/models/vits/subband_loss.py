"""Multi-resolution spectral loss on subbands in float32 (multi-band MelGAN, arXiv 2005.05106, section 2.3)."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from hayakuchi.config.vits import SUBBAND_WINDOWS
from hayakuchi.models.convolutions import reflect_pad, windows
from hayakuchi.models.vits import pqmf

_TRANSFORMS = (384, 683, 171)
_HOPS = (30, 60, 10)
_LEAST_POWER = 1e-7
_LEAST_SQUARES = 1e-12


def subband_loss(real: Float[Array, "B S"], subbands: Float[Array, "B U N"]) -> Float[Array, ""]:
    """Spectral convergence plus mean absolute difference of log-magnitudes, each the mean of three resolutions.

    Args:
      real: the segments of the clips; a target, it has no gradient.
      subbands: of the generated segments, as `TrainingPass` has them.
    """
    bands = lax.stop_gradient(pqmf.analysis(real, subbands.shape[-1]))
    total = jnp.zeros((), jnp.float32)
    for transform, hop, window in zip(_TRANSFORMS, _HOPS, SUBBAND_WINDOWS, strict=True):
        true, made = (_magnitudes(x, transform, hop, window) for x in (bands, subbands))
        convergence = jnp.sqrt(_squares(true - made) / _squares(true))
        total = total + convergence + jnp.mean(jnp.abs(jnp.log(true) - jnp.log(made)))
    return total / len(_TRANSFORMS)


def _squares(x: Float[Array, "..."]) -> Float[Array, ""]:
    """Sum of squares; never 0, where its root has no gradient."""
    return jnp.sum(jnp.square(x)) + _LEAST_SQUARES


def _magnitudes(x: Float[Array, "B U N"], transform: int, hop: int, window: int) -> Float[Array, "R F K"]:
    """Magnitudes of the short-time transform of every band, frames centred on multiples of the hop, edges mirrored."""
    rows = x.swapaxes(1, 2).reshape(-1, x.shape[1])
    frames = windows(reflect_pad(rows, window // 2, window // 2), window, hop)
    # A product: these lengths suit no fast transform, and only the window's samples are not zero.
    spectrum = jnp.matmul(frames, jnp.asarray(_basis(transform, window)), precision=lax.Precision.HIGHEST)
    real, imaginary = lax.split(spectrum, (transform // 2 + 1,) * 2, axis=2)
    return jnp.sqrt(jnp.maximum(jnp.square(real) + jnp.square(imaginary), _LEAST_POWER))


@lru_cache(maxsize=8)
def _basis(transform: int, window: int) -> Float[np.ndarray, "W J"]:
    """Real and imaginary part of the windowed transform, J = 2 K; where in it the window lies changes no magnitude."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    spectrum = np.fft.rfft(np.diag(hann), transform)
    return np.concatenate([spectrum.real, spectrum.imag], axis=1).astype(np.float32)
