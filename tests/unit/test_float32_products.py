"""What the text promises in float32 is computed so on every device: every such product asks for the highest precision.

Read off the traced steps, so that nothing is compiled. In a run of bfloat16 the model's own products have operands of
16 bits, so whatever still has float32 operands is promised; sums by products with ones are so in every run.
"""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from hayakuchi.config import DistillationConfig
from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.models import ops
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.models.vits.duration import StochasticDurations
from hayakuchi.models.vits.starts import Source
from hayakuchi.tracing.walk import walk
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.teacher import Teacher
from hayakuchi.train.vits_task import VitsTask
from helpers import tiny_recipe
from vits_models import small_config

_HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
_SUMS = {"column_sums", "_add_bias_backward", "_channel_sums"}


def ctrl_task(precision, **changes):
    recipe = tiny_recipe(precision=precision)
    recipe = replace(recipe, model=replace(recipe.model, **changes), distillation=DistillationConfig(soft_weight=0.5))
    teacher = jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(Ctrl(recipe.model, jax.random.key(0)), nnx.Param)))
    return CtrlTask(recipe, Teacher(recipe.model, teacher))


def vits_task(precision, **changes):
    recipe = VitsRecipe(model=small_config(**changes))
    return VitsTask(replace(recipe, train=replace(recipe.train, batch=2, precision=precision)), [Bucket(11, 48)], 1)


STEPS = {
    "ctrl": ctrl_task,
    "ctrl-factorised": lambda precision: ctrl_task(precision, embedding_width=8, scan_layers=True),
    "vits-hifigan": vits_task,
    "vits-mb-istft": lambda precision: vits_task(
        precision,
        decoder="mb_istft",
        subbands=4,
        istft_samples=4,
        istft_hop=2,
        upsample_rates=(2,),
        upsample_kernels=(4,),
        segment_samples=656,
        stochastic_durations=False,
    ),
}


@lru_cache(maxsize=1)
def products(name, precision, platform):
    """Every matrix product and convolution of a task's step and held-out loss."""
    task = STEPS[name](precision)
    key, [batch] = jax.random.key(0), task.batch_specs()
    with ops.traced_for(platform):
        state = jax.eval_shape(task.init, key, task.frozen)
        traced = [
            jax.make_jaxpr(task.step)(state, batch, key),
            jax.make_jaxpr(task.held_out_loss)(state.parameters, batch),
        ]
    return products_in(*traced)


def products_in(*traced):
    sites = [site for jaxpr in traced for site in walk(jaxpr)]
    return [site for site in sites if site.primitive in ("dot_general", "conv_general_dilated")]


def in_float32(sites):
    return [site for site in sites if all(value.aval.dtype == jnp.float32 for value in site.equation.invars)]


def not_highest(sites):
    return [str(site.frames[0]) for site in sites if site.equation.params["precision"] != _HIGHEST]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", STEPS)
def test_what_is_float32_in_a_bfloat16_run_is_float32_on_every_device(name, platform):
    found = products(name, "bfloat16", platform)
    promised = in_float32(found)
    assert 0 < len(promised) < len(found)
    assert not not_highest(promised)


@pytest.mark.parametrize("name", STEPS)
def test_sums_by_products_are_float32_in_a_float32_run(name):
    found = products(name, "float32", "cpu")
    sums = [site for site in found if any(frame.function.rpartition(".")[2] in _SUMS for frame in site.frames)]
    assert sums
    assert not not_highest(sums)
    # And the model's own products are as fast as the device has them: `--precision float32` promises no more.
    assert len(not_highest(found)) > 10


def test_sampled_durations_are_float32():
    durations = nnx.eval_shape(lambda: StochasticDurations(small_config(), Source(jax.random.key(0))))
    graph, state = nnx.split(durations)

    def sample(state, hidden, noise):
        mask = jnp.ones(hidden.shape[:2], bool)
        return nnx.merge(graph, state).log_durations(hidden, mask, noise, None)

    shapes = [jax.ShapeDtypeStruct((2, 5, width), jnp.float32) for width in (8, 2)]
    found = in_float32(products_in(jax.make_jaxpr(sample)(state, *shapes)))
    assert found
    assert not not_highest(found)
