"""The source line, module and direction of each equation, which JAX keeps behind private names."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from hayakuchi.tracing.walk import walk


@jax.jit
def doubled(x):
    return jnp.sin(x) * 2


def folded(carry, x):
    return jnp.tanh(carry + x), carry


def program(x):
    with jax.named_scope("encoder"):
        y = doubled(x)
    z = jnp.where(y > 0, y, 0.0)
    last, _ = jax.lax.scan(folded, 0.0, z)
    return last + jnp.sum(doubled(z))


def line_of(function, text):
    lines, first = inspect.getsourcelines(getattr(function, "__wrapped__", function))
    [found] = [first + at for at, line in enumerate(lines) if text in line]
    return found


@pytest.fixture(scope="module")
def sites():
    return list(walk(jax.make_jaxpr(jax.grad(program))(jnp.ones(3))))


def ours(site):
    return [(frame.function.rpartition(".")[2], frame.line) for frame in site.frames if frame.file == __file__]


def test_every_equation_has_a_line_of_ours(sites):
    assert all(ours(site) for site in sites)


def test_a_jitted_function_belongs_to_each_of_its_callers(sites):
    """JAX traces it once, and keeps the stack of the first call alone."""
    sines = [ours(site) for site in sites if site.primitive == "sin"]
    body = ("doubled", line_of(doubled, "jnp.sin"))
    assert sines == [
        [body, ("program", line_of(program, "y = doubled"))],
        [body, ("program", line_of(program, "jnp.sum(doubled"))],
    ]


def test_what_a_library_does_belongs_to_the_line_that_calls_it(sites):
    [select] = [site for site in sites if site.primitive == "select_n" and site.direction == "forward"]
    assert ours(select) == [("program", line_of(program, "jnp.where"))]


def test_the_body_of_a_loop_knows_its_line_its_caller_and_its_rounds(sites):
    tanh = next(site for site in sites if site.primitive == "tanh")
    assert ours(tanh) == [("folded", line_of(folded, "jnp.tanh")), ("program", line_of(program, "jax.lax.scan"))]
    assert tanh.trips == 3
    assert tanh.depth == 1
    assert next(site for site in sites if site.primitive == "sin").trips == 1


def test_modules_and_directions(sites):
    inside = [site for site in sites if line_of(program, "y = doubled") in [line for _, line in ours(site)]]
    assert {site.modules for site in inside} == {("encoder",)}
    assert {site.direction for site in inside} == {"forward", "backward"}
    assert {site.direction for site in walk(jax.make_jaxpr(program)(jnp.ones(3)))} == {"other"}


def test_what_is_computed_anew_has_its_path_once():
    def block(x):
        with jax.named_scope("block"):
            return jnp.sin(jnp.sin(x))

    def model(x):
        with jax.named_scope("model"):
            return jnp.sum(jax.checkpoint(block)(x))

    found = list(walk(jax.make_jaxpr(jax.grad(model))(jnp.ones(3))))
    assert {"/".join(site.modules) for site in found} <= {"model", "model/block", "block"}
    assert any(site.modules == ("model", "block") and site.direction == "backward" for site in found)


def test_columns_tell_two_calls_on_one_line_apart():
    def twice(x):
        return jnp.sin(x) + jnp.sin(x + 1)

    sines = [site.frames[0] for site in walk(jax.make_jaxpr(twice)(1.0)) if site.primitive == "sin"]
    assert len(sines) == 2
    assert sines[0].line == sines[1].line
    assert sines[0].column < sines[0].end_column <= sines[1].column
