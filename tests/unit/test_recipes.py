"""Every recipe: its golden text, and its whole step traced without computing anything.

UPDATE_GOLDEN=1 rewrites the golden files; a reviewer reads the difference.
"""

import json
import os
from pathlib import Path

import jax
import pytest
from flax import nnx

from hayakuchi import config
from hayakuchi.config import CtrlRecipe
from hayakuchi.config.recipe import Recipe
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.errors import UserError
from hayakuchi.models.sharding import make_mesh, spec_of
from hayakuchi.recipes import RECIPES, find_recipe
from hayakuchi.train.checkpoint import flatten
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.tasks import make_task

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
BUCKET = Bucket(symbols=64, frames=128)


def describe(recipe: Recipe) -> str:
    """Configuration, number of parameters, and each parameter's path, shape, initialiser and partition."""
    task = make_task(recipe, BUCKET)
    parameters = flatten(jax.eval_shape(task.init, jax.random.key(0)).parameters)
    mesh = make_mesh("fsdp=2")
    rules = task.rules()
    lines = [json.dumps(config.to_dict(recipe), indent=1), ""]
    lines.append(f"{sum(leaf.size for leaf in parameters.values()):,} parameters")
    for path, leaf in sorted(parameters.items()):
        if ".blocks." in f".{path}" and ".blocks.0." not in f".{path}":
            continue  # as block 0
        rule = max((name for name in rules if f".{path}".endswith(f".{name}")), key=len, default="-")
        spec = spec_of(path, leaf.shape, rules, mesh)
        lines.append(f"{path} {leaf.dtype}{list(leaf.shape)} rule={rule} spec={tuple(spec)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_as_reviewed(name):
    path, text = GOLDEN / f"{name}.txt", describe(RECIPES[name])
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "read the difference, then run with UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", RECIPES)
def test_the_whole_step_of_every_recipe_traces(name):
    task = make_task(RECIPES[name], BUCKET)
    state = jax.eval_shape(task.init, jax.random.key(0))
    after, metrics = jax.eval_shape(task.step, state, task.batch_specs()[0], jax.random.key(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert metrics.keys() >= {"loss", task.unit, "gradient_norm", "learning_rate"}
    assert {x.shape for x in metrics.values()} == {()}


def test_published_size_is_the_papers():
    """1.63 billion parameters (arXiv 1909.05858, section 3.2), cut after two digits."""
    state = jax.eval_shape(CtrlTask(RECIPES["ctrl-published"]).init, jax.random.key(0))
    total = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    assert int(total / 1e7) == 163


def test_initial_parameters_are_those_of_the_published_code():
    recipe = RECIPES["ctrl-nano"]
    parameters = CtrlTask(recipe).init(jax.random.key(0)).parameters
    width, inner = recipe.model.width, recipe.model.feed_forward
    assert abs(float(parameters["embedding"].std()) - 0.05) < 1e-3
    kernel = parameters["blocks"][1]["feed_forward"]["expand"]["kernel"]
    limit = (6 / (width + inner)) ** 0.5
    assert float(abs(kernel).max()) <= limit
    assert abs(float(kernel.std()) - limit / 3**0.5) < 1e-3
    flat = flatten(parameters)
    assert all(float(abs(leaf).max()) == 0 for path, leaf in flat.items() if path.endswith("bias"))
    assert all(float(leaf.min()) == float(leaf.max()) == 1 for path, leaf in flat.items() if path.endswith("scale"))
    assert float(abs(flat["blocks.0.attention.query.kernel"] - flat["blocks.1.attention.query.kernel"]).max()) > 0


def test_only_parameters_are_model_state():
    """Tree mode: no shared variables, no random state inside the modules."""
    model = CtrlTask(RECIPES["ctrl-nano"])._model(jax.random.key(0))
    _, parameters, rest = nnx.split(model, nnx.Param, ...)
    assert not jax.tree.leaves(rest)
    leaves = jax.tree.leaves(parameters)
    assert len({id(leaf) for leaf in leaves}) == len(leaves)


@pytest.mark.parametrize("name", RECIPES)
def test_json_round_trip(name, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(config.to_json(RECIPES[name]), encoding="utf-8")
    assert find_recipe(str(path)) == RECIPES[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layres": 3}', "unknown key 'layres'"),
        ('{"model": {"layers": "six"}}', "layers: expected int"),
        ('{"model": {"layers": true}}', "layers: expected int"),
        ('{"model": {"width": 7}}', "width=7"),
        ('{"train": {"precision": "int8"}}', "int8"),
        ('{"train": {"batch": 0}}', "batch=0"),
        ('{"train": {"seed": -1}}', "seed=-1"),
        ('{"optimizer": {"beta2": 1}}', "beta2=1"),
        ('{"optimizer": {"weight_decay": NaN}}', "weight_decay=nan"),
        ('{"optimizer": {"epsilon": 0}}', "epsilon=0"),
        ('{"model": 3}', "model: expected an object"),
        ("[1]", "expected an object"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_a_bad_recipe_file_is_told(tmp_path, text, message):
    path = tmp_path / "recipe.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as told:
        find_recipe(str(path))
    assert message in str(told.value)


def test_a_recipe_file_may_leave_out_defaults(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text('{"name": "mine", "optimizer": {"learning_rate": 1}}', encoding="utf-8")
    assert find_recipe(str(path)).optimizer.learning_rate == 1.0
    assert find_recipe(str(path)).model == CtrlRecipe().model
