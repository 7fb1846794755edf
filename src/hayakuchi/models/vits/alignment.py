"""Monotonic alignment search (arXiv 2106.06103, section 2.2.1 and algorithm 1; Kim et al. 2020, arXiv 2005.11129).

Two scans over the frames, each a vector operation over batch and text, on the device.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def alignment_scores(
    z: Float[Array, "B T C"], mean: Float[Array, "B L C"], log_scale: Float[Array, "B L C"]
) -> Float[Array, "B T L"]:
    """log N(z[t]; mean[l], exp(log_scale[l])) of every pair of a frame and a symbol, in nats, float32."""
    precision = lax.Precision.HIGHEST
    inverse_variance = jnp.exp(-2 * log_scale)
    constant = -0.5 * jnp.log(2 * jnp.pi) * mean.shape[-1]
    by_symbol = constant - jnp.sum(log_scale + 0.5 * jnp.square(mean) * inverse_variance, axis=-1)
    quadratic = jnp.einsum("btc,blc->btl", jnp.square(z), -0.5 * inverse_variance, precision=precision)
    linear = jnp.einsum("btc,blc->btl", z, mean * inverse_variance, precision=precision)
    return quadratic + linear + by_symbol[:, None]


def align(
    scores: Float[Array, "B T L"], frame_mask: Bool[Array, "B T"], text_mask: Bool[Array, "B L"]
) -> Float[Array, "B T L"]:
    """The monotonic path of the largest total score: 1 where a frame belongs to a symbol, 0 elsewhere.

    A path starts at the first symbol, ends at the last, and goes to the next symbol or stays from frame to frame; where
    both are equal, it stays in the later symbol. Padding gets no frames and no symbols. A row with more symbols than
    frames has no such path: its last symbols get one frame each. No gradient flows through the path.

    Raises:
      ValueError: the shapes do not fit, such as scores that are given as [B, L, T].
    """
    batch, frames, symbols = scores.shape
    if frame_mask.shape != (batch, frames) or text_mask.shape != (batch, symbols):
        raise ValueError(
            f"scores are [batch, frames, text] = {scores.shape}, but the frame mask is {frame_mask.shape} and the text"
            f" mask {text_mask.shape}"
        )
    scores_tbl = lax.stop_gradient(scores.astype(jnp.float32)).swapaxes(0, 1)
    places = jnp.arange(symbols)
    minus_infinity = jnp.full((batch, 1), -jnp.inf, jnp.float32)

    def advance(best: Float[Array, "B L"], scores: Float[Array, "B L"]) -> tuple[Array, Array]:
        """`best` is the score of the best path to each symbol so far; says where it came from the symbol before."""
        before = jnp.concatenate([minus_infinity, best[:, :-1]], axis=1)
        return jnp.maximum(best, before) + scores, before > best

    # The first frame belongs to the first symbol.
    start = jnp.where(places == 0, scores_tbl[0], -jnp.inf)
    _, moves = lax.scan(advance, start, scores_tbl[1:])

    def retrace(
        place: Int[Array, " B"], inputs: tuple[Bool[Array, "B L"], Bool[Array, " B"], Array]
    ) -> tuple[Array, Array]:
        """From a frame's symbol to that of the frame before; a frame of padding passes the last symbol on."""
        moves, inside, frame = inputs
        moved = jnp.any(moves & (places == place[:, None]), axis=1) | (place > frame)
        return place - (moved & inside & (place > 0)), place

    last = jnp.sum(text_mask, axis=1) - 1
    frame = jnp.arange(1, frames)
    first, later = lax.scan(retrace, last, (moves, frame_mask[:, 1:].T, frame), reverse=True)
    place_tb = jnp.concatenate([first[None], later])
    path = (place_tb.T[..., None] == places) & frame_mask[..., None] & text_mask[:, None]
    return path.astype(jnp.float32)


def expand(
    durations: Float[Array, "B L"], frame_mask: Bool[Array, "B T"], text_mask: Bool[Array, "B L"]
) -> Float[Array, "B T L"]:
    """The path that gives every symbol its duration in frames, a whole number."""
    ends = jnp.cumsum(durations * text_mask, axis=1)
    frames = jnp.arange(frame_mask.shape[1])[:, None]
    starts = jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    path = (frames >= starts[:, None]) & (frames < ends[:, None]) & frame_mask[..., None]
    return path.astype(jnp.float32)


def along(path: Float[Array, "B T L"], x: Float[Array, "B L C"]) -> Float[Array, "B T C"]:
    """Repeats each symbol's vector over its frames."""
    return jnp.matmul(path, x, precision=jax.lax.Precision.HIGHEST)
