"""Weak scaling of CTRL's training step: one process on one core, and two on a core each over loopback.

`python bench/cases/weak_scaling.py [--rounds N] [--steps N] [--layers N --width N ...]` prints JSON; ctrl-small's sizes
by default. Every process has the same batch, so with perfect scaling a step of two takes as long as a step of one:

- efficiency: the step of one process alone over that of two that train one model together;
- share of the exchange: what of the step of two is gone where the same two processes train at the same time, but each
  a model of its own. They share the memory's bandwidth as before; what they do not do is to exchange gradients and to
  wait for each other.

Five processes take strict turns: alone, apart (two at once), together (two at once, connected as `hayakuchi train`
connects its processes).
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import ctrl_sizes, turns

GROUPS = {"alone": 1, "apart": 2, "together": 2}
TINY = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "vocabulary": 200, "batch": 2, "length": 16}


def serve(arguments: argparse.Namespace) -> None:
    """Steps of one process, on its core."""
    # Before JAX counts the cores.
    os.sched_setaffinity(0, {arguments.core})
    facts = turns.jax_versions()
    from hayakuchi.config import CtrlRecipe, TrainConfig
    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.train.ctrl_task import CtrlTask
    from hayakuchi.train.loop import compile_task
    from hayakuchi.train.session import connect_processes

    connect_processes()
    import jax

    processes, index = jax.process_count(), jax.process_index()
    assert processes == (2 if arguments.side == "together" else 1)
    recipe = CtrlRecipe(
        model=ctrl_sizes.model_config(arguments),
        train=TrainConfig(batch=processes * arguments.batch, precision=arguments.precision),
    )
    task = CtrlTask(recipe)
    programs = compile_task(task, make_mesh())
    state, key = programs.init(jax.random.key(0)), jax.random.key(1)
    rows = slice(index * arguments.batch, (index + 1) * arguments.batch)
    batch = programs.place(jax.tree.map(lambda x: x[rows], task.example_batch(task.batch_specs()[0])))

    def steps(_: str) -> dict[str, float]:
        nonlocal state
        for _ in range(arguments.steps):
            state, metrics = programs.step(state, batch, key)
        jax.block_until_ready((state, metrics))
        return {"loss": float(metrics["loss"]), "tokens": float(metrics["tokens"])}

    facts["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    turns.serve(steps, facts)


def start(name: str, cores: list[int], malloc: str) -> list[turns.Side]:
    """The processes of a group."""
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **turns.allocator(malloc, ours=True)}
    if name == "together":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    sides = [
        turns.Side(
            sys.executable,
            *("--side", name, "--core", str(core)),
            environment={**environment, "JAX_PROCESS_ID": str(index)} if name == "together" else environment,
        )
        for index, core in enumerate(cores[: GROUPS[name]])
    ]
    return [side.wait() for side in sides]


def measure(sides: list[turns.Side]) -> float:
    """Seconds until all that work at once are done, the slower of them."""
    for side in sides:
        side.ask()
    return max(side.answer()["seconds"] for side in sides)


def ratios(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of the seconds of each group by round."""
    shares = ((one["together"] - one["apart"]) / one["together"] for one in rounds)
    return {
        "efficiency of 2 processes": turns.summary(one["alone"] / one["together"] for one in rounds),
        "share of the gradient exchange in a step": turns.summary(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    sizes = {"layers": 6, "width": 384, "heads": 6, "feed_forward": 1_536, "vocabulary": 32_000, "length": 256}
    ctrl_sizes.add_options(parser, **sizes)
    parser.add_argument("--batch", type=int, default=4, help="windows of each process")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--malloc", default="shipped", choices=turns.MALLOC)
    parser.add_argument("--tiny", action="store_true", help="another, tiny model: only to see that all runs")
    parser.add_argument("--side", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        vars(arguments).update(TINY)
    if arguments.side:
        serve(arguments)
        return

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(json.dumps({"case": "weak_scaling", "skipped": "it needs two cores"}))
        return
    groups = {name: start(name, cores, arguments.malloc) for name in GROUPS}
    rounds: list[dict[str, float]] = [
        {name: measure(sides) / arguments.steps for name, sides in groups.items()} for _ in range(arguments.rounds)
    ]
    # Two connected processes leave together: the one waits for the other.
    for side in (side for sides in groups.values() for side in sides):
        side.end()
    for side in (side for sides in groups.values() for side in sides):
        side.close()
    told = (*sizes, "batch", "precision", "malloc", "steps", "tiny")
    facts: dict[str, Any] = groups["together"][0].facts
    result = {
        "case": "weak_scaling",
        **{name: getattr(arguments, name) for name in told},
        "parameters": facts["parameters"],
        "rounds": arguments.rounds,
        "ratios": ratios(rounds),
        "seconds": {name: turns.summary((one[name] for one in rounds), 4) for name in GROUPS},
        "tokens_per_step": {name: sides[0].facts["after_warm_up"]["tokens"] for name, sides in groups.items()},
        "versions": turns.versions(side for sides in groups.values() for side in sides),
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
