"""Every operation of a step carries the path of its module."""

import dataclasses

import jax
import pytest

from hayakuchi.recipes import find_recipe
from hayakuchi.tracing.walk import walk
from hayakuchi.train.tasks import make_task


def paths(recipe):
    task = make_task(recipe)
    state = jax.eval_shape(task.init, jax.random.key(0), None)
    closed = jax.make_jaxpr(task.step)(state, task.batch_specs()[0], jax.random.key(0))
    return [("/".join(site.modules), site.direction) for site in walk(closed)]


def with_scan(recipe):
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, scan_layers=True))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            find_recipe("ctrl-nano"),
            ["ctrl/blocks/0/attention/query", "ctrl/blocks/2/feed_forward/contract", "ctrl/norm", "optimizer"],
        ),
        (with_scan(find_recipe("ctrl-nano")), ["ctrl/blocks", "ctrl/norm", "optimizer"]),
        (
            find_recipe("vits-nano"),
            [
                *(
                    "vits/text_encoder/layer",
                    "vits/posterior_encoder/wavenet",
                    "vits/decoder/blocks/0",
                    "vits/durations",
                ),
                *("discriminators/periods", "discriminators/scale", "losses", "spectrogram", "optimizer/generator"),
                *("optimizer/discriminators", "average"),
            ],
        ),
    ],
    ids=["ctrl", "ctrl scanned", "vits"],
)
def test_operations_carry_the_path_of_their_module(recipe, expected):
    found = paths(recipe)
    of_gradient = [path for path, direction in found if direction != "other"]
    assert sum(bool(path) for path in of_gradient) > 0.95 * len(of_gradient)
    names = {path for path, _ in found}
    for path in expected:
        assert any(name == path or name.startswith(f"{path}/") for name in names), (path, sorted(names))
    for direction in ("forward", "backward"):
        assert any(expected[0].split("/", 1)[1] in path for path, way in found if way == direction)
