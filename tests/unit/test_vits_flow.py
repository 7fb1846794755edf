"""Flows are undone by their inverses, and padding stays out of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.models.vits.duration import SeparableStack, SplineFlows, StochasticDurations
from hayakuchi.models.vits.flow import Flow
from hayakuchi.models.vits.layers import length_mask
from hayakuchi.models.vits.starts import Source
from vits_models import shaken, small_config


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


MASK = length_mask(jnp.array([9, 6]), 9)


@pytest.mark.parametrize("couplings", [1, 4])
@pytest.mark.parametrize("speakers", [0, 2])
def test_flow_inverse(couplings, speakers):
    config = small_config(flow_couplings=couplings, speakers=speakers)
    flow = shaken(Flow(config, Source(jax.random.key(0)), jnp.float32), 0.3)
    z = normal(1, 2, 9, 8) * MASK[..., None]
    speaker = normal(2, 2, 4) if speakers else None
    moved = flow.forward(z, MASK, speaker)
    assert float(jnp.abs(moved - z).max()) > 0.5
    np.testing.assert_allclose(flow.inverse(moved, MASK, speaker), z, atol=1e-5)


def test_flow_starts_as_a_permutation_of_the_channels():
    flow = Flow(small_config(flow_couplings=3), Source(jax.random.key(0)), jnp.float32)
    z = normal(1, 2, 9, 8) * MASK[..., None]
    np.testing.assert_array_equal(flow.forward(z, MASK, normal(2, 2, 4)), z[..., ::-1])


def test_flow_keeps_volume():
    flow = shaken(Flow(small_config(), Source(jax.random.key(0)), jnp.float32), 0.3)
    mask = jnp.ones((1, 3), bool)
    jacobian = jax.jacobian(lambda z: flow.forward(z.reshape(1, 3, 8), mask, normal(2, 1, 4)).ravel())(normal(1, 24))
    assert abs(float(jnp.linalg.slogdet(jacobian)[1])) < 1e-3


def test_spline_flows_inverse_and_log_determinant():
    flows = shaken(SplineFlows(8, 3, Source(jax.random.key(0))), 0.3)
    z = 2 * normal(1, 2, 9, 2) * MASK[..., None]
    condition = normal(2, 2, 9, 8)
    moved, _ = flows.forward(z, MASK, condition)
    np.testing.assert_allclose(flows.inverse(moved, MASK, condition), z, atol=1e-3)

    def row(z):
        return flows.forward(z.reshape(1, 4, 2), jnp.ones((1, 4), bool), condition[:1, :4])

    jacobian = jax.jacobian(lambda z: row(z)[0].ravel())(z[0, :4].ravel())
    np.testing.assert_allclose(row(z[0, :4].ravel())[1][0], jnp.linalg.slogdet(jacobian)[1], atol=1e-3)


def test_separable_stack_equals_plain_dilated_convolutions():
    """Dilations are traced numbers there; here they are static, as published."""
    stack = shaken(SeparableStack(8, 3, 0.0, Source(jax.random.key(0))))
    x = normal(1, 2, 9, 8)
    expected = x
    layers = stack.layers
    for index, dilation in enumerate((1, 3, 9)):
        kernel = layers.depthwise[...][index][:, None]
        y = jax.lax.conv_general_dilated(
            expected * MASK[..., None],
            kernel,
            (1,),
            [(dilation, dilation)],
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=8,
        )
        y = normalised(y + layers.depthwise_bias[...][index], layers.depthwise_norm, index)
        y = y @ layers.pointwise.kernel[...][index] + layers.pointwise.bias[...][index]
        expected = expected + normalised(y, layers.pointwise_norm, index)
    np.testing.assert_allclose(stack(x, MASK), expected * MASK[..., None], atol=1e-5)


def normalised(y, norm, index):
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return jax.nn.gelu(y * norm.scale[...][index] + norm.bias[...][index], approximate=False)


def test_duration_loss_of_a_row_ignores_padding():
    durations = shaken(StochasticDurations(small_config(), Source(jax.random.key(0))))
    hidden, noise, speaker = normal(1, 2, 9, 8), normal(2, 2, 9, 2), normal(3, 2, 4)
    lengths = jnp.round(jnp.exp(normal(4, 2, 9))) * MASK
    loss = jax.jit(durations.loss)
    both = loss(hidden * MASK[..., None], MASK, lengths, noise, speaker)
    alone = loss(hidden[1:, :6], MASK[1:, :6], lengths[1:, :6], noise[1:, :6], speaker[1:])
    np.testing.assert_allclose(both[1], alone[0], rtol=1e-5)


def test_duration_losses_send_nothing_into_the_text_encoder():
    durations = shaken(StochasticDurations(small_config(), Source(jax.random.key(0))))

    def loss(hidden, speaker):
        return jnp.sum(durations.loss(hidden, MASK, jnp.ones((2, 9)), normal(2, 2, 9, 2), speaker))

    gradients = jax.grad(loss, (0, 1))(normal(1, 2, 9, 8), normal(3, 2, 4))
    assert all((gradient == 0).all() for gradient in gradients)
