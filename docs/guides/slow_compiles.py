"""The example of slow-compiles.md: the search for an alignment and the cutting of segments, from slow to fast.

hayakuchi inspect docs/guides/slow_compiles.py:as_first_written
"""

import jax
import jax.numpy as jnp
from jax import lax

ROWS, FRAMES, SYMBOLS, SEGMENT = 64, 400, 100, 32
NEVER = -1e9


def as_first_written(scores, values, starts):
    """Row by row and frame by frame, as one would write it in NumPy."""
    symbols, segments = [], []
    for row in range(scores.shape[0]):
        best = jnp.pad(scores[row, 0, :1], (0, scores.shape[2] - 1), constant_values=NEVER)
        stepped = []
        for frame in range(1, scores.shape[1]):
            before = jnp.pad(best[:-1], (1, 0), constant_values=NEVER)
            stepped.append(before > best)
            best = jnp.maximum(best, before) + scores[row, frame]
        symbol = scores.shape[2] - 1
        path = [symbol]
        for moved in reversed(stepped):
            symbol = symbol - moved[symbol]
            path.append(symbol)
        symbols.append(jnp.stack([jnp.asarray(each) for each in reversed(path)]))
        segments.append(lax.dynamic_slice(values[row], (starts[row],), (SEGMENT,)))
    return jnp.stack(symbols), jnp.stack(segments)


def rows_at_once(scores, values, starts):
    """All rows in one array; the frames still one by one."""
    return jax.vmap(one_row)(scores, values, starts)


def one_row(scores, values, start):
    best = jnp.full(scores.shape[1], NEVER).at[0].set(scores[0, 0])
    stepped = []
    for frame in range(1, scores.shape[0]):
        before = jnp.pad(best[:-1], (1, 0), constant_values=NEVER)
        stepped.append(before > best)
        best = jnp.maximum(best, before) + scores[frame]
    symbol = scores.shape[1] - 1
    path = [symbol]
    for moved in reversed(stepped):
        symbol = symbol - moved[symbol]
        path.append(symbol)
    return jnp.stack([jnp.asarray(each) for each in reversed(path)]), lax.dynamic_slice(values, (start,), (SEGMENT,))


def scanned(scores, values, starts):
    """All rows in one array, the frames in two loops that are compiled once."""

    def forward(best, score):
        before = jnp.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=NEVER)
        return jnp.maximum(best, before) + score, before > best

    def backward(symbol, moved):
        symbol = symbol - jnp.take_along_axis(moved, symbol[:, None], axis=1)[:, 0]
        return symbol, symbol

    rows, _, count = scores.shape
    first = jnp.where(jnp.arange(count) == 0, scores[:, 0], NEVER)
    _, stepped = lax.scan(forward, first, scores[:, 1:].swapaxes(0, 1))
    last = jnp.full(rows, count - 1)
    _, path = lax.scan(backward, last, stepped, reverse=True)
    symbols = jnp.concatenate([path, last[None]]).T
    return symbols, jax.vmap(lambda v, a: lax.dynamic_slice(v, (a,), (SEGMENT,)))(values, starts)


def example_args(rows=ROWS, frames=FRAMES):
    """Random scores of a batch."""
    keys = jax.random.split(jax.random.key(0), 3)
    scores = jax.random.normal(keys[0], (rows, frames, SYMBOLS))
    values = jax.random.normal(keys[1], (rows, frames))
    return scores, values, jax.random.randint(keys[2], (rows,), 0, frames - SEGMENT)
