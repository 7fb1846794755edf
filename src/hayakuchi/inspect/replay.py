"""`inspect --replay`: a step that `train` kept, made again under a lens."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hayakuchi import progress
from hayakuchi.config import Precision
from hayakuchi.inspect.numerics import Numerics, examine
from hayakuchi.inspect.target import is_ours
from hayakuchi.train.dump import Dump, read_dump

_GUARDED = ("loss", "gradient_norm")


def replay(folder: Path, is_own: Callable[[str], bool] = is_ours) -> dict[str, Any]:
    """Makes a kept step again, as it was and equation by equation.

    Args:
      folder: RUN/nonfinite/step-N.
      is_own: whether a file is the user's own.

    Returns:
      "recipe", "step", "precision"; "bad", the metrics that were not finite ("state" where only what the step left was
      not); "culprits", "arguments", "modules" and "equations" (see `Numerics`); "cures", whether another arithmetic
      gives a finite step, by its name.

    Raises:
      UserError: it is no such folder.
    """
    dump = read_dump(folder)
    with progress.bar("the step again", 3) as bar:
        bar.update("as it was")
        bad = bad_results(dump)
        bar.advance(1)
        bar.update("equation by equation")
        found = _examined(dump, bad, is_own) if bad else Numerics([], [], [], 0)
        bar.advance(1)
        cures: dict[str, bool] = {}
        if bad and not found.arguments:
            bar.update("in other arithmetic")
            cures = _cures(dump)
        bar.advance(1)
    return {
        "recipe": dump.recipe.name,
        "step": int(dump.state.step) + 1,
        "precision": dump.recipe.train.precision,
        "platform": jax.default_backend(),
        "bad": bad,
        **found.to_dict(),
        "cures": cures,
    }


def bad_results(dump: Dump, precision: Precision | None = None) -> list[str]:
    """Names of the metrics of a step that are not finite, or "state" where only the parameters are not."""
    recipe, state = dump.recipe, dump.state
    if precision is not None:
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, precision=precision))
        state = state._replace(scaler=None)
    after, metrics = jax.jit(dump.task(recipe).step)(state, dump.batch, dump.key)
    bad = [name for name, value in metrics.items() if name.endswith(_GUARDED) and not jnp.isfinite(value)]
    bad.sort(key=lambda name: name != "loss")
    if not bad and not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(after.parameters)):
        bad = ["state"]
    return bad


def _examined(dump: Dump, bad: list[str], is_own: Callable[[str], bool]) -> Numerics:
    def wanted(result: Any) -> Any:
        after, metrics = result
        return after.parameters if bad == ["state"] else {name: metrics[name] for name in bad}

    return examine(dump.task().step, (dump.state, dump.batch, dump.key), wanted, is_own)


def _cures(dump: Dump) -> dict[str, bool]:
    """Whether the step is finite in other arithmetic."""
    with jax.default_matmul_precision("highest"):
        cures = {"highest matmul precision": not bad_results(dump)}
    if dump.recipe.train.precision != "float32":
        cures["float32"] = not bad_results(dump, "float32")
    return cures
