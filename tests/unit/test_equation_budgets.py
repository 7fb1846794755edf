"""How many equations the step of each recipe may have: what it takes to compile, and what an unrolled loop costs.

`hayakuchi inspect RECIPE` says where they are. Raise a budget only for a reason that the commit tells.
"""

import jax
import pytest

from hayakuchi.recipes import RECIPES
from hayakuchi.train.tasks import make_task
from helpers import count_equations

BUDGETS = {
    "ctrl-nano": 2_700,
    "ctrl-small": 5_100,
    "ctrl-base": 9_800,
    "ctrl-published": 37_000,
    "vits-nano": 5_400,
    "vits-jvs": 8_800,
    "vits-jsut": 8_700,
    "vits-ljs": 8_700,
    "vits-vctk": 8_800,
}


def test_every_recipe_has_a_budget():
    assert BUDGETS.keys() == RECIPES.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_the_step_stays_within_its_budget(name):
    task = make_task(RECIPES[name])
    state = jax.eval_shape(task.init, jax.random.key(0), None)
    count = count_equations(jax.make_jaxpr(task.step)(state, task.batch_specs()[0], jax.random.key(0)))
    assert 0.85 * BUDGETS[name] < count <= BUDGETS[name], "much below it the budget guards nothing: lower it"
