"""Published checkpoints whose weight norm is folded (row S10)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.errors import UserError
from hayakuchi.models.vits.discriminators import Discriminators
from hayakuchi.models.vits.model import Vits
from hayakuchi.models.vits.published_names import discriminator_names, from_published, generator_names, to_published
from vits_models import small_config

CONFIG = small_config()


@pytest.fixture(scope="module")
def generator():
    return random_model(lambda: Vits(CONFIG, jax.random.key(0)))


def random_model(build):
    """A model's graph, and float32 parameters drawn by NumPy, which need no compiling."""
    graph, shapes = nnx.split(nnx.eval_shape(build), nnx.Param)
    random = np.random.default_rng(0)

    def draw(leaf):
        return jnp.asarray(0.3 * random.standard_normal(leaf.shape), jnp.float32)

    return graph, jax.tree.map(draw, nnx.to_pure_dict(shapes))


def fold(tensors, part=""):
    """What `torch.nn.utils.remove_weight_norm` leaves of the layers whose names begin with `part`."""
    left = dict(tensors)
    for name in [name for name in tensors if name.startswith(part) and name.endswith(".weight_v")]:
        direction, gain = left.pop(name), left.pop(f"{name[:-2]}_g")
        norm = np.sqrt(np.sum(direction**2, axis=tuple(range(1, direction.ndim)), keepdims=True))
        left[name.removesuffix("_v")] = gain * direction / norm
    assert len(left) < len(tensors)
    return left


def kernels(graph, parameters):
    """Every parameter as its layer applies it: the kernels of weight-normalised layers, all others themselves."""
    found = {}
    for path, layer in nnx.iter_graph(nnx.merge(graph, jax.tree.map(jnp.asarray, parameters))):
        if isinstance(layer, nnx.Module) and hasattr(layer, "gain"):
            found[path] = np.asarray(layer.kernel())
        elif isinstance(layer, nnx.Param) and path[-1] not in ("gain", "direction"):
            found[path] = np.asarray(layer[...])
    return found


def assert_same_model(graph, parameters, expected):
    found, wanted = kernels(graph, parameters), kernels(graph, expected)
    assert found.keys() == wanted.keys()
    for path, kernel in wanted.items():
        np.testing.assert_allclose(found[path], kernel, atol=1e-6, err_msg=str(path))


@pytest.mark.parametrize("part", ["", "dec.", "flow.flows.2.enc.in_layers.1."])
def test_folded_generators_load(generator, part):
    graph, parameters = generator
    names = generator_names(CONFIG)
    loaded = from_published(fold(to_published(parameters, names), part), names)
    assert jax.tree.map(jnp.shape, loaded) == jax.tree.map(jnp.shape, parameters)
    assert_same_model(graph, loaded, parameters)
    # Nothing is lost by folding the decoder again.
    again = fold(to_published(loaded, names), part)
    for name, tensor in fold(to_published(parameters, names), part).items():
        np.testing.assert_allclose(again[name], tensor, atol=1e-6)


def test_folded_discriminators_load():
    graph, parameters = random_model(lambda: Discriminators(jax.random.key(0), division=16))
    names = discriminator_names()
    loaded = from_published(fold(to_published(parameters, names)), names)
    assert_same_model(graph, loaded, parameters)


def test_a_channel_that_is_off_stays_off(generator):
    """Its direction would be 0 / 0."""
    graph, parameters = generator
    names = generator_names(CONFIG)
    tensors = fold(to_published(parameters, names))
    tensors["dec.ups.0.weight"][3] = 0
    tensors["enc_q.enc.in_layers.1.weight"][:] = 0
    loaded = from_published(tensors, names)
    found = kernels(graph, loaded)
    assert all(np.isfinite(kernel).all() for kernel in found.values())
    again = fold(to_published(loaded, names))
    np.testing.assert_array_equal(again["dec.ups.0.weight"][3], 0)
    np.testing.assert_array_equal(again["enc_q.enc.in_layers.1.weight"], 0)


def test_half_precision(generator):
    _, parameters = generator
    names = generator_names(CONFIG)
    tensors = fold(to_published(parameters, names))
    tensors["dec.ups.0.weight"] = (300 * tensors["dec.ups.0.weight"]).astype(np.float16)
    again = fold(to_published(from_published(tensors, names), names))
    np.testing.assert_allclose(again["dec.ups.0.weight"], tensors["dec.ups.0.weight"].astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["dec.ups.0.weight_v", "dec.ups.0.weight_g", "enc_p.emb.weight", "flow.flows.0.pre.bias"]
)
def test_a_missing_tensor_is_named(generator, name):
    names = generator_names(CONFIG)
    tensors = to_published(generator[1], names)
    del tensors[name]
    with pytest.raises(UserError, match=name) as told:
        from_published(tensors, names)
    assert "\n" not in str(told.value)
