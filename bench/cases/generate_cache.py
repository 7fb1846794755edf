"""Decoding with the key-value cache against recomputing the window for every token.

`python bench/cases/generate_cache.py [--samples N] [--rounds N]` prints JSON. The model is ctrl-small (6 layers, width
384, vocabulary 32,000, window 256) of random parameters. Both sides run the same sampler with the default options and
as many steps a dispatch, and alternate within one process, so that load from outside meets both. Without a cache the
cost of a token does not depend on how full the window of fixed shape is, so that fewer tokens are timed there.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from hayakuchi.config import CtrlConfig
from hayakuchi.infer.decoding import STEPS_PER_DISPATCH, decoded_blocks
from hayakuchi.infer.sampling import History, Knobs, Rules, SamplingConfig, next_tokens

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import turns
from bench.random_text_run import FIRST_CODE_ID, NEWLINE_ID, PAD_ID, UNK_ID, make_run

RULES = Rules("shift_invariant", 0, (NEWLINE_ID,), (PAD_ID, UNK_ID, *range(FIRST_CODE_ID, NEWLINE_ID)))
UNCACHED_TOKENS = 4 * STEPS_PER_DISPATCH


@partial(jax.jit, static_argnames="graph")
def uncached_block(graph: Any, parameters: Any, history: History, keys: jax.Array, knobs: Knobs) -> History:
    """Draws STEPS_PER_DISPATCH tokens a row, each from a forward pass over the whole window."""
    model = nnx.merge(graph, parameters)

    def advance(_: int, history: History) -> History:
        tokens, length = history
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden = model.hidden(tokens, jnp.ones_like(tokens), positions)
        newest = lax.dynamic_slice_in_dim(hidden, length - 1, 1, axis=1)[:, 0]
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, length)
        chosen = next_tokens(model.logits(newest), history, step_keys, knobs, RULES)
        return History(lax.dynamic_update_slice(tokens, chosen[:, None], (0, length)), length + 1)

    return lax.fori_loop(0, STEPS_PER_DISPATCH, advance, history)


def time_cached(run: Any, samples: int) -> float:
    """Tokens of one sample a second, over a whole window that begins with the code alone."""
    tokens = run.model.config.length - 1
    start = time.perf_counter()
    blocks = list(decoded_blocks(run, [FIRST_CODE_ID], SamplingConfig(), max_tokens=tokens, rows=samples, seed=0))
    elapsed = time.perf_counter() - start
    assert sum(block.shape[1] for block in blocks) == tokens
    return tokens / elapsed


def time_uncached(run: Any, samples: int) -> float:
    """The same without a cache, at the end of the window."""
    graph, parameters = nnx.split(run.model)
    window = np.full((samples, run.model.config.length), NEWLINE_ID, np.int32)
    window[:, 0] = FIRST_CODE_ID
    history = History(jnp.asarray(window), jnp.int32(run.model.config.length - UNCACHED_TOKENS))
    keys = jax.random.split(jax.random.key(0), samples)
    start = time.perf_counter()
    for _ in range(UNCACHED_TOKENS // STEPS_PER_DISPATCH):
        history = uncached_block(graph, parameters, history, keys, SamplingConfig().knobs)
    jax.block_until_ready(history)
    return UNCACHED_TOKENS / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1, help="samples in one batch")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each side")
    arguments = parser.parse_args()
    run = make_run(CtrlConfig())
    sides = {"cached": time_cached, "uncached": time_uncached}
    for measure in sides.values():
        measure(run, arguments.samples)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, measure in sides.items():
            speeds[name].append(measure(run, arguments.samples))
    ratios = [cached / uncached for cached, uncached in zip(speeds["cached"], speeds["uncached"], strict=True)]
    result = {
        "case": "generate_cache",
        "samples": arguments.samples,
        "rounds": arguments.rounds,
        "tokens_per_second_per_sample": {name: turns.summary(values, 2) for name, values in speeds.items()},
        "ratios": {"tokens/s, with the cache / without": turns.summary(ratios, 2)},
        **turns.jax_versions(),
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
