"""Planned against actual: some steps of a recipe on the devices of this machine."""

import statistics
import time
from typing import Any

from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError
from hayakuchi.plan.account import memory_of
from hayakuchi.plan.cost import Cost, cost_of
from hayakuchi.plan.devices import Devices, find_reported
from hayakuchi.plan.shares import add_to_history, band, ideal_seconds
from hayakuchi.runtime import set_up_jax

CALIBRATION_SECONDS = 30.0
_FEWEST_STEPS = 2
# A training run that is shorter says little of its steps' time.
_SHORTEST_RUN_SECONDS, _SHORTEST_RUN_STEPS = 30.0, 20


def measure(recipe: Recipe, devices: Devices, seconds: float = CALIBRATION_SECONDS) -> dict[str, Any]:
    """Runs a recipe's step on this machine and notes in the history what share of the ideal it gets.

    Args:
      recipe: what to run, on random content.
      devices: what the machine is said to be.
      seconds: that the steps may take, the compiling besides.

    Returns:
      "step_seconds", the median; "steps"; "share"; "memory_bytes" by the compiler; "compile_seconds".

    Raises:
      UserError: this machine has other devices, or fewer.
    """
    set_up_jax()
    import jax

    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.train.loop import abstract_state, lower_steps, placed
    from hayakuchi.train.tasks import make_task

    here = jax.devices()
    if here[0].platform != devices.platform or len(here) < devices.count:
        raise UserError(
            f"--device {devices.name} is {devices.count} x {devices.platform}, this machine has {len(here)} x "
            f"{here[0].platform}: run this where the device is"
        )
    task, mesh = make_task(recipe), make_mesh(recipe.train.mesh, here[: devices.count])
    cost = cost_of(recipe, devices)
    started = time.monotonic()
    [(spec, lowered)] = lower_steps(task, mesh)
    step = lowered.compile()
    compile_seconds = time.monotonic() - started
    layout = jax.tree.map(lambda x: x.sharding, abstract_state(task, mesh))
    state = jax.jit(lambda key: task.init(key, task.frozen), out_shardings=layout)(jax.random.key(0))
    batch, key = placed(task.example_batch(spec), mesh), jax.random.key(1)
    times: list[float] = []
    ends = time.monotonic() + seconds
    while len(times) <= _FEWEST_STEPS or time.monotonic() < ends:
        before = time.monotonic()
        state, metrics = step(state, batch, key)
        float(metrics["loss"])
        times.append(time.monotonic() - before)
    actual = statistics.median(times[1:])  # the first one warms up
    precision = devices.precision(recipe.train.precision)
    ideal = ideal_seconds(cost, devices, precision)
    add_to_history(devices, recipe.name, recipe.task, precision, ideal=ideal, actual=actual)
    return {
        "step_seconds": actual,
        "steps": len(times) - 1,
        "share": ideal / actual,
        "memory_bytes": memory_of([step]).peak,
        "compile_seconds": round(compile_seconds, 1),
    }


def measured_text(found: dict[str, Any], planned: dict[str, Any]) -> str:
    """What a measurement says beside a plan of `make_plan`."""
    low, high = planned["step_seconds"]
    return (
        f"actual: a step {found['step_seconds']:.3g} s (planned {low:.3g} to {high:.3g}), "
        f"{100 * found['share']:.0f}% of what the tables say it can do, over {found['steps']} steps; "
        f"memory {found['memory_bytes'] / 2**30:,.2f} GiB (planned {planned['memory_bytes'] / 2**30:,.2f}); "
        f"compiled in {found['compile_seconds']} s"
    )


def after_training(recipe: Recipe, result: dict[str, Any]) -> dict[str, Any] | None:
    """Planned against actual of a training run that has ended, noted in the history.

    Args:
      recipe: the run's own, with the sizes of its data set.
      result: the summary of `session.train`.

    Returns:
      "step_seconds" planned, from and to, and "actual_step_seconds"; None of a run that is too short to tell, of
      several processes, or on a device that has no name here.
    """
    steps = result["steps"] - result["first_step"]
    found = result["devices"]
    if steps < _SHORTEST_RUN_STEPS or result["seconds"] < _SHORTEST_RUN_SECONDS or found["processes"] > 1:
        return None
    try:
        devices = find_reported(found["platform"], found["kind"], found["count"])
        cost = cost_of(recipe, devices)
    except UserError:
        return None
    precision = devices.precision(recipe.train.precision)
    likely = band(devices, recipe.task, precision)
    actual = result["seconds"] / steps
    ideal = ideal_seconds(cost, devices, precision) * _size(recipe, cost, result, steps)
    add_to_history(devices, recipe.name, recipe.task, precision, ideal=ideal, actual=actual)
    return {"step_seconds": [ideal / likely.high, ideal / likely.low], "actual_step_seconds": actual}


def _size(recipe: Recipe, cost: Cost, result: dict[str, Any], steps: int) -> float:
    """How much larger the batches were than the typical ones that are planned with: those of a voice differ."""
    return float(result[cost.unit]) / steps / cost.units if recipe.task == "vits" else 1.0
