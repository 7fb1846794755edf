"""The compiled half of `generate`: a key-value cache, fixed shapes, several steps a dispatch.

Alphabet: B rows (samples), T positions of a padded prompt, L positions of the window, C room of the history.

What is compiled depends on shapes only: reading the prompt on its bucket (a power of two from 16 to L), everything on
the number of rows and the history's room (2 L, or the power of two that holds prompt and continuation). Another prompt,
seed, temperature, top-k, top-p or theta compiles nothing.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Int, Key, UInt

from hayakuchi.infer.run import TextRun
from hayakuchi.infer.sampling import History, Knobs, Rules, SamplingConfig, next_tokens
from hayakuchi.models.ctrl import Cache, Ctrl
from hayakuchi.text.codes import CODE_SLOTS

# Decoding steps between two looks of the host. More would make the stream jerk (8 steps of ctrl-small take 0.04 s for
# one sample and 0.2 s for eight on two cores) and waste more work after a stop string, which only the host sees; fewer
# would show the cost of a dispatch, about 1 ms.
STEPS_PER_DISPATCH = 8
SMALLEST_BUCKET = 16


def decoded_blocks(
    run: TextRun, ids: list[int], sampling: SamplingConfig, *, max_tokens: int, rows: int, seed: int
) -> Iterator[np.ndarray]:
    """Continues `ids`, control code first and at most L of them, in `rows` samples.

    Gives the tokens drawn, [B, up to STEPS_PER_DISPATCH] at a time, `max_tokens` in all or until all rows have ended;
    after a row's first <eos> comes nothing but <eos>. The device works on the next block while the caller reads one.
    """
    blocks = _dispatched(run, ids, sampling, max_tokens=max_tokens, rows=rows, seed=seed)
    waiting = next(blocks)
    for following in blocks:
        yield waiting.fetch()
        waiting = following
    yield waiting.fetch()


class _Decoding(NamedTuple):
    """State between two dispatches.

    Attributes:
      cache: holds all positions of the window but the newest token's.
      history: control code, prompt and tokens drawn.
      finished: rows that have drawn <eos>.
      keys: one random key a row.
    """

    cache: Cache
    history: History
    finished: Bool[Array, " B"]
    keys: Key[Array, " B"]


class _Block(NamedTuple):
    """What one dispatch draws: the first `steps` columns."""

    tokens: Int[Array, "B STEPS_PER_DISPATCH"]
    steps: int

    def fetch(self) -> np.ndarray:
        """Waits for the tokens, [B, steps]."""
        return np.asarray(self.tokens)[:, : self.steps]


def _dispatched(
    run: TextRun, ids: list[int], sampling: SamplingConfig, *, max_tokens: int, rows: int, seed: int
) -> Iterator[_Block]:
    """Dispatches the decoding of `max_tokens` tokens without waiting for any."""
    tokenizer = run.tokenizer
    codes = (tokenizer.code_id(slot) for slot in range(CODE_SLOTS))
    rules = Rules(
        penalty_mode=sampling.penalty_mode,
        ban_ngram=sampling.ban_ngram,
        exempt=tuple(tokenizer.encode("\n").tolist()),
        banned=(tokenizer.pad_id, tokenizer.unk_id, *codes),
    )
    graph, parameters = nnx.split(run.model)
    knobs = sampling.knobs
    length = run.model.config.length
    room = max(2 * length, _power_of_two(len(ids) + max_tokens))
    bucket = min(length, max(SMALLEST_BUCKET, _power_of_two(len(ids))))
    prompt = np.full((1, bucket), tokenizer.pad_id, np.int32)
    prompt[0, : len(ids)] = ids
    state = _start(graph, parameters, prompt, np.int32(len(ids)), np.uint32(seed), rows=rows, room=room)
    cached = len(ids) - 1
    drawn = 0
    while drawn < max_tokens:
        if cached == length:
            state = _refill(graph, parameters, state)
            cached = _carried(length)
        steps = min(STEPS_PER_DISPATCH, length - cached, max_tokens - drawn)
        state, tokens = _decode(graph, parameters, state, np.int32(steps), knobs, rules=rules, eos_id=tokenizer.eos_id)
        yield _Block(tokens, steps)
        cached += steps
        drawn += steps


@partial(jax.jit, static_argnames=("graph", "rows", "room"))
def _start(
    graph: Any,
    parameters: Any,
    prompt: Int[Array, "1 T"],
    count: Int[Array, ""],
    seed: UInt[Array, ""],
    *,
    rows: int,
    room: int,
) -> _Decoding:
    """Reads the prompt, once for all rows; its first `count` positions are meant, code included."""
    cache = _prefilled(nnx.merge(graph, parameters), prompt, count)
    layers = jax.tree.map(lambda x: jnp.repeat(x, rows, axis=-4), cache.layers)
    tokens = jnp.zeros((rows, room), jnp.int32).at[:, : prompt.shape[1]].set(prompt)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(rows))
    return _Decoding(Cache(layers, cache.filled), History(tokens, count), jnp.zeros(rows, bool), keys)


@partial(jax.jit, static_argnames="graph")
def _refill(graph: Any, parameters: Any, state: _Decoding) -> _Decoding:
    """Begins a new window with the control code and the newest tokens."""
    model = nnx.merge(graph, parameters)
    tokens, length = state.history
    carried = _carried(model.config.length)
    newest = lax.dynamic_slice(tokens, (0, length - carried), (tokens.shape[0], carried))
    window = jnp.concatenate([tokens[:, :1], newest], axis=1)
    return state._replace(cache=_prefilled(model, window, jnp.int32(carried + 1)))


@partial(jax.jit, static_argnames=("graph", "rules", "eos_id"), donate_argnames="state")
def _decode(
    graph: Any, parameters: Any, state: _Decoding, steps: Int[Array, ""], knobs: Knobs, *, rules: Rules, eos_id: int
) -> tuple[_Decoding, Int[Array, "B STEPS_PER_DISPATCH"]]:
    """Draws `steps` tokens a row, fewer if all rows have ended."""
    model = nnx.merge(graph, parameters)

    def going(carry: tuple[Array, _Decoding, Array]) -> Bool[Array, ""]:
        step, state, _ = carry
        return (step < steps) & ~jnp.all(state.finished)

    def advance(carry: tuple[Array, _Decoding, Array]) -> tuple[Array, _Decoding, Array]:
        step, (cache, history, finished, keys), block = carry
        tokens, length = history
        newest = lax.dynamic_slice_in_dim(tokens, length - 1, 1, axis=1)
        hidden, cache = model.extend(newest, cache)
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, length)
        chosen = next_tokens(model.logits(hidden[:, 0]), history, step_keys, knobs, rules)
        chosen = jnp.where(finished, eos_id, chosen)
        tokens = lax.dynamic_update_slice(tokens, chosen[:, None], (0, length))
        block = lax.dynamic_update_slice(block, chosen[:, None], (0, step))
        state = _Decoding(cache, History(tokens, length + 1), finished | (chosen == eos_id), keys)
        return step + 1, state, block

    block = jnp.full((state.finished.shape[0], STEPS_PER_DISPATCH), eos_id, jnp.int32)
    _, state, block = lax.while_loop(going, advance, (jnp.int32(0), state, block))
    return state, block


def _prefilled(model: Ctrl, tokens: Int[Array, "B T"], count: Int[Array, ""]) -> Cache:
    """A cache of the first `count` positions but the last, which the decoding step feeds to get its scores."""
    _, cache = model.extend(tokens, model.empty_cache(tokens.shape[0], model.config.length))
    return cache._replace(filled=count - 1)


def _carried(length: int) -> int:
    """Tokens that go over into a new window: with the code they fill half of it."""
    return max(1, length // 2 - 1)


def _power_of_two(size: int) -> int:
    """The smallest power of two that is `size` or more."""
    return 1 << (size - 1).bit_length()
