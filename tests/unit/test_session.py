"""Whole runs: resume, one compile, the same result however the run is cut, and clear refusals."""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from hayakuchi.config import CtrlRecipe
from hayakuchi.data.batches import TextBatches
from hayakuchi.data.shards import open_split
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CodeBook
from hayakuchi.train import session
from hayakuchi.train.checkpoint import CheckpointError, Checkpoints, flatten
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.dump import read_dump
from hayakuchi.train.metrics import NonFiniteLossError
from hayakuchi.train.train_ctrl import train_ctrl
from helpers import LENGTH, VOCABULARY, random_dataset, tiny_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return random_dataset(tmp_path_factory.mktemp("dataset"))


def saved_state(run: Path, recipe: CtrlRecipe):
    """The newest checkpoint as (arrays by name, record)."""
    abstract = jax.eval_shape(CtrlTask(recipe).init, jax.random.key(0))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), abstract)
    with Checkpoints(run / "checkpoints", 3, read_only=True) as checkpoints:
        state, record = checkpoints.restore(target)
    return flatten(state), record


def records(run: Path) -> list[dict]:
    """The lines of `metrics.jsonl` without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in {"tokens_per_second", "data_wait_share"}} for line in lines]


def test_a_run_leaves_everything_needed(tmp_path, data, monkeypatch):
    recipe = tiny_recipe(steps=6, checkpoint_every=4)
    save, at_save = Checkpoints.save, {}

    def noting(checkpoints, step, *arguments):
        at_save[step] = records(tmp_path / "run")
        save(checkpoints, step, *arguments)

    monkeypatch.setattr(Checkpoints, "save", noting)
    result = train_ctrl(recipe, tmp_path / "run", data)
    assert result["steps"] == 6
    assert result["stopped_by"] is None
    assert result["devices"]["count"] == 2
    assert np.isfinite(result["loss"])
    assert np.isfinite(result["held_out_loss"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "learning_rate" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [4, 6]
    for step, known in at_save.items():
        assert known == [line for line in records(tmp_path / "run") if line["step"] <= step], "after its checkpoint"
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"recipe.json", "dataset.json", "tokenizer.model", "checkpoints", "metrics.jsonl", "tensorboard"}
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["4", "6"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_halves_equal_the_whole_bitwise(tmp_path, data, accumulate):
    """R15, R8 (the second half lies in the second epoch): dropout, order and optimiser go on as if never stopped."""
    recipe = tiny_recipe(steps=20, checkpoint_every=10, accumulate=accumulate)
    plan = TextBatches(open_split(data, "train"), recipe.data, LENGTH, 4, codes=CodeBook({}))
    assert 10 < plan.epoch_batches < 20, "the cut must lie in the first epoch and the end in the second"
    train_ctrl(recipe, tmp_path / "whole", data)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 10)
        first = train_ctrl(recipe, tmp_path / "halves", data)
    assert first["steps"] == 10
    with (tmp_path / "halves" / "metrics.jsonl").open("a", encoding="utf-8") as lines:
        lines.write('{"step": 11, "loss": 1.0}\n{"step": 12, "lo')  # as a process leaves it that was killed
    second = train_ctrl(recipe, tmp_path / "halves", data)
    assert second["first_step"] == 10
    assert records(tmp_path / "halves") == records(tmp_path / "whole")
    whole, record = saved_state(tmp_path / "whole", recipe)
    halves, other = saved_state(tmp_path / "halves", recipe)
    assert record == other
    assert record["position"] == 20
    for name, array in whole.items():
        assert np.array_equal(array, halves[name]), name


def stop_after(patch, step):
    """Makes the platform ask for a stop after a step."""
    patch.setattr(Checkpoints, "preempted", lambda _, done: done == step)


def test_exactly_one_compile_over_epochs_of_an_uneven_data_set(tmp_path, data, monkeypatch):
    """R10: 40 documents do not fill whole batches; two epochs."""
    compiles = []
    plain = CtrlTask.step
    monkeypatch.setattr(CtrlTask, "step", lambda *arguments: compiles.append(1) or plain(*arguments))
    recipe = tiny_recipe(steps=36)
    stream = TextBatches(open_split(data, "train"), recipe.data, LENGTH, 4, codes=CodeBook({}))
    assert stream.epoch_batches % 1
    assert stream.epoch_batches * 2 < 36
    train_ctrl(recipe, tmp_path / "run", data)
    assert len(compiles) == 1


@pytest.mark.parametrize("mesh", ["data=1,fsdp=2", "data=2"])
def test_loss_does_not_depend_on_the_mesh(tmp_path, data, mesh):
    recipe = tiny_recipe(steps=4, mesh=mesh)
    found = train_ctrl(recipe, tmp_path / "run", data)
    alone = run_python(data, tmp_path / "alone", recipe_steps=4, devices=1)
    np.testing.assert_allclose(found["loss"], alone["loss"], rtol=1e-4)


SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from helpers import tiny_recipe
from hayakuchi.runtime import set_up_jax
from hayakuchi.train.train_ctrl import train_ctrl
set_up_jax()
print(json.dumps(train_ctrl(tiny_recipe(**json.loads(sys.argv[4])), Path(sys.argv[2]), Path(sys.argv[3]))))
"""


def start_python(data, run, devices=1, environment=None, **train):
    """A training run in a process of its own."""
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tests, str(run), str(data), json.dumps(train)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)} | (environment or {}),
    )


def finish(process):
    with process:
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err


def run_python(data, run, recipe_steps, devices=1, environment=None, **train):
    code, out, err = finish(start_python(data, run, devices, environment, steps=recipe_steps, **train))
    assert code == 0, err
    return json.loads(out)


COMPILED = re.compile(r"Finished XLA compilation of (\S+) in ([0-9.e-]+) sec")


def test_second_start_compiles_nothing_over_a_second(tmp_path, data):
    """R11: the compilation cache of the first start serves the second. JAX's log tells what took how long."""
    environment = {"HAYAKUCHI_CACHE": str(tmp_path / "cache"), "JAX_LOG_COMPILES": "1"}
    losses, compiled = [], []
    for name in ("one", "two"):
        code, out, err = finish(start_python(data, tmp_path / name, environment=environment, steps=3))
        assert code == 0, err
        losses.append(json.loads(out)["loss"])
        compiled.append({found[1]: float(found[2]) for found in COMPILED.finditer(err)})
    first, second = compiled
    assert {"jit(step)", "jit(init)"} <= first.keys()
    # However quick the machine: compiled anew, the step would have left a second file.
    assert len(list((tmp_path / "cache" / "jax").glob("jit_step-*-cache"))) == 1
    assert max(second.values()) < 1, second
    assert losses[0] == losses[1]


def wait_for_steps(process, run):
    lines = run / "metrics.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") > 5):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_with_0_and_the_same_command_resumes(tmp_path, data, number):
    process = start_python(data, tmp_path / "run", steps=100_000)
    wait_for_steps(process, tmp_path / "run")
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 0, err
    assert json.loads(out)["stopped_by"] == number.name
    steps = json.loads(out)["steps"]
    assert (tmp_path / "run" / "checkpoints" / str(steps)).is_dir()
    recipe = tiny_recipe(steps=100_000)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, steps + 2)
        resumed = train_ctrl(recipe, tmp_path / "run", data)
    assert (resumed["first_step"], resumed["steps"]) == (steps, steps + 2)


def start_two(data, run, **train):
    """Two processes that train one run together, over loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    return [start_python(data, run, environment=shared | {"JAX_PROCESS_ID": str(index)}, **train) for index in range(2)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_of_two_processes_stops_both_after_the_same_step(tmp_path, data, number):
    processes = start_two(data, tmp_path / "run", steps=100_000)
    wait_for_steps(processes[0], tmp_path / "run")
    processes[1].send_signal(number)
    results = [finish(process) for process in processes]
    assert [code for code, _, _ in results] == [0, 0], results
    ends = [json.loads(out.splitlines()[-1]) for _, out, _ in results]
    assert {end["stopped_by"] for end in ends} == {"preemption"}
    [steps] = {end["steps"] for end in ends}
    assert (tmp_path / "run" / "checkpoints" / str(steps)).is_dir()


def test_two_processes_train_as_one(tmp_path, data):
    """R7, the whole way: two processes give the loss of one."""
    results = [finish(process) for process in start_two(data, tmp_path / "run", steps=4)]
    assert [code for code, _, _ in results] == [0, 0], results
    alone = run_python(data, tmp_path / "alone", recipe_steps=4)
    for _, out, _ in results:
        np.testing.assert_allclose(json.loads(out.splitlines()[-1])["loss"], alone["loss"], rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"steps": 12}, "steps"),
        ({"seed": 1}, "seed"),
        ({"batch": 8}, "batch"),
    ],
)
def test_another_recipe_is_refused_and_the_run_stays(tmp_path, data, change, culprit):
    run = tmp_path / "run"
    train_ctrl(tiny_recipe(steps=2), run, data)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=culprit):
        train_ctrl(tiny_recipe(**{"steps": 2, **change}), run, data)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_constant_schedule_can_be_made_longer(tmp_path, data):
    def recipe(steps):
        plain = tiny_recipe(steps=steps)
        return dataclasses.replace(plain, optimizer=dataclasses.replace(plain.optimizer, schedule="constant"))

    train_ctrl(recipe(2), tmp_path / "run", data)
    longer = train_ctrl(recipe(3), tmp_path / "run", data)
    assert (longer["first_step"], longer["steps"]) == (2, 3)


def test_another_data_set_is_refused(tmp_path, data):
    train_ctrl(tiny_recipe(steps=2), tmp_path / "run", data)
    other = random_dataset(tmp_path / "other", documents=30)
    with pytest.raises(UserError, match="another data set"):
        train_ctrl(tiny_recipe(steps=2), tmp_path / "run", other)


@pytest.mark.parametrize("sizes", [{}, {"vocabulary_size": 500}])
def test_r17_another_tokenizer_is_refused_by_its_hash(tmp_path, sizes):
    recipe = tiny_recipe()
    run, data = tmp_path / "run", tmp_path / "data"
    open_run(run, recipe, FILES, tmp_path / "first")
    other = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, **sizes))
    with pytest.raises(
        UserError, match=r"run/tokenizer\.model: SHA-256 \w{12}, but .*data/tokenizer\.model has \w{12}"
    ):
        open_run(run, other, {"tokenizer.model": b"other", "dataset.json": b"[]"}, data)


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_data_set_with_a_swapped_tokenizer_is_refused_before_a_run_is_made(tmp_path, damage):
    data = random_dataset(tmp_path / "data")
    (data / "tokenizer.model").write_bytes(damage)
    with pytest.raises(
        UserError, match=r"data/tokenizer\.model: not the tokenizer of .*data/dataset\.json: its SHA-256"
    ):
        train_ctrl(tiny_recipe(), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


FILES = {"tokenizer.model": b"model", "dataset.json": b"{}"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".partial")}


def open_run(*arguments):
    with session.open_run(*arguments):
        pass


def fill_disk(patch, name=""):
    """Writing a file whose name begins so fails, after it was opened and so emptied."""

    def failing(plain):
        def write(path, *arguments, **named):
            if not path.name.startswith(name):
                return plain(path, *arguments, **named)
            path.open("w").close()
            raise OSError(28, "No space left on device")

        return write

    for method in ("write_text", "write_bytes"):
        patch.setattr(Path, method, failing(getattr(Path, method)))


def test_a_disk_full_at_resumption_costs_nothing(tmp_path):
    run = tmp_path / "run"
    open_run(run, tiny_recipe(), FILES, Path("data"))
    before = contents(run)
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(UserError, match=r"run: cannot write there \(No space left"):
            open_run(run, tiny_recipe(log_every=7), FILES, Path("data"))
    assert contents(run) == before


@pytest.mark.parametrize("name", ["recipe.json", "tokenizer.model"])
def test_a_disk_full_at_the_start_is_told_and_the_same_command_starts_later(tmp_path, name):
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, name)
        with pytest.raises(UserError, match=r"run: cannot write there \(No space left"):
            open_run(run, tiny_recipe(), FILES, Path("data"))
    open_run(run, tiny_recipe(), FILES, Path("data"))
    assert contents(run).keys() == {"recipe.json", *FILES}


def test_a_run_of_a_recipe_of_another_name_is_told_first(tmp_path):
    open_run(tmp_path / "run", tiny_recipe(), FILES, Path("data"))
    other = dataclasses.replace(tiny_recipe(batch=8), name="ctrl-other")
    with pytest.raises(UserError, match="of recipe 'tiny', not 'ctrl-other'"):
        open_run(tmp_path / "run", other, FILES, Path("data"))


def test_a_folder_with_something_else_is_refused(tmp_path, data):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("important")
    with pytest.raises(UserError, match="something else"):
        train_ctrl(tiny_recipe(), tmp_path / "run", data)


@pytest.mark.parametrize(
    ("train", "message"),
    [({"batch": 3}, "multiple of devices"), ({"mesh": "data=3"}, "there are 2"), ({"mesh": "x=1"}, "x=1")],
)
def test_a_batch_or_mesh_that_does_not_fit(tmp_path, data, train, message):
    with pytest.raises(UserError, match=message):
        train_ctrl(tiny_recipe(**train), tmp_path / "run", data)
    assert not (tmp_path / "run").exists(), "the mended command would meet a run of another recipe"


def test_missing_data_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        train_ctrl(tiny_recipe(), tmp_path / "run", tmp_path / "nowhere")


@pytest.mark.parametrize(("checkpoint_every", "told", "kept"), [(4, "step 7: loss", 4), (3, "step 6: the state", 3)])
def test_nan_stops_the_run_and_is_never_saved(tmp_path, data, monkeypatch, checkpoint_every, told, kept):
    """R13, told by the loss of the step after, or by the state where a checkpoint comes first."""
    plain = CtrlTask.step

    def poisoned(self, state, batch, key):
        state, metrics = plain(self, state, batch, key)
        bad = jax.numpy.where(state.step > 5, jax.numpy.nan, 1.0)
        return state._replace(parameters=jax.tree.map(lambda x: x * bad, state.parameters)), metrics

    monkeypatch.setattr(CtrlTask, "step", poisoned)
    with pytest.raises(NonFiniteLossError, match=told) as caught:
        train_ctrl(tiny_recipe(steps=20, checkpoint_every=checkpoint_every), tmp_path / "run", data)
    arrays, record = saved_state(tmp_path / "run", tiny_recipe(steps=20))
    assert record["step"] == kept
    assert all(np.isfinite(array).all() for array in arrays.values())
    # What is kept is the step that gave the first bad state, whoever told of it.
    assert "--replay" in str(caught.value)
    found = read_dump(tmp_path / "run" / "nonfinite" / "step-6")
    assert int(found.state.step) == 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.state))
    if checkpoint_every == 3:
        return
    state, metrics = jax.jit(found.task().step)(found.state, found.batch, found.key)
    assert np.isfinite(metrics["loss"])
    assert not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.parameters))


def test_a_failing_save_is_an_error_that_names_the_path(tmp_path, data, monkeypatch):
    """R6: a disk that fills up in the second save; the first checkpoint stays whole."""
    import orbax.checkpoint as ocp

    plain = ocp.CheckpointManager.save

    def full(self, step, *arguments, **named):
        if step > 4:
            raise OSError(28, "No space left on device")
        return plain(self, step, *arguments, **named)

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.raises(CheckpointError, match=r"run/checkpoints.*No space left"):
        train_ctrl(tiny_recipe(steps=8, checkpoint_every=4), tmp_path / "run", data)
    _, record = saved_state(tmp_path / "run", tiny_recipe(steps=8))
    assert record["step"] == 4


def test_vocabulary_is_the_data_sets(tmp_path, data):
    recipe = tiny_recipe(steps=1)
    wider = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocabulary_size=9_999))
    train_ctrl(wider, tmp_path / "run", data)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["model"]["vocabulary_size"] == VOCABULARY
