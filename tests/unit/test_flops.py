"""The count of operations: by hand, by XLA where that counts right, and by its laws."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from hayakuchi.config import CtrlConfig, CtrlRecipe, TrainConfig
from hayakuchi.models.convolutions import grouped_convolution, transposed_convolution
from hayakuchi.models.sharding import make_mesh
from hayakuchi.plan.flops import Flops, count_flops
from hayakuchi.recipes import VITS_NANO
from hayakuchi.train.tasks import make_task

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
PRODUCT = 2 * 4 * 8 * 8


def flops_of(function, *shapes):
    return count_flops(jax.make_jaxpr(function)(*shapes))


def step_flops(recipe):
    task = make_task(recipe)
    key = jax.random.key(0)
    return flops_of(task.step, jax.eval_shape(task.init, key, task.frozen), task.batch_specs()[0], key)


def ctrl(batch=4, remat="none", accumulate=1, **sizes):
    plain = {"vocabulary_size": 512, "length": 64, "layers": 4, "width": 256, "heads": 4, "feed_forward": 1024}
    settings = TrainConfig(batch=batch, remat=remat, accumulate=accumulate)
    return CtrlRecipe(name="tiny", model=CtrlConfig(**{**plain, **sizes}), train=settings)


def by_hand(recipe):
    """The products of a training step: those of the forward pass, each with two of the same size for its gradients."""
    model, rows = recipe.model, recipe.train.batch * recipe.model.length
    dense = 4 * model.width**2 + 2 * model.width * model.feed_forward
    attention = 2 * model.length * model.width  # each position's scores, and its weighted sum
    head = model.width * model.vocabulary_size
    return 3 * 2 * rows * (model.layers * (dense + attention) + head)


@pytest.mark.parametrize("recipe", [ctrl(), ctrl(batch=8, length=128), ctrl(layers=1, vocabulary_size=4096)])
def test_ctrl_costs_what_the_formula_says(recipe):
    assert step_flops(recipe).products == pytest.approx(by_hand(recipe), rel=0.01)


@pytest.mark.parametrize("sharing", ["none", "all"])
def test_a_scanned_model_costs_what_the_unrolled_one_does(sharing):
    unrolled, scanned = (step_flops(ctrl(scan_layers=scan, sharing=sharing)) for scan in (False, True))
    assert scanned.products == unrolled.products
    assert scanned.others == pytest.approx(unrolled.others, rel=0.02)
    assert not scanned.open_loops


def test_sharing_saves_no_products_and_micro_batches_cost_none():
    assert step_flops(ctrl(sharing="all")).products == step_flops(ctrl()).products
    assert step_flops(ctrl(accumulate=4)).products == step_flops(ctrl()).products


def test_recomputation_costs_what_the_gradient_needs_again():
    """Each block's forward pass but for its last product, whose result no gradient needs; not the head."""
    plain, again, dots = (step_flops(ctrl(remat=remat)).products for remat in ("none", "full", "dots"))
    model, rows = ctrl().model, 4 * 64
    block = 4 * model.width**2 + model.width * model.feed_forward + 2 * model.length * model.width
    assert again - plain == 2 * rows * model.layers * block
    assert plain < dots < again  # what "dots" keeps are the dense products, not those of the attention


def test_products_and_elementwise_work_are_told_apart():
    found = flops_of(lambda x, w: jnp.tanh(x @ w) + 1, X, W)
    assert found == Flops(products=PRODUCT, others=2 * 4 * 8)
    assert found.total == PRODUCT + 64
    assert flops_of(lambda x: jnp.sum(x, axis=1), X) == Flops(others=32)
    assert flops_of(lambda x: jnp.arange(10) + x.shape[0], X) == Flops()  # integers are not floating-point


def test_batched_products_count_each():
    shapes = jax.ShapeDtypeStruct((3, 5, 7), jnp.float32), jax.ShapeDtypeStruct((3, 7, 2), jnp.float32)
    assert flops_of(jnp.matmul, *shapes).products == 2 * 3 * 5 * 7 * 2


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint])
def test_what_is_called_is_followed(wrap):
    assert flops_of(wrap(lambda x, w: x @ w), X, W) == Flops(products=PRODUCT)


def test_own_gradient_rules_are_followed():
    @jax.custom_vjp
    def product(x, w):
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, grad: (grad @ kept[1].T, kept[0].T @ grad))
    assert flops_of(product, X, W) == Flops(products=PRODUCT)
    assert flops_of(lambda x, w: jax.vjp(product, x, w)[1](x), X, W).products == 3 * PRODUCT


def test_loops_count_by_their_trips():
    def times(n, x, w):
        return lax.fori_loop(0, n, lambda _, x: x @ w, x)

    assert flops_of(partial(times, 5), X, W) == Flops(products=5 * PRODUCT)
    nested = flops_of(lambda x, w: lax.scan(lambda x, _: (times(3, x, w), None), x, length=7)[0], X, W)
    assert nested == Flops(products=21 * PRODUCT)
    # How often this one turns is known when it runs: once, and told.
    assert flops_of(times, jax.ShapeDtypeStruct((), jnp.int32), X, W) == Flops(products=PRODUCT, open_loops=1)


def test_the_dearest_branch_counts():
    def choose(x, w):
        return lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert flops_of(choose, X, W).products == 2 * PRODUCT


def test_each_device_of_a_shard_map_counts():
    mesh = make_mesh("data=2")
    spec = P(("data", "fsdp"))
    function = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(spec, P()), out_specs=spec)
    assert flops_of(function, X, W).products == PRODUCT


CONVOLUTIONS = {
    "plain": {"padding": [(2, 2)]},
    "strided": {"window_strides": (3,), "padding": [(4, 1)]},
    "dilated": {"rhs_dilation": (3,), "padding": [(6, 6)]},
    "transposed": {"lhs_dilation": (4,), "padding": [(4, 4)]},
    "cut": {"padding": [(-2, 3)]},
    "grouped": {"padding": [(2, 2)], "feature_group_count": 4},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_count_as_xla_counts_them(name):
    options = {"window_strides": (1,), **CONVOLUTIONS[name]}
    inputs = 8 // options.get("feature_group_count", 1)
    x, kernel = jax.ShapeDtypeStruct((2, 40, 8), jnp.float32), jax.ShapeDtypeStruct((5, inputs, 12), jnp.float32)
    function = partial(lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"), **options)
    expected = jax.jit(function).lower(x, kernel).cost_analysis()["flops"]
    assert flops_of(function, x, kernel).products == expected

    # A gradient pairs the same numbers, each in one more product for the input and one for the kernel.
    def gradients(x, kernel):
        return jax.vjp(function, x, kernel)[1](jnp.ones(jax.eval_shape(function, x, kernel).shape))

    assert flops_of(gradients, x, kernel).products == 3 * expected


def test_two_axes_count_as_xla_counts_them():
    x, kernel = jax.ShapeDtypeStruct((2, 9, 20, 3), jnp.float32), jax.ShapeDtypeStruct((3, 5, 3, 4), jnp.float32)
    function = partial(
        lax.conv_general_dilated,
        window_strides=(2, 3),
        padding=[(1, 1), (2, 0)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    assert flops_of(function, x, kernel).products == jax.jit(function).lower(x, kernel).cost_analysis()["flops"]


def test_rewritten_convolutions_cost_what_they_compute():
    """The polyphase form computes one position more, cut off again; the form in patches has no more than its taps."""
    x, kernel = jax.ShapeDtypeStruct((2, 64, 8), jnp.float32), jax.ShapeDtypeStruct((16, 4, 8), jnp.float32)
    found = flops_of(partial(transposed_convolution, stride=8, padding=4), x, kernel).products
    # 65 positions of two taps and eight phases; its zeros at the ends are in its input, and so count.
    assert found == 2 * 2 * (65 * 2) * 8 * 8 * 4
    grouped = jax.ShapeDtypeStruct((8, 2, 12), jnp.float32)
    found = flops_of(partial(grouped_convolution, groups=4, stride=4, padding=2), x, grouped).products
    assert found == 2 * 2 * 16 * 8 * 2 * 12


def test_fourier_transforms_are_no_products():
    found = flops_of(jnp.fft.rfft, jax.ShapeDtypeStruct((3, 64), jnp.float32))
    assert found == Flops(others=round(5 * 3 * 64 * 6 / 2))


def test_a_voice_is_counted_whole():
    """Twice the batch costs twice as much, but for the optimiser."""
    once, twice = (step_flops(dataclasses.replace(VITS_NANO, train=TrainConfig(batch=batch))) for batch in (2, 4))
    assert twice.products == pytest.approx(2 * once.products, rel=0.01)
    assert not twice.open_loops
    assert once.products > 1e9
