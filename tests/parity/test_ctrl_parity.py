"""Ctrl against `transformers`' CTRLLMHeadModel, by the arrays that `record_ctrl.py` recorded."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.config import CtrlConfig
from hayakuchi.export.hf_weights import from_hf, name_map, to_hf
from hayakuchi.models.ctrl import Ctrl

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 2e-5  # of the largest value of an array; measured: under 5e-6


@pytest.fixture(scope="module", params=["ctrl_a", "ctrl_b"])
def recorded(request):
    with np.load(GOLDEN / f"{request.param}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(params=[False, True], ids=["unrolled", "scanned"])
def config(request, recorded):
    sizes = json.loads(str(recorded["config"]))
    return CtrlConfig(
        vocabulary_size=sizes["vocab_size"],
        length=sizes["n_positions"],
        layers=sizes["n_layer"],
        width=sizes["n_embd"],
        heads=sizes["n_head"],
        feed_forward=sizes["dff"],
        scan_layers=request.param,
    )


@pytest.fixture
def model(recorded, config):
    graph, _ = nnx.split(nnx.eval_shape(lambda: Ctrl(config, jax.random.key(0))), nnx.Param)
    return nnx.merge(graph, jax.tree.map(jnp.asarray, from_hf(part(recorded, "weight/"), config)))


def part(recorded, prefix):
    return {name.removeprefix(prefix): array for name, array in recorded.items() if name.startswith(prefix)}


def hidden(model, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return model.hidden(tokens, jnp.ones_like(tokens), positions)


def chunked_loss(model, tokens):
    labels = jnp.roll(tokens, -1, axis=1)
    weights = jnp.ones(tokens.shape).at[:, -1].set(0)
    return model.loss(hidden(model, tokens), labels, weights)


def plain_loss(model, tokens):
    log_p = jax.nn.log_softmax(model.logits(hidden(model, tokens))[:, :-1])
    return -jnp.sum(jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1))


def assert_close(ours, theirs, name):
    assert ours.shape == theirs.shape, name
    assert np.max(np.abs(ours - theirs)) <= TOLERANCE * np.max(np.abs(theirs)), name


def test_every_recorded_weight_is_mapped_once(recorded, config):
    assert sorted(weight.name for weight in name_map(config)) == sorted(part(recorded, "weight/"))


def test_mapping_there_and_back(recorded, config, model):
    weights = part(recorded, "weight/")
    back = to_hf(nnx.to_pure_dict(nnx.state(model)), config)
    assert back.keys() == weights.keys()
    for name, array in back.items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
        assert array.flags.c_contiguous


def test_logits(recorded, model):
    logits = nnx.jit(lambda model, tokens: model.logits(hidden(model, tokens)))(model, recorded["tokens"])
    assert_close(logits, recorded["logits"], "logits")


@pytest.mark.parametrize("loss", [chunked_loss, plain_loss])
def test_loss_and_gradients(recorded, config, model, loss):
    value, gradients = nnx.jit(nnx.value_and_grad(loss))(model, recorded["tokens"])
    assert_close(value, recorded["loss"], "loss")
    ours = to_hf(nnx.to_pure_dict(gradients), config)
    theirs = part(recorded, "gradient/")
    assert ours.keys() == theirs.keys()
    # Shifting all scores of a query changes no attention weight, so the key bias has no gradient but rounding.
    scale = max(np.max(np.abs(gradient)) for gradient in theirs.values())
    for name, gradient in theirs.items():
        if name.endswith("Wk.bias"):
            assert np.max(np.abs(ours[name])) < TOLERANCE * scale, name
            assert np.max(np.abs(gradient)) < TOLERANCE * scale, name
        else:
            assert_close(ours[name], gradient, name)
