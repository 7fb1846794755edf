"""Which lighter network for a given time, and which for a given size? Bits per character against training time.

`python bench/cases/lighter_networks.py --data DIR --out DIR [--seconds N] [--only NAME ...]` trains the networks below
on a text data set, each for as many steps as it makes in N seconds of this machine when it is quiet, and writes
`lighter_networks.json` and `.png`. A network that stands in the JSON already is not trained again.

Time is counted as steps times the step's time: the steps of all networks are timed in turns at the start, several
rounds, the shortest round of each taken, so that what else the machine does while they train changes nothing. A step is
one of 8 windows of 256 tokens. The teacher of the distilled network is trained for twice the time, which is told beside
the result and not counted in it.
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, TextDataConfig, TrainConfig
from hayakuchi.data.batches import HeldoutBatches, TextBatches
from hayakuchi.data.shards import DatasetInfo, open_split
from hayakuchi.models.sharding import make_mesh
from hayakuchi.runtime import set_up_jax
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.loop import Compiled, compile_task
from hayakuchi.train.teacher import Teacher

LENGTH, BATCH = 256, 8
HELD_OUT_BATCHES = 40
EVALUATIONS = 10
TIMED_ROUNDS, TIMED_STEPS = 5, 4
TEACHER, STUDENT = "teacher: 6 layers of width 384", "distilled: 3 layers"
BASE = {"layers": 6, "width": 256, "heads": 4, "feed_forward": 1_024}
# The first is what the others are held against. "equal parameters": as many as it has, within 5%.
NETWORKS: dict[str, dict[str, Any]] = {
    "baseline: 6 layers of width 256": {},
    "shared: one layer 6 times": {"sharing": "all"},
    "shared attention only": {"sharing": "attention"},
    "shared in 2 groups": {"sharing": "all", "sharing_groups": 2},
    "shared, equal parameters: width 480": {"sharing": "all", "width": 480, "heads": 8, "feed_forward": 1_920},
    "factorised: E 64": {"embedding_width": 64},
    "factorised, equal parameters: E 64, 8 layers": {"embedding_width": 64, "layers": 8},
    "fewer: 3 layers": {"layers": 3},
    "fewer, equal parameters: 3 layers of width 336": {"layers": 3, "width": 336, "feed_forward": 1_344},
    "narrower: width 176": {"width": 176, "feed_forward": 704},
    STUDENT: {"layers": 3},
    TEACHER: {"width": 384, "heads": 6, "feed_forward": 1_536},
}


def recipe_of(changes: dict[str, Any], vocabulary_size: int, steps: int) -> CtrlRecipe:
    """No dropout: hardly a token is seen twice."""
    sizes = {"vocabulary_size": vocabulary_size, "length": LENGTH, "dropout": 0.0, **BASE, **changes}
    return CtrlRecipe(
        name="lighter-networks",
        model=CtrlConfig(**sizes),
        optimizer=OptimizerConfig(learning_rate=1.5e-3, warmup_steps=min(100, steps // 4), clip_norm=1.0),
        data=TextDataConfig(code_dropout=0.1),
        train=TrainConfig(steps=steps, batch=BATCH, precision="bfloat16"),
    )


class Data:
    """A data set, and how many characters its held-out tokens are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = DatasetInfo.load(folder / "dataset.json")
        counts = self.info.counts["heldout"].values()
        self.characters_per_token = sum(one.characters for one in counts) / sum(one.tokens for one in counts)
        batches = HeldoutBatches(open_split(folder, "heldout"), LENGTH, BATCH)
        self.held_out = list(itertools.islice(batches, HELD_OUT_BATCHES))

    def batches(self, recipe: CtrlRecipe) -> Any:
        return TextBatches(
            open_split(self.folder, "train"), recipe.data, LENGTH, BATCH, codes=self.info.codes
        ).iterate()

    def bits_per_character(self, programs: Compiled, parameters: Any) -> float:
        parts = [programs.held_out(parameters, programs.place(batch)) for batch in self.held_out]
        loss = sum(float(part["loss"]) for part in parts) / sum(float(part["tokens"]) for part in parts)
        return loss / math.log(2) / self.characters_per_token


def step_seconds(data: Data, names: list[str]) -> dict[str, float]:
    """Least time of a step of each network, timed in turns. The student's counts its teacher's forward pass."""
    mesh = make_mesh()
    found: dict[str, list[float]] = {name: [] for name in names}
    tasks = {}
    for name in names:
        recipe = recipe_of(NETWORKS[name], data.info.vocabulary_size, 1_000)
        teacher = None
        if name == STUDENT:
            other = CtrlTask(recipe_of(NETWORKS[TEACHER], data.info.vocabulary_size, 1_000))
            teacher = Teacher(other.recipe.model, other.init(jax.random.key(0)).parameters)
        task = CtrlTask(recipe, teacher)
        tasks[name] = compile_task(task, mesh), task.example_batch(task.batch_specs()[0])
    for _ in range(TIMED_ROUNDS):
        for name, (programs, example) in tasks.items():
            state, batch = programs.init(jax.random.key(0)), programs.place(example)
            state, metrics = programs.step(state, batch, jax.random.key(1))
            jax.block_until_ready(metrics)
            start = time.perf_counter()
            for _ in range(TIMED_STEPS):
                state, metrics = programs.step(state, batch, jax.random.key(1))
            jax.block_until_ready((state, metrics))
            found[name].append((time.perf_counter() - start) / TIMED_STEPS)
    for name, times in found.items():
        print(f"{name}: {1e3 * min(times):.1f} ms (median {1e3 * statistics.median(times):.1f})", flush=True)
    return {name: min(times) for name, times in found.items()}


def train(data: Data, name: str, seconds: float, each: float, teacher: Teacher | None) -> tuple[dict[str, Any], Any]:
    """Trains one network for `seconds` of a step of `each`; gives what to write down, and its parameters."""
    steps = round(seconds / each)
    recipe = recipe_of(NETWORKS[name], data.info.vocabulary_size, steps)
    task = CtrlTask(recipe, teacher)
    programs = compile_task(task, make_mesh())
    state, batches = programs.init(jax.random.key(0)), data.batches(recipe)
    at = {round(steps * part / EVALUATIONS) for part in range(EVALUATIONS + 1)}
    curve = []
    for done in range(steps + 1):
        if done in at:
            bits = data.bits_per_character(programs, state.parameters)
            curve.append({"step": done, "seconds": round(done * each, 1), "bits_per_character": round(bits, 4)})
            print(f"{name}: step {done} of {steps}, {bits:.3f} bits per character", flush=True)
        if done < steps:
            state, _ = programs.step(state, programs.place(next(batches)), jax.random.key(1))
    parameters = jax.tree.leaves(state.parameters)
    facts = {
        "parameters": sum(leaf.size for leaf in parameters),
        "step_ms": round(1e3 * each, 1),
        "steps": steps,
        "tokens": steps * BATCH * LENGTH,
        "model": dataclasses.asdict(recipe.model),
        "bits_per_character": curve[-1]["bits_per_character"],
        "curve": curve,
    }
    return facts, state.parameters


def draw(result: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    shown = {name: one for name, one in result["networks"].items() if name != TEACHER}
    for index, (name, one) in enumerate(shown.items()):
        points = one["curve"][1:]
        label = f"{name} ({one['parameters'] / 1e6:.1f} M, {one['step_ms']:.0f} ms): {one['bits_per_character']:.3f}"
        style = {"linewidth": 2.5, "color": "black"} if index == 0 else {"linestyle": ("-", "--", ":")[index % 3]}
        axes.plot([p["seconds"] for p in points], [p["bits_per_character"] for p in points], label=label, **style)
    axes.set_xlabel("seconds of training on two quiet cores")
    axes.set_ylabel("bits per character, held out")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="data set of `prepare text`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), help="names of networks")
    arguments = parser.parse_args()
    set_up_jax()
    data = Data(arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "lighter_networks.json"
    result: dict[str, Any] = {"case": "lighter_networks", "seconds": arguments.seconds, "networks": {}}
    if file.exists():
        result = json.loads(file.read_text(encoding="utf-8"))
    if "step_seconds" not in result:
        result["step_seconds"] = step_seconds(data, list(NETWORKS))
        file.write_text(json.dumps(result, indent=1), encoding="utf-8")
    # The teacher first: its student waits for it.
    for name in sorted(arguments.only, key=lambda name: name != TEACHER):
        if name in result["networks"]:
            continue
        teacher = None
        if name == STUDENT:
            model = recipe_of(NETWORKS[TEACHER], data.info.vocabulary_size, 1).model
            stored = np.load(arguments.out / "teacher.npz")
            abstract = jax.eval_shape(
                CtrlTask(recipe_of(NETWORKS[TEACHER], data.info.vocabulary_size, 1)).init, jax.random.key(0)
            )
            leaves = [jax.numpy.asarray(stored[str(index)]) for index in range(len(stored.files))]
            teacher = Teacher(model, jax.tree.unflatten(jax.tree.structure(abstract.parameters), leaves))
        seconds = arguments.seconds * (2 if name == TEACHER else 1)
        facts, parameters = train(data, name, seconds, result["step_seconds"][name], teacher)
        if name == TEACHER:
            np.savez(
                arguments.out / "teacher.npz", **{str(i): leaf for i, leaf in enumerate(jax.tree.leaves(parameters))}
            )
        result["networks"][name] = facts
        file.write_text(json.dumps(result, indent=1), encoding="utf-8")
    draw(result, file.with_suffix(".png"))


if __name__ == "__main__":
    main()
