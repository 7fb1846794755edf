"""Pseudo-QMF bank: a waveform as N critically sampled subbands and back (Nguyen 1994, doi 10.1109/78.258122).

Its filters are one prototype, a sinc under a Kaiser window (Lin and Vaidyanathan 1998, doi 10.1109/97.681427), moved to
each band. They are centred, so there is no delay; the error of reconstruction is 64 dB below the signal.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hayakuchi.models.convolutions import convolution, transposed_convolution

# The design of 4 bands that multi-band MelGAN publishes (62 taps, cutoff 0.142 of half the sample rate, beta 9), which
# scales to others. Away from this cutoff the reconstruction error grows fast.
_TAPS_PER_BAND = 15.5
_CUTOFF_OF_ONE_BAND = 0.568
_BETA = 9.0


def taps(subbands: int) -> int:
    """Even; a filter has one coefficient more."""
    return 2 * round(subbands * _TAPS_PER_BAND / 2)


def analysis(audio: Float[Array, "B S"], subbands: int) -> Float[Array, "B U N"]:
    """Splits into subbands of rising frequency, U = S / N; S is a multiple of N."""
    with jax.default_matmul_precision("highest"):
        filters = jnp.asarray(_filters(subbands))
        return convolution(audio.astype(jnp.float32)[..., None], filters, stride=subbands, padding=taps(subbands) // 2)


def synthesis(x: Float[Array, "B U N"]) -> Float[Array, "B S"]:
    """Joins subbands, S = U * N; past both ends they are taken for silent."""
    return join_streams(x, jnp.asarray(_filters(x.shape[-1])))


def join_streams(x: Float[Array, "B U N"], filters: Float[Array, "W 1 N"]) -> Float[Array, "B S"]:
    """Sum over streams, each spread out with N - 1 zeros after every sample, times N, and filtered; W is odd."""
    width, _, subbands = filters.shape
    with jax.default_matmul_precision("highest"):
        # The added zeros of the filters make room for the last N - 1 samples.
        longer = jnp.pad(filters * subbands, ((0, subbands - 1), (0, 0), (0, 0)))
        return transposed_convolution(x, longer, subbands, width // 2)[..., 0]


@lru_cache(maxsize=4)
def _filters(subbands: int) -> Float[np.ndarray, "W 1 N"]:
    """The prototype moved to each band, in phases that make the aliases of neighbours cancel.

    Synthesis has the filters of the analysis with time reversed. They are one array here, since a convolution layer
    goes through it in the one direction and a transposed one in the other.
    """
    count = taps(subbands)
    cutoff = _CUTOFF_OF_ONE_BAND / subbands
    times = np.arange(count + 1)[:, None] - count / 2
    prototype = cutoff * np.sinc(cutoff * times) * np.kaiser(count + 1, _BETA)[:, None]
    bands = np.arange(subbands)
    angles = (2 * bands + 1) * np.pi / (2 * subbands) * times + (-1.0) ** bands * np.pi / 4
    filters: np.ndarray = (2 * prototype * np.cos(angles))[:, None].astype(np.float32)
    return filters
