"""One training step on 1, 2, 4 and 8 devices: the same numbers, the state split, its memory used again.

All runs are made by one process of eight devices, this file as a program; the tests read what it wrote.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

MESHES = {
    "ctrl": ("data=1", "data=2", "fsdp=2", "data=2,fsdp=2", "data=8", "data=4,fsdp=2", "fsdp=8"),
    "vits": ("data=1", "data=2", "data=2,fsdp=2", "data=2,fsdp=4"),
}
CASES = [(model, mesh) for model, meshes in MESHES.items() for mesh in meshes]
BATCH, STEPS = 8, 3


def size_of(mesh, axis="data|fsdp"):
    return int(np.prod([int(size) for size in re.findall(rf"(?:{axis})=(\d+)", mesh)] or [1]))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meshes")
    paths = os.pathsep.join(str(Path(__file__).parents[level]) for level in (0, 1))
    # The compiler need not try hard for a program that runs three times.
    settings = {"JAX_NUM_CPU_DEVICES": "8", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def found(folder, model, mesh):
    facts = json.loads((folder / f"{model} {mesh}.json").read_text(encoding="utf-8"))
    with np.load(folder / f"{model} {mesh}.npz") as arrays:
        return facts, dict(arrays)


@pytest.mark.parametrize(("model", "mesh"), [case for case in CASES if case[1] != "data=1"])
def test_losses_and_parameters_do_not_depend_on_the_mesh(made, model, mesh):
    """Dropout is on, so the masks are those of one device too.

    Sums of another order differ in the last bits of float32. The tests' Adam has a large epsilon: with the usual one an
    element whose gradient is all rounding would move as far as any other, this way or that.
    """
    (one, alone), (many, together) = (found(made, model, which) for which in ("data=1", mesh))
    assert one["metrics"][0].keys() == many["metrics"][0].keys()
    for before, after in zip(one["metrics"], many["metrics"], strict=True):
        for name, value in before.items():
            assert after[name] == pytest.approx(value, rel=1e-5), name
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("model", MESHES)
def test_the_runs_would_tell_a_mean_of_means(made, model):
    """The loss is not the mean of the devices' means, by much more than rounding; and three steps moved the state."""
    facts, _ = found(made, model, "data=1")
    assert abs(facts["mean_of_means"] / facts["mean"] - 1) > 100 * 1e-5
    assert facts["moved"] > 1_000 * 2e-6


@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_state_is_split_over_fsdp(made, model, mesh):
    """Each device holds 1/M of what is split, and all of what is not: few numbers in many small arrays."""
    facts, _ = found(made, model, mesh)
    parts = size_of(mesh, "fsdp")
    assert all(part in (whole, whole / parts) for whole, part in facts["shards"].values())
    wholes, held = (sum(sizes) for sizes in zip(*facts["shards"].values(), strict=True))
    assert held < (1 / parts + 0.15) * wholes
    # The compiler was told the same: the program takes no more than this.
    assert facts["argument_bytes"] < 4 * held + facts["batch_bytes"] + 1_000


@pytest.mark.parametrize("mesh", MESHES["vits"])
def test_vits_sends_parameters_and_their_gradients_alone(made, mesh):
    """Rows stay where they are: no activation is gathered or moved, only sums over all rows are made."""
    facts, _ = found(made, "vits", mesh)
    assert not {"all-to-all", "collective-permute"} & set(facts["messages"])
    shapes = set(map(tuple, facts["parameter_shapes"]))
    assert {tuple(shape) for shape in facts["messages"].get("all-gather", [])} <= shapes
    assert ("all-gather" in facts["messages"]) == (size_of(mesh, "fsdp") > 1)
    assert ("all-reduce" in facts["messages"]) == (size_of(mesh) > 1)


@pytest.mark.parametrize("which", ["fresh", "restored"])
@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_a_step_takes_its_states_memory(made, model, mesh, which):
    """Of a state from a checkpoint too: what Orbax restores lies partly in memory that JAX must not give away."""
    facts, _ = found(made, model, mesh)
    assert facts[which] == {"alive": [], "elsewhere": []}


def main(folder):
    import jax

    from hayakuchi.models.vits import discriminators, starts
    from hayakuchi.train import joined

    joined.LARGE = 100  # the smallest VITS has nothing larger
    # Two periods show what five do, and compile sooner; as do short draws of the first parameters.
    discriminators.PERIODS = (2, 3)
    starts._BLOCK = 1 << 14

    warnings.filterwarnings("error", message="Some donated buffers")
    tasks = {"ctrl": ctrl_task, "vits": vits_task}
    for model, mesh in CASES:
        task, batch, means = tasks[model]()
        run(folder, f"{model} {mesh}", task, batch, jax.devices()[: size_of(mesh)], mesh, means)


def ctrl_task():
    """A CTRL, a batch of rows of unequal length, and what computes its loss and the mean of its rows' losses."""
    import jax

    from hayakuchi.config import OptimizerConfig
    from hayakuchi.train.ctrl_task import CtrlTask
    from helpers import tiny_recipe

    optimizer = OptimizerConfig(learning_rate=1e-2, warmup_steps=1, epsilon=1e-2)
    task = CtrlTask(dataclasses.replace(tiny_recipe(batch=BATCH), optimizer=optimizer))
    batch = task.example_batch(task.batch_specs()[0])
    lengths = np.arange(2, 2 * BATCH + 1, 2)[:, None]
    segments = (np.arange(batch.tokens.shape[1]) < lengths).astype(np.int32)
    batch = batch._replace(segments=segments, positions=batch.positions * segments)

    def means(parameters):
        held_out = jax.jit(task.held_out_loss)
        rows = [held_out(parameters, jax.tree.map(lambda x, i=i: x[i : i + 1], batch)) for i in range(BATCH)]
        losses, tokens = (np.array([float(row[name]) for row in rows]) for name in ("loss", "tokens"))
        return losses.sum() / tokens.sum(), np.mean(losses / tokens)

    return task, batch, means


def vits_task():
    """The same of a VITS: clips of unequal length, and its KL loss, which is a mean over all their frames."""
    import jax
    import jax.numpy as jnp

    from hayakuchi.config import TrainConfig
    from hayakuchi.config.vits import VitsOptimizerConfig, VitsRecipe
    from hayakuchi.data.speech_batches import Bucket
    from hayakuchi.train import vits_task as module
    from vits_models import small_config

    small = small_config(
        discriminator_division=16,
        stochastic_durations=False,
        resblock_kernels=(3,),
        resblock_dilations=((1, 3),),
        upsample_rates=(16,),
        upsample_kernels=(32,),
    )
    recipe = VitsRecipe(
        model=small,
        optimizer=VitsOptimizerConfig(learning_rate=1e-2, epsilon=1.0, average_decay=0.9),
        train=TrainConfig(batch=BATCH),
    )
    task = module.VitsTask(recipe, [Bucket(symbols=16, frames=24)], 100)
    batch = task.example_batch(task.batch_specs()[0])
    batch = batch._replace(
        symbol_lengths=np.arange(2, 2 * BATCH + 1, 2, np.int32),
        frame_lengths=np.arange(10, 10 + 2 * BATCH, 2, np.int32),
    )
    kl_loss = module.kl_loss

    def by_row(*arrays):
        return jnp.mean(jax.vmap(lambda *row: kl_loss(*(x[None] for x in row)))(*arrays))

    def means(parameters):
        losses = []
        for module.kl_loss in (kl_loss, by_row):
            sums = jax.jit(partial(task.held_out_loss))(parameters, batch)
            losses.append(float(sums["kl_loss"] / sums["frames"]))
        module.kl_loss = kl_loss
        return losses

    return task, batch, means


def run(folder, name, task, batch, devices, mesh, means):
    """Three steps, then one from a checkpoint of theirs; writes what the tests ask for."""
    import jax

    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.train.checkpoint import Checkpoints, flatten
    from hayakuchi.train.loop import compile_task

    programs = compile_task(task, make_mesh(mesh, devices))
    [program] = programs.executables

    key = jax.random.key(1)
    state = first = programs.init(jax.random.key(0))
    start = {path: np.array(leaf) for path, leaf in flatten(state.parameters).items()}
    shards = {path: (leaf.size, leaf.addressable_shards[0].data.size) for path, leaf in flatten(state).items()}
    facts = {
        "shards": shards,
        "argument_bytes": program.memory_analysis().argument_size_in_bytes,
        "batch_bytes": sum(array.nbytes for array in batch),
        "messages": messages(program.as_text()),
        "parameter_shapes": [leaf.shape for leaf in start.values()],
        "metrics": [],
    }
    if mesh == "data=1":
        facts["mean"], facts["mean_of_means"] = map(float, means(state.parameters))
    placed = programs.place(batch)
    for step in range(STEPS):
        before = pointers(state)
        state, metrics = programs.step(state, placed, key)
        facts["metrics"].append({name: float(value) for name, value in metrics.items()})
        if step == 0:
            facts["fresh"] = reused(first, before, state)
    end = {path: np.asarray(leaf) for path, leaf in flatten(state.parameters).items()}
    facts["moved"] = float(np.mean([np.abs(value - start[path]).max() for path, value in end.items()]))
    with Checkpoints(folder / name, 1) as checkpoints:
        checkpoints.save(STEPS, state, key, 0, {})
        checkpoints.wait()
        restored, _ = checkpoints.restore(programs.abstract_state)
    before = pointers(restored)
    facts["restored"] = reused(restored, before, programs.step(restored, placed, key)[0])
    np.savez(folder / f"{name}.npz", **end)
    (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


def pointers(state):
    """Where each array's parts lie."""
    from hayakuchi.train.checkpoint import flatten

    return {
        path: [shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards]
        for path, leaf in flatten(state).items()
    }


def reused(old, before, new):
    """Arrays of the old state that can still be read, and those of the new one that are not in their memory."""
    from hayakuchi.train.checkpoint import flatten

    after = pointers(new)
    return {
        "alive": [path for path, leaf in flatten(old).items() if not leaf.is_deleted()],
        "elsewhere": [path for path, places in before.items() if after[path] != places],
    }


def messages(program):
    """Shapes of the results of a compiled program's collective operations, by their kind."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    shapes = {}
    for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", program):
        found = [[int(size) for size in dims.split(",") if size] for dims in re.findall(r"\w+\[([\d,]*)\]", result)]
        shapes.setdefault(kind, []).extend(found)
    return shapes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
