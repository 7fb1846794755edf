"""Learning from a larger run: the loss, what the student starts from, and runs that stand on their own."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi import cli
from hayakuchi.config import CtrlConfig, DistillationConfig
from hayakuchi.config.recipe import read_recipe
from hayakuchi.errors import UserError
from hayakuchi.infer.run import load_run
from hayakuchi.models import ops
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.train.checkpoint import Checkpoints, flatten
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.teacher import Teacher, started
from hayakuchi.train.train_ctrl import train_ctrl
from helpers import random_dataset, tiny_recipe


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(("soft_weight", "temperature"), [(0.0, 2.0), (0.3, 1.0), (0.7, 2.5), (1.0, 2.0)])
def test_the_loss_and_its_gradients_equal_autodiff(chunks, soft_weight, temperature):
    batch, length, width, vocabulary = 2, 6, 8, 11
    x, table, bias = normal(0, batch, length, width), normal(1, vocabulary, width), normal(2, vocabulary)
    teacher = ops.Teacher(normal(3, batch, length, 5), normal(4, vocabulary, 5), normal(5, vocabulary))
    labels = jax.random.randint(jax.random.key(6), (batch, length), 0, vocabulary)
    weights = jax.random.uniform(jax.random.key(7), (batch, length)).at[0, 2].set(0)

    def plain(x, table, bias):
        scores = x @ table.T + bias
        told = teacher.hidden @ teacher.embedding.T + teacher.bias
        hard = -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1)[..., 0]
        q = jax.nn.softmax(told / temperature)
        soft = jnp.sum(q * (jnp.log(q) - jax.nn.log_softmax(scores / temperature)), -1) * temperature**2
        return jnp.sum(weights * ((1 - soft_weight) * hard + soft_weight * soft))

    def ours(x, table, bias):
        return ops.distilled_loss(x, table, bias, labels, weights, teacher, soft_weight, temperature, chunks)[0]

    value, found = jax.value_and_grad(lambda *each: 2.5 * ours(*each), argnums=(0, 1, 2))(x, table, bias)
    expected, wanted = jax.value_and_grad(lambda *each: 2.5 * plain(*each), argnums=(0, 1, 2))(x, table, bias)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(ours(x, table, bias), plain(x, table, bias), rtol=1e-5)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=1e-5)
    _, hard = ops.distilled_loss(x, table, bias, labels, weights, teacher, soft_weight, temperature, chunks)
    np.testing.assert_allclose(hard, ops.weighted_loss(x, table, bias, labels, weights, chunks), rtol=1e-6)


def config(**changes):
    sizes = {"vocabulary_size": 50, "length": 12, "layers": 4, "width": 16, "heads": 2, "feed_forward": 24}
    return CtrlConfig(**{**sizes, **changes})


def parameters_of(settings, seed):
    return nnx.to_pure_dict(nnx.state(Ctrl(settings, jax.random.key(seed)), nnx.Param))


@pytest.mark.parametrize("student_scan", [False, True])
@pytest.mark.parametrize(
    "teacher_kind", [{}, {"scan_layers": True}, {"sharing": "attention", "sharing_groups": 2}, {"sharing": "all"}]
)
def test_the_student_starts_as_every_other_layer(student_scan, teacher_kind):
    big, small = config(**teacher_kind), config(layers=2, scan_layers=student_scan)
    teacher = parameters_of(big, 1)
    found = started(parameters_of(small, 2), small, teacher, big)
    np.testing.assert_array_equal(found["embedding"], teacher["embedding"])
    np.testing.assert_array_equal(found["norm"]["scale"], teacher["norm"]["scale"])
    from hayakuchi.models.ctrl_blocks import unshared

    theirs = unshared(teacher, big)["blocks"]
    for layer, source in ((0, 0), (1, 2)):
        for part, name in (("attention", "query"), ("feed_forward", "contract")):
            want = theirs[part][name]["kernel"][source] if big.scan_layers else theirs[source][part][name]["kernel"]
            blocks = found["blocks"]
            got = blocks[part][name]["kernel"][layer] if student_scan else blocks[layer][part][name]["kernel"]
            np.testing.assert_array_equal(got, want)


def test_what_has_another_size_stays_as_it_was():
    big, small = config(), config(layers=2, width=8)
    own = parameters_of(small, 2)
    found = started(own, small, parameters_of(big, 1), big)
    for path, leaf in flatten(own).items():
        if path != "vocabulary_bias":
            np.testing.assert_array_equal(flatten(found)[path], leaf)


def test_a_student_equal_to_its_teacher_has_nothing_to_learn():
    recipe = tiny_recipe()
    recipe = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, dropout=0.0),
        distillation=DistillationConfig(teacher="somewhere", soft_weight=1.0),
    )
    parameters = (
        CtrlTask(dataclasses.replace(recipe, distillation=DistillationConfig())).init(jax.random.key(3)).parameters
    )
    task = CtrlTask(recipe, Teacher(recipe.model, parameters))
    state = task.init(jax.random.key(0), task.frozen)
    batch = jax.tree.map(jnp.asarray, task.example_batch(task.batch_specs()[0]))
    _, metrics = jax.jit(task.step)(state, batch, jax.random.key(1))
    assert float(metrics["gradient_norm"]) < 1e-5
    assert abs(float(metrics["distillation_loss"])) < 1e-5
    # "loss" is that of the text, of a step as of what is held out.
    held_out = jax.jit(task.held_out_loss)(state.parameters, batch)
    assert float(metrics["loss"]) == pytest.approx(float(held_out["loss"] / held_out["tokens"]), rel=1e-5)
    other = state._replace(parameters=jax.tree.map(lambda x: x + 0.01, state.parameters))
    _, metrics = jax.jit(task.step)(other, batch, jax.random.key(1))
    assert float(metrics["gradient_norm"]) > 1e-4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return random_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, data):
    run = tmp_path_factory.mktemp("runs") / "teacher"
    train_ctrl(tiny_recipe(steps=4), run, data)
    return run


def student_recipe(teacher, **train):
    plain = tiny_recipe(**train)
    return dataclasses.replace(
        plain,
        model=dataclasses.replace(plain.model, layers=1),
        distillation=DistillationConfig(teacher=str(teacher)),
    )


def final(run):
    with Checkpoints(run / "checkpoints", 3, read_only=True) as checkpoints:
        names = checkpoints._manager.item_metadata(checkpoints._manager.latest_step())["state"].tree
    return set(names), flatten(nnx.to_pure_dict(nnx.state(load_model(run), nnx.Param)))


def load_model(run):
    from hayakuchi.train.restore import restore_ctrl

    recipe, parameters, _ = restore_ctrl(run)
    graph, _ = nnx.split(Ctrl(recipe.model, jax.random.key(0)), nnx.Param)
    return nnx.merge(graph, parameters)


def test_a_run_keeps_its_teacher_and_goes_on_without_the_original(tmp_path, data, teacher):
    away = tmp_path / "away"
    shutil.copytree(teacher, away)
    train_ctrl(student_recipe(away, steps=6, checkpoint_every=3), tmp_path / "whole", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "preempted", lambda _, done: done == 3)
        half = train_ctrl(student_recipe(away, steps=6, checkpoint_every=3), tmp_path / "halves", data)
    assert half["steps"] == 3
    shutil.rmtree(away)
    done = train_ctrl(student_recipe(away, steps=6, checkpoint_every=3), tmp_path / "halves", data)
    assert done["steps"] == 6
    names, whole = final(tmp_path / "whole")
    _, halves = final(tmp_path / "halves")
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, halves[name], err_msg=name)
    assert not any("frozen" in name for name in names), "a checkpoint holds what is trained only"
    assert read_recipe(tmp_path / "whole" / "teacher" / "recipe.json").name == "tiny"


def test_a_copy_that_was_cut_short_is_made_again(tmp_path, data, teacher):
    run = tmp_path / "run"
    recipe = student_recipe(teacher, steps=1)
    train_ctrl(recipe, run, data)
    (run / "teacher" / "recipe.json").unlink()
    assert train_ctrl(dataclasses.replace(recipe), run, data)["steps"] == 1
    assert (run / "teacher" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "tokenizer.model").write_bytes(b"other"), "another tokenizer"),
        (lambda run: (run / "tokenizer.model").unlink(), "cannot read it"),
        (lambda run: (run / "recipe.json").unlink(), "not a run directory"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "no checkpoint yet"),
    ],
)
def test_what_is_no_teacher_is_refused(tmp_path, data, teacher, spoil, message):
    copy = tmp_path / "teacher"
    shutil.copytree(teacher, copy)
    spoil(copy)
    with pytest.raises(UserError, match=message):
        train_ctrl(student_recipe(copy, steps=1), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_control_codes_is_refused(tmp_path, data, teacher):
    copy = tmp_path / "teacher"
    shutil.copytree(teacher, copy)
    text = (copy / "dataset.json").read_text(encoding="utf-8").replace('"odd"', '"strange"')
    (copy / "dataset.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="other control codes"):
        train_ctrl(student_recipe(copy, steps=1), tmp_path / "run", data)


def test_the_command_line_takes_a_teacher(tmp_path, data, teacher, capsys):
    recipe = tmp_path / "small.json"
    from hayakuchi import config as configs

    recipe.write_text(configs.to_json(student_recipe("", steps=2)), encoding="utf-8")
    words = ["train", str(recipe), str(tmp_path / "run"), "--data", str(data), "--teacher", str(teacher)]
    assert cli.main([*words, "--soft-weight", "0.8"]) == 0
    assert read_recipe(tmp_path / "run" / "recipe.json").distillation == DistillationConfig(str(teacher), 0.8, 2.0)
    assert "step 2" in capsys.readouterr().out


def test_the_student_is_a_model_like_any_other(tmp_path, data, teacher, monkeypatch):
    run = tmp_path / "run"
    train_ctrl(student_recipe(teacher, steps=2), run, data)
    monkeypatch.setattr("hayakuchi.infer.run.Tokenizer.load", lambda _: None)  # the data set's is a stand-in
    assert load_run(run).model.config.layers == 1
