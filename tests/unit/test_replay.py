"""`inspect --replay`: the line that gave the first number that is none."""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.data.batch import Batch
from hayakuchi.errors import UserError
from hayakuchi.inspect.numerics import examine
from hayakuchi.inspect.numerics_text import replay_text
from hayakuchi.inspect.replay import replay
from hayakuchi.models.layers import FeedForward
from hayakuchi.tracing.evaluate import interpret, measured_run
from hayakuchi.tracing.program import program_of
from hayakuchi.train import dump
from hayakuchi.train.metrics import NonFiniteLossError
from hayakuchi.train.train_ctrl import train_ctrl
from helpers import random_dataset, tiny_recipe


def own(file):
    return file == __file__


def line_of(function, text):
    """Number of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    [found] = [first + at for at, line in enumerate(lines) if text in line]
    return found


def everything(result):
    return result


def scaled_by_nothing(x):
    mask = jnp.where(x > 2, -jnp.inf, 0.0)  # as of attention: infinite, and harmless
    weights = jax.nn.softmax(mask + x)
    return weights / (jnp.sum(weights) - jnp.sum(weights))


def test_the_first_culprit_is_the_line_that_divides_by_zero():
    found = examine(scaled_by_nothing, (jnp.arange(4.0),), everything, own)
    [culprit] = found.culprits
    assert (culprit.place.file, culprit.place.line) == (__file__, line_of(scaled_by_nothing, "weights /"))
    assert (culprit.primitive, culprit.direction) == ("div", "other")
    assert "epsilon" in culprit.cure
    assert found.equations > 5


def root_of_what_may_be_zero(x):
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))


def test_a_gradient_that_the_forward_pass_hides():
    """The root's derivative at 0 is infinite, and 0 times infinity is NaN, where the value itself is not taken."""
    found = examine(jax.grad(root_of_what_may_be_zero), (jnp.arange(3.0),), everything, own)
    first = found.culprits[0]
    assert first.place.line == line_of(root_of_what_may_be_zero, "sqrt")
    assert first.gave == "infinity"


def grows(x):
    def body(carry, row):
        carry = carry * row
        return carry, carry + 1

    return jax.lax.scan(body, x, jnp.full(12, 1e10, jnp.float32))


def test_a_value_that_a_loop_carries_is_traced_to_its_round():
    found = examine(grows, (jnp.float32(1),), everything, own)
    [culprit] = found.culprits
    # 1e10 to the fourth is more than float32 holds: the fourth round is number 3.
    assert (culprit.place.line, culprit.round, culprit.primitive) == (line_of(grows, "carry * row"), 3, "mul")
    assert culprit.operands == pytest.approx(1e30, rel=1e-3)


def test_numbers_are_those_of_the_compiled_function():
    """Loops, calls, cond and while included."""

    def function(x):
        y, rows = jax.lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x[0], x, reverse=True)
        z = jax.lax.fori_loop(0, 3, lambda i, c: c * 1.5 + i, y)
        w = jax.lax.cond(z > 0, jnp.sin, jnp.cos, z)
        return jax.jit(jnp.cumsum)(rows) + w, jax.checkpoint(jnp.exp)(x)

    x = jnp.linspace(0.1, 1, 5)
    program = program_of(jax.make_jaxpr(function)(x))
    expected = jax.tree.leaves(jax.jit(function)(x))
    at_once, told = interpret(program, x)
    traced, measures = jax.jit(lambda x: measured_run(program, x))(x)
    for got in (at_once, traced):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    order = [node.index for node in program.measured()]
    for each in told:
        at = order.index(each.node.index)
        np.testing.assert_allclose(each.measures.largest, measures.largest[at], rtol=1e-5)
        assert each.measures.values == measures.values[at]
    assert sum(each.measures.values == 5 for each in told) > 2, "the rounds of the loop are counted together"


def test_what_was_bad_before_is_no_culprit():
    found = examine(
        lambda state, x: state["scale"] * x, ({"scale": jnp.float32(jnp.nan)}, jnp.ones(3)), everything, own
    )
    assert not found.culprits
    assert found.arguments == ["0.scale"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return random_dataset(tmp_path_factory.mktemp("dataset"))


def poison(monkeypatch, spoil):
    """Lets every feed-forward network of the model go through `spoil`."""
    plain = FeedForward.__call__
    monkeypatch.setattr(FeedForward, "__call__", lambda self, x: spoil(plain(self, x)))


def too_large_for_bfloat16(y):
    large = (jnp.zeros_like(y, jnp.float32) + 3.4e38).astype(y.dtype)
    return y + 1e-38 * large - jnp.asarray(3.4, y.dtype)


def too_large_for_float16(y):
    large = (jnp.zeros_like(y, jnp.float32) + 7e4).astype(y.dtype)
    return y + 1e-4 * large - jnp.asarray(7, y.dtype)


def divided(y):
    size = jnp.sum(y, axis=-1, keepdims=True)
    return y / (size - size)


@pytest.mark.parametrize(
    ("spoil", "text", "precision", "cure", "told"),
    [
        (too_large_for_bfloat16, "astype(y.dtype)", "bfloat16", {"float32": True}, "float32: cures it"),
        (too_large_for_float16, "astype(y.dtype)", "float16", {"float32": True}, "float32: cures it"),
        (divided, "y / (size", "float32", {}, "epsilon"),
    ],
)
def test_a_run_that_goes_bad_is_replayed_to_the_line(tmp_path, data, monkeypatch, spoil, text, precision, cure, told):
    poison(monkeypatch, spoil)
    with pytest.raises(NonFiniteLossError, match="inspect --replay") as caught:
        train_ctrl(tiny_recipe(precision=precision, steps=30), tmp_path / "run", data)
    result = replay(caught.value.kept, own)
    # float16 first tries smaller scales of the loss.
    assert result["step"] == (1 if precision != "float16" else caught.value.step)
    assert result["bad"][0] == "loss"
    first = result["culprits"][0]
    assert (first["place"]["file"], first["place"]["line"]) == (__file__, line_of(spoil, text))
    assert first["direction"] == "forward"
    assert result["cures"] == {"highest matmul precision": False, **cure}
    said = replay_text(result)
    assert f"first culprit: {__file__}:{line_of(spoil, text)} in {spoil.__name__}" in said
    assert told in said
    json.dumps(result)


def test_a_step_that_is_finite_when_made_again(tmp_path, data, monkeypatch):
    """As after a fault of the device: the program is not to blame, and is told so."""
    with monkeypatch.context() as patched:
        poison(patched, divided)
        with pytest.raises(NonFiniteLossError) as caught:
            train_ctrl(tiny_recipe(), tmp_path / "run", data)
    result = replay(caught.value.kept, own)
    assert result["bad"] == []
    assert "finite when made again" in replay_text(result)


def test_what_is_no_kept_step(tmp_path, data):
    with pytest.raises(UserError, match="not a step that `train` kept"):
        replay(tmp_path / "nowhere", own)
    with pytest.raises(UserError, match="not a step"):
        replay(data, own)


def test_the_rows_of_many_processes_are_read_in_their_order(tmp_path):
    for process in range(12):
        rows = np.full((2, 4), process, np.int32)
        np.savez(tmp_path / f"batch-{process}.npz", tokens=rows, segments=rows, positions=rows)
    assert dump._read_batch(tmp_path, Batch).tokens[:, 0].tolist() == [n for n in range(12) for _ in range(2)]
