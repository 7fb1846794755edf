"""The retrace guard: one compile a declared shape, and a name for whatever would make another."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.data.batch import Batch
from hayakuchi.models.sharding import make_mesh
from hayakuchi.tracing.signature import differences, signature
from hayakuchi.train import loop
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.guard import RetraceError
from helpers import LENGTH, tiny_recipe


def programs(retrace="stop"):
    return loop.compile_task(CtrlTask(tiny_recipe()), make_mesh("data=1", jax.devices()[:1]), retrace)


def batch_of(length, dtype=np.int32):
    spec = Batch(*(jax.ShapeDtypeStruct((4, length), dtype) for _ in Batch._fields))
    content = CtrlTask(tiny_recipe()).example_batch(spec)
    return Batch(*(array.astype(dtype) for array in content))


def test_another_length_stops_the_run_and_is_named():
    made = programs()
    key = jax.random.key(0)
    state, _ = made.step(made.init(key), made.place(batch_of(LENGTH)), key)
    with pytest.raises(RetraceError, match=r"batch.tokens: int32\[4,16\] -> int32\[4,20\]") as caught:
        made.step(state, made.place(batch_of(20)), key)
    assert "--retrace warn" in str(caught.value)
    made.step(state, made.place(batch_of(LENGTH)), key)  # the state was not taken


def test_another_length_is_compiled_once_where_that_is_allowed(caplog):
    made = programs("warn")
    key = jax.random.key(0)
    state = made.init(key)
    with caplog.at_level(logging.WARNING):
        for length in (LENGTH, 8, 8, LENGTH, 8):
            state, metrics = made.step(state, made.place(batch_of(length)), key)
            assert metrics["tokens"] == 4 * (length - 1)
    told = [record.message for record in caplog.records if "compiled anew" in record.message]
    assert len(told) == 1
    assert "batch.tokens: int32[4,16] -> int32[4,8]" in told[0]


def test_another_dtype_is_named():
    made = programs()
    key = jax.random.key(0)
    with pytest.raises(RetraceError, match=r"batch.tokens: int32\[4,16\] -> int16\[4,16\]"):
        made.step(made.init(key), made.place(batch_of(LENGTH, np.int16)), key)


def test_a_changed_state_is_named():
    made = programs()
    key = jax.random.key(0)
    state = made.init(key)
    state = state._replace(parameters=jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.parameters))
    with pytest.raises(RetraceError, match=r"state\.parameters\.\S+: float32\[.*\] -> bfloat16\["):
        made.step(state, made.place(batch_of(LENGTH)), key)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((jnp.ones(3),), (np.ones(3, np.float32),), []),
        ((1.0,), (jnp.asarray(2.0),), []),
        ((jnp.float32(1),), (1.0,), ["x: float32[] -> float32[] (weak type)"]),
        ((jnp.int32(1),), (jnp.float32(1),), ["x: int32[] -> float32[]"]),
        (({"a": jnp.ones(2)},), ({"a": jnp.ones(3)},), ["x.a: float32[2] -> float32[3]"]),
        (({"a": 1},), ({"b": 1},), ["x.a: int32[] (weak type) -> absent", "x.b: absent -> int32[] (weak type)"]),
        (("mean",), ("sum",), ["x: static 'mean' -> static 'sum'"]),
        ((jax.random.key(0),), (jax.random.PRNGKey(0),), ["x: key<fry>[] -> uint32[2]"]),
    ],
)
def test_differences_are_those_that_jax_traces_anew_for(before, after, told):
    assert differences(signature(before, ["x"]), signature(after, ["x"])) == told
    if isinstance(before[0], str):
        return
    calls = []
    function = jax.jit(lambda x: calls.append(1) or x)
    function(*before)
    function(*after)
    assert len(calls) == (2 if told else 1)
