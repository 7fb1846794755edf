"""The alignment search as a share of the VITS training step of its size: 512 frames x 256 symbols, batch 16, vits-jvs.

`python bench/cases/vits_alignment.py [--rounds N]` prints JSON. Search, scores (the matrix that the search is run on)
and step are three programs of one process that run in turns, so that load from outside meets all. float32, random data.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hayakuchi.config.vits import VitsConfig
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.models.vits.alignment import align, alignment_scores
from hayakuchi.recipes import VITS_JVS

TINY = {
    "latent_channels": 16, "hidden_channels": 16, "filter_channels": 32, "text_layers": 1, "posterior_layers": 2,
    "flow_layers": 2, "upsample_channels": 32, "discriminator_division": 16,
}  # fmt: skip


def make_step(model: dict[str, Any], rows: int, bucket: Bucket) -> Callable[[], Any]:
    """The whole training step."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bench import vits_program

    recipe = vits_program.resized(VITS_JVS, batch=rows, **model)
    program = vits_program.compile_step(recipe, bucket)
    program = vits_program.filled(program, recipe, vits_program.full_batch(recipe, bucket))
    state = program.state

    def step() -> Any:
        nonlocal state
        state, metrics = program.step(state, program.batch, program.key)
        return state, metrics

    return step


def make_parts(model: VitsConfig, rows: int, bucket: Bucket) -> dict[str, Callable[[], Any]]:
    """The search, and the scores it needs, from latent variables of the shapes of that step."""
    keys = jax.random.split(jax.random.key(0), 3)
    z = jax.random.normal(keys[0], (rows, bucket.frames, model.latent_channels))
    mean = jax.random.normal(keys[1], (rows, bucket.symbols, model.latent_channels))
    log_scale = 0.1 * jax.random.normal(keys[2], mean.shape)
    masks = jnp.ones((rows, bucket.frames), bool), jnp.ones((rows, bucket.symbols), bool)
    score, search = jax.jit(alignment_scores), jax.jit(align)
    scores = score(z, mean, log_scale)
    return {"search": lambda: search(scores, *masks), "scores": lambda: score(z, mean, log_scale)}


def summary(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 5) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=512)
    parser.add_argument("--symbols", type=int, default=256, help="of a clip, blanks included")
    parser.add_argument("--tiny", action="store_true", help="another, tiny model: only to see that all runs")
    arguments = parser.parse_args()
    bucket = Bucket(arguments.symbols, arguments.frames)
    model = TINY if arguments.tiny else {}
    parts = {
        **make_parts(dataclasses.replace(VITS_JVS.model, **model), arguments.batch, bucket),
        "step": make_step(model, arguments.batch, bucket),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(arguments.rounds + 1):
        for name, run in parts.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    shares = {
        name: summary([part / step for part, step in zip(seconds[name], seconds["step"], strict=True)])
        for name in ("search", "scores")
    }
    options = {name: getattr(arguments, name) for name in ("batch", "frames", "symbols", "tiny", "rounds")}
    result = {"case": "vits_alignment", **options, "share_of_step": shares}
    result |= {"seconds": {name: summary(values) for name, values in seconds.items()}}
    result |= {"device": jax.devices()[0].device_kind, "processors": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({**result, "python": platform.python_version(), "jax": jax.__version__}, indent=2))


if __name__ == "__main__":
    main()
