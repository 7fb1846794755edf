"""`--watch`: statistics of each module, of the very numbers that a step computes with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.models.sharding import make_mesh
from hayakuchi.recipes import find_recipe
from hayakuchi.train import ctrl_task
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.metrics import Reporter
from hayakuchi.train.tasks import make_task
from hayakuchi.train.train_ctrl import train_ctrl
from hayakuchi.train.watch import Watch
from helpers import random_dataset, tiny_recipe


def arguments(task):
    state = jax.jit(task.init)(jax.random.key(0))
    return state, task.example_batch(task.batch_specs()[0]), jax.random.key(1)


def rms(values):
    return float(np.sqrt(np.mean(np.concatenate([np.ravel(value) for value in values]) ** 2)))


@pytest.mark.parametrize("train", [{}, {"accumulate": 2}, {"remat": "full"}, {"precision": "bfloat16"}], ids=str)
def test_statistics_are_those_of_the_step(train):
    task = CtrlTask(tiny_recipe(**train))
    state, batch, key = arguments(task)
    watch = Watch(task, make_mesh("data=1", jax.devices()[:1]), 1)
    found = watch(state, batch, key)
    plain = {name.rpartition("/")[0] for name in found}
    assert {"activations/ctrl/blocks/0/attention", "activations/ctrl/norm", "gradients/blocks/1/feed_forward"} <= plain
    assert all(np.isfinite(value) for value in found.values())
    assert all(value == 0 for name, value in found.items() if name.endswith("not_finite"))
    gradients = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctrl_task, "tap", gradients.__setitem__)
        jax.eval_shape(lambda *values: task.step(*values) and gradients["gradients"], state, batch, key)
        gradients = jax.jit(lambda *values: (task.step(*values), gradients["gradients"])[1])(state, batch, key)
    for name, part in (("norm", gradients["norm"]), ("blocks/1/feed_forward", gradients["blocks"][1]["feed_forward"])):
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(part)]
        wanted = [found[path] for path in found if path.startswith(f"gradients/{name}") and path.endswith("largest")]
        assert max(wanted) == pytest.approx(max(np.abs(leaf).max() for leaf in leaves), rel=2e-2)
    leaves = jax.tree.leaves(gradients["norm"])
    assert found["gradients/norm/rms"] == pytest.approx(rms(leaves), rel=2e-2)
    if train:
        return
    model = nnx.merge(task.graph, state.parameters)
    hidden = model.hidden(
        *map(jnp.asarray, (batch.tokens, batch.segments, batch.positions)), jax.random.fold_in(key, 0)
    )
    assert found["activations/ctrl/norm/rms"] == pytest.approx(rms([hidden]), rel=1e-4)
    assert found["activations/ctrl/norm/largest"] == pytest.approx(float(jnp.max(jnp.abs(hidden))), rel=1e-4)


def test_what_is_not_finite_is_counted():
    task = CtrlTask(tiny_recipe())
    state, batch, key = arguments(task)
    state.parameters["blocks"][1]["feed_forward"]["contract"]["bias"] += jnp.inf
    found = Watch(task, make_mesh("data=1", jax.devices()[:1]), 1)(state, batch, key)
    assert found["activations/ctrl/blocks/0/feed_forward/not_finite"] == 0
    assert found["activations/ctrl/blocks/1/feed_forward/not_finite"] == 4 * 16 * 16


def test_a_voice_is_watched_too():
    recipe = find_recipe("vits-nano")
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, batch=2))
    task = make_task(recipe)
    found = Watch(task, make_mesh("data=1", jax.devices()[:1]), 1)(*arguments(task))
    names = {"/".join(name.split("/")[:3]) for name in found}
    assert {"activations/vits/decoder", "activations/discriminators/periods"} <= names
    assert {"gradients/generator/decoder", "gradients/discriminators/scale"} <= names
    assert all(np.isfinite(value) for value in found.values())


def test_a_run_writes_them_every_few_steps_and_computes_the_same(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    data = random_dataset(tmp_path / "data")
    plain = train_ctrl(tiny_recipe(steps=7), tmp_path / "plain", data)
    written = {}
    monkeypatch.setattr(Reporter, "watched", lambda self, step, values: written.setdefault(step, {}).update(values))
    watched = train_ctrl(tiny_recipe(steps=7, watch=3), tmp_path / "watched", data)
    assert plain["loss"] == watched["loss"]
    assert [step for step, values in written.items() if "gradients/norm/rms" in values] == [1, 4, 7]
