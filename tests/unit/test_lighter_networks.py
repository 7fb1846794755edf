"""Layers that share parameters, factorised embeddings, recomputation: what they are equal to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.config import CtrlConfig
from hayakuchi.errors import UserError
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.models.ctrl_blocks import unshared
from hayakuchi.train.checkpoint import flatten

SIZES = {"vocabulary_size": 50, "length": 12, "layers": 4, "width": 16, "heads": 2, "feed_forward": 24}
WAYS = [("all", 1), ("all", 2), ("attention", 1), ("feed_forward", 2), ("all", 4)]


def config(**changes):
    return CtrlConfig(**{**SIZES, "dropout": 0.0, **changes})


def batch(rows=2):
    tokens = jax.random.randint(jax.random.key(7), (rows, SIZES["length"]), 0, SIZES["vocabulary_size"])
    return tokens, jnp.ones_like(tokens), jnp.broadcast_to(jnp.arange(SIZES["length"]), tokens.shape)


def parameters_of(settings):
    return nnx.to_pure_dict(nnx.state(Ctrl(settings, jax.random.key(1)), nnx.Param))


def loss_and_gradient(settings, parameters, remat="none", key=None):
    graph, _ = nnx.split(Ctrl(settings, jax.random.key(0), remat=remat), nnx.Param)
    tokens, segments, positions = batch()

    def loss(parameters):
        model = nnx.merge(graph, parameters)
        return model.loss(
            model.hidden(tokens, segments, positions, key), jnp.roll(tokens, -1, 1), jnp.ones(tokens.shape)
        )

    return jax.value_and_grad(loss)(parameters)


@pytest.mark.parametrize(("sharing", "groups"), WAYS)
@pytest.mark.parametrize("scan", [False, True])
def test_a_model_that_shares_equals_one_with_equal_layers(sharing, groups, scan):
    """Same loss; and the gradient of what layers share is the sum of their own gradients."""
    settings = config(sharing=sharing, sharing_groups=groups, scan_layers=scan)
    plain = config(scan_layers=scan)
    parameters = parameters_of(settings)
    loss, gradient = loss_and_gradient(settings, parameters)
    expected, each = loss_and_gradient(plain, unshared(parameters, settings))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    found, each = flatten(gradient), flatten(each)
    size = settings.layers // groups
    for path, array in found.items():
        if not path.startswith("blocks"):
            want = each[path]
        elif scan:
            want = each[path].reshape(len(array), -1, *array.shape[1:]).sum(1)
        else:
            _, index, *rest = path.split(".")
            part = rest[0].removesuffix("_norm")
            layers = range(int(index), int(index) + (size if sharing in ("all", part) else 1))
            want = sum(each[".".join(["blocks", str(layer), *rest])] for layer in layers)
        np.testing.assert_allclose(array, want, atol=2e-5 * max(1.0, float(jnp.abs(want).max())), err_msg=path)


@pytest.mark.parametrize(("sharing", "groups"), WAYS)
def test_scanned_and_listed_models_share_alike(sharing, groups):
    settings = [config(sharing=sharing, sharing_groups=groups, scan_layers=scan) for scan in (False, True)]
    listed, scanned = (Ctrl(each, jax.random.key(1)) for each in settings)
    np.testing.assert_allclose(listed.hidden(*batch()), scanned.hidden(*batch()), atol=1e-5)
    key = jax.random.key(3)
    noisy = [Ctrl(config(**{**vars(each), "dropout": 0.5}), jax.random.key(1)) for each in settings]
    np.testing.assert_allclose(*(model.hidden(*batch(), key) for model in noisy), atol=1e-5)
    counts = [sum(leaf.size for leaf in jax.tree.leaves(parameters_of(each))) for each in settings]
    assert counts[0] == counts[1]


def test_parameters_by_kind_of_sharing():
    """A block has 4 (D^2 + D) + 2 D of attention and 2 D F + F + D + 2 D of feed-forward."""
    width, inner, layers = SIZES["width"], SIZES["feed_forward"], SIZES["layers"]
    attention, transform = 4 * (width**2 + width) + 2 * width, 2 * width * inner + inner + 3 * width
    rest = SIZES["vocabulary_size"] * (width + 1) + 2 * width
    expected = {
        ("none", 1): layers * (attention + transform),
        ("all", 1): attention + transform,
        ("all", 2): 2 * (attention + transform),
        ("attention", 1): attention + layers * transform,
        ("feed_forward", 2): layers * attention + 2 * transform,
    }
    for (sharing, groups), blocks in expected.items():
        parameters = parameters_of(config(sharing=sharing, sharing_groups=groups))
        assert sum(leaf.size for leaf in jax.tree.leaves(parameters)) == blocks + rest


@pytest.mark.parametrize("scan", [False, True])
def test_factorised_embedding_is_a_product(scan):
    """Logits of the factorised model by its parts: E narrow(h) + b; and [V, D] became V E + two maps."""
    settings = config(embedding_width=6, scan_layers=scan)
    model = Ctrl(settings, jax.random.key(1))
    parameters = parameters_of(settings)
    assert parameters["embedding"].shape == (50, 6)
    plain = {**parameters_of(config(scan_layers=scan)), "blocks": parameters["blocks"], "norm": parameters["norm"]}
    widen, narrow = parameters["widen"], parameters["narrow"]
    root = settings.width**0.5
    # An unfactorised model reads the same numbers from the product, its bias divided by the scale of the embedding.
    plain["embedding"] = parameters["embedding"] @ widen["kernel"] + widen["bias"] / root
    graph, _ = nnx.split(Ctrl(config(scan_layers=scan), jax.random.key(0)), nnx.Param)
    hidden = nnx.merge(graph, plain).hidden(*batch())
    expected = (hidden @ narrow["kernel"] + narrow["bias"]) @ parameters["embedding"].T + parameters["vocabulary_bias"]
    np.testing.assert_allclose(model.logits(model.hidden(*batch())), expected, atol=2e-5)


@pytest.mark.parametrize("remat", ["full", "dots"])
@pytest.mark.parametrize("kind", [{}, {"scan_layers": True}, {"sharing": "all", "scan_layers": True}])
def test_recomputation_changes_no_gradient(remat, kind):
    settings = config(**kind, dropout=0.3)
    parameters, key = parameters_of(settings), jax.random.key(5)
    for found, expected in zip(
        jax.tree.leaves(loss_and_gradient(settings, parameters, remat, key)),
        jax.tree.leaves(loss_and_gradient(settings, parameters, "none", key)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_recomputation_keeps_less(scan):
    """Bytes that the forward pass leaves for the backward pass: none > dots > full."""
    settings = config(layers=8, width=64, feed_forward=256, length=64, scan_layers=scan)
    found = {remat: kept_bytes(settings, remat) for remat in ("none", "dots", "full")}
    assert found["none"] > 1.2 * found["dots"] > 1.5 * found["full"], found


def loss_of(settings, remat):
    """A loss as a function of parameters, and these."""
    graph, parameters = nnx.split(Ctrl(settings, jax.random.key(0), remat=remat), nnx.Param)
    tokens = jnp.zeros((8, 64), jnp.int32)

    def loss(parameters):
        model = nnx.merge(graph, parameters)
        return model.loss(model.hidden(tokens, tokens, tokens), tokens, jnp.ones(tokens.shape))

    return loss, parameters


def kept_bytes(settings, remat):
    loss, parameters = loss_of(settings, remat)
    _, pull_back = jax.eval_shape(lambda parameters: jax.vjp(loss, parameters), parameters)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull_back))


def test_recomputation_saves_memory_where_the_compiler_keeps_the_parts_apart():
    settings = config(layers=8, width=64, feed_forward=256, length=64, scan_layers=True)
    found = {}
    for remat in ("none", "dots", "full"):
        loss, parameters = loss_of(settings, remat)
        compiled = jax.jit(jax.grad(loss)).lower(parameters).compile()
        found[remat] = compiled.memory_analysis().temp_size_in_bytes
    assert found["none"] > 1.2 * found["dots"] > 1.44 * found["full"], found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharing": "all", "sharing_groups": 3}, "must divide layers"),
        ({"sharing_groups": 2}, "for a model that shares"),
        ({"embedding_width": 16}, "less than width"),
        ({"embedding_width": -1}, "embedding_width"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        config(**changes)
