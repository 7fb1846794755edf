"""All equations of a jaxpr in program order, with those of the jaxprs inside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from hayakuchi.tracing.source import Direction, Frame, direction_of, frames_of, function_of, names_of


@dataclass(frozen=True)
class Site:
    """An equation in its place.

    Attributes:
      equation: the `JaxprEqn`.
      frames: the Python stack that it comes from, innermost first; see `source.frames_of`.
      modules: names of the scopes it lies in, outermost first.
      direction: of a gradient's forward pass, backward pass, or neither.
      trips: how often the loops around it run it; a loop that decides as it runs counts once.
      body: number of the jaxpr that it stands in, in the order they are met: equations of one body follow each other.
      depth: how many jaxprs lie around that one.
    """

    equation: Any
    frames: tuple[Frame, ...]
    modules: tuple[str, ...]
    direction: Direction
    trips: int
    body: int
    depth: int

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)


def bodies_of(equation: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs among an equation's parameters, open ones (`Jaxpr`), each with the constants it holds."""
    found: list[tuple[Any, Sequence[Any]]] = []
    for value in equation.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, core.ClosedJaxpr):
                found.append((each.jaxpr, each.consts))
            elif isinstance(each, core.Jaxpr):
                found.append((each, ()))
    return found


def inner_jaxprs(equation: Any) -> list[Any]:
    """The jaxprs of `bodies_of` alone."""
    return [jaxpr for jaxpr, _ in bodies_of(equation)]


def walk(jaxpr: Any) -> Iterator[Site]:
    """Every equation of a jaxpr (a `ClosedJaxpr` or `Jaxpr`); one that holds others comes before these."""
    numbers = iter(range(1 << 62))
    yield from _walk(getattr(jaxpr, "jaxpr", jaxpr), (), (), frozenset(), 1, 0, numbers)


def _walk(
    jaxpr: Any,
    outer: tuple[Frame, ...],
    scopes: tuple[str, ...],
    transforms: frozenset[str],
    trips: int,
    depth: int,
    numbers: Iterator[int],
) -> Iterator[Site]:
    body = next(numbers)
    file, function = function_of(jaxpr)
    for equation in jaxpr.eqns:
        frames = _joined(frames_of(equation), outer, file, function)
        names, made_by = names_of(equation)
        names, made_by = scopes + names, transforms | made_by
        yield Site(equation, frames, names, direction_of(made_by), trips, body, depth)
        times = trips * equation.params.get("length", 1) if equation.primitive.name == "scan" else trips
        for inner in inner_jaxprs(equation):
            # What has no stack of its own is a library's: it belongs to the line that called.
            yield from _walk(inner, frames, names, made_by, times, depth + 1, numbers)


def _joined(inner: tuple[Frame, ...], outer: tuple[Frame, ...], file: str, function: str) -> tuple[Frame, ...]:
    """The stack of an equation in the body of a call: its own up to the function called, then that of this call.

    A function under `jit` is traced once; the rest of the stack is that of its first caller.
    """
    if not inner:
        return outer
    ends = [i for i, f in enumerate(inner) if f.file == file and f.function.rpartition(".")[2] == function]
    if not outer or not ends:
        return inner
    return inner[: ends[-1] + 1] + outer
