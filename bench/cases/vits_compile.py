"""Equations, compile time and memory of the VITS training steps of our recipes. Nothing is run, nothing cached.

`python bench/cases/vits_compile.py [--recipe NAME] [--rounds N] [--precision P]` prints JSON: for vits-jvs at batch 4
and vits-nano at its own batch. Nested equations count, the body of a loop once. Memory is the compiler's account, where
the arguments are the state and a batch; the state is changed in place. A run compiles one such step a bucket.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import jax

from hayakuchi.data.speech_batches import Bucket
from hayakuchi.recipes import RECIPES

BATCHES = {"vits-jvs": 4, "vits-nano": RECIPES["vits-nano"].train.batch}


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Facts of one recipe's step, the median where it is of times."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bench import vits_program

    batch = arguments.batch or BATCHES[name]
    recipe = vits_program.resized(
        RECIPES[name], batch=batch, precision=arguments.precision, speakers=arguments.speakers
    )
    found = []
    for _ in range(arguments.rounds):
        jax.clear_caches()
        found.append(vits_program.compile_step(recipe, Bucket(arguments.symbols, arguments.frames)).facts)
    facts = found[0]
    for label in (label for label in facts if label.endswith("seconds")):
        values = [one[label] for one in found]
        facts[label] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {"batch": batch, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=BATCHES, help="only this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--speakers", type=int, default=100)
    parser.add_argument("--batch", type=int, default=0, help="0 for the named ones")
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--symbols", type=int, default=120, help="of a clip, blanks included")
    arguments = parser.parse_args()
    names = [arguments.recipe] if arguments.recipe else list(BATCHES)
    options = {name: getattr(arguments, name) for name in ("rounds", "precision", "speakers", "frames", "symbols")}
    result = {"case": "vits_compile", **options, "steps": {name: measure(name, arguments) for name in names}}
    result |= {"device": jax.devices()[0].device_kind, "processors": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({**result, "python": platform.python_version(), "jax": jax.__version__}, indent=2))


if __name__ == "__main__":
    main()
