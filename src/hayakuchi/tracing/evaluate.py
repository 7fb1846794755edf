"""Runs a program equation by equation and measures what each gives: as part of a compiled program, or at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from hayakuchi.tracing.measures import Measures, measure, together
from hayakuchi.tracing.program import Node, Program, flat, is_float
from hayakuchi.tracing.walk import bodies_of

# A loop of more equations than this, over all its rounds, runs as one.
_LONGEST_LOOP = 20_000


def measured_run(program: Program, *arguments: Any) -> tuple[list[Any], Measures]:
    """The results of the program, flat as in its jaxpr, and `Measures` of [E] arrays, one entry a measured equation.

    A pure function of arrays, to be jitted: the compiler leaves out what is not asked for.
    """
    runner = _Traced()
    closed = program.jaxpr
    results = runner.run(closed.jaxpr, program.body, closed.consts, arguments)
    order = [node.index for node in program.measured()]
    columns = zip(*(runner.found[index] for index in order), strict=True)
    return results, Measures(*(jnp.stack(column) for column in columns))


@dataclass(frozen=True)
class Told:
    """What an equation gave, in all rounds of the loops around it.

    Attributes:
      node: the equation.
      measures: of all its values, as plain floats.
      order: when it first gave a value that was not finite, as a count of equations run; None never.
      round: in which round of the loop around it that was; 0 outside of loops.
    """

    node: Node
    measures: Measures
    order: int | None
    round: int


def interpret(program: Program, *arguments: Any) -> tuple[list[Any], list[Told]]:
    """Runs a program on the device, one equation after the other, without compiling it as a whole.

    Nothing is fused: each equation rounds its result to the dtype that the jaxpr says.
    """
    runner = _AtOnce()
    closed = program.jaxpr
    results = runner.run(closed.jaxpr, program.body, closed.consts, arguments)
    return results, runner.told(program)


class _Runner(ABC):
    """Runs a jaxpr; what becomes of loops and of the values is the subclasses'."""

    def run(self, jaxpr: Any, nodes: list[Node], constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))
        ends = _last_uses(jaxpr)

        def read(variable: Any) -> Any:
            return variable.val if isinstance(variable, core.Literal) else known[variable]

        for node, equation in zip(nodes, jaxpr.eqns, strict=True):
            values = [read(variable) for variable in equation.invars]
            results = self.equation(node, values)
            if node.measured:
                self.measured(node, [value for value in results if is_float(jax.typeof(value))])
            known.update(zip(equation.outvars, results, strict=True))
            for variable in ends.get(id(equation), ()):
                known.pop(variable, None)
        return [read(variable) for variable in jaxpr.outvars]

    def equation(self, node: Node, values: list[Any]) -> list[Any]:
        equation = node.site.equation
        if node.bodies and node.site.primitive == "scan":
            return self.scan(node, values)
        if node.bodies:
            jaxpr, constants = bodies_of(equation)[0]
            return self.run(jaxpr, node.bodies[0], constants, values)
        return _bound(equation, values)

    @abstractmethod
    def scan(self, node: Node, values: list[Any]) -> list[Any]:
        """The results of a loop."""

    @abstractmethod
    def measured(self, node: Node, values: list[Any]) -> None:
        """Takes the floating results of a measured equation."""


class _Traced(_Runner):
    def __init__(self) -> None:
        self.found: dict[int, Measures] = {}

    def measured(self, node: Node, values: list[Any]) -> None:
        self.found[node.index] = measure(values)

    def scan(self, node: Node, values: list[Any]) -> list[Any]:
        loop = _Loop.of(node, values)
        inside = [each for each in flat(node.bodies[0]) if each.measured]

        def one(carry: Any, row: Any) -> tuple[Any, Any]:
            inner = _Traced()
            results = inner.run(loop.jaxpr, node.bodies[0], loop.constants, [*loop.held, *carry, *row])
            count = len(loop.start)
            return results[:count], (results[count:], [inner.found[each.index] for each in inside])

        final, (rows, measures) = lax.scan(one, loop.start, loop.stacked, length=loop.length, reverse=loop.reverse)
        self.found |= {each.index: together(found) for each, found in zip(inside, measures, strict=True)}
        return [*final, *rows]


@dataclass
class _AtOnce(_Runner):
    """Runs on the device at once.

    Attributes:
      done: equations measured so far.
      round: of the innermost loop.
      found: of each measured equation, by number: when, in which round, and what.
    """

    done: int = 0
    round: int = 0
    found: dict[int, list[tuple[int, int, Measures]]] = field(default_factory=dict)

    def measured(self, node: Node, values: list[Any]) -> None:
        self.done += 1
        self.found.setdefault(node.index, []).append((self.done, self.round, _measure_now(values)))

    def scan(self, node: Node, values: list[Any]) -> list[Any]:
        loop = _Loop.of(node, values)
        if loop.length * len(list(flat(node.bodies[0]))) > _LONGEST_LOOP or not loop.length:
            return self._as_one(node, values)
        carry, rows, outer = loop.start, [], self.round
        for at in reversed(range(loop.length)) if loop.reverse else range(loop.length):
            self.round = at
            row = [value[at] for value in loop.stacked]
            results = self.run(loop.jaxpr, node.bodies[0], loop.constants, [*loop.held, *carry, *row])
            carry = results[: len(loop.start)]
            rows.append(results[len(loop.start) :])
        self.round = outer
        if loop.reverse:
            rows.reverse()
        return [*carry, *(jnp.stack(column) for column in zip(*rows, strict=True))]

    def told(self, program: Program) -> list[Told]:
        result = []
        for node in program.measured():
            if node.index not in self.found:
                continue
            orders, rounds, measures = zip(*self.found[node.index], strict=True)
            columns = Measures(
                *(np.array(jax.device_get(column), np.float64) for column in zip(*measures, strict=True))
            )
            bad = np.flatnonzero(columns.nan + columns.infinite)
            first = int(bad[0]) if bad.size else None
            result.append(
                Told(
                    node,
                    Measures(*(float(value) for value in together(columns))),
                    None if first is None else orders[first],
                    0 if first is None else rounds[first],
                )
            )
        return result

    def _as_one(self, node: Node, values: list[Any]) -> list[Any]:
        results = _bound(node.site.equation, values)
        if floats := [value for value in results if is_float(jax.typeof(value))]:
            # Those inside are not seen: what comes out stands for the last of them.
            inside = [each for each in flat(node.bodies[0]) if each.measured]
            for each in inside[-1:]:
                self.measured(each, floats)
        return results


@dataclass(frozen=True)
class _Loop:
    """A scan's parts."""

    jaxpr: Any
    constants: Sequence[Any]
    held: list[Any]
    start: list[Any]
    stacked: list[Any]
    length: int
    reverse: bool

    @classmethod
    def of(cls, node: Node, values: list[Any]) -> "_Loop":
        params = node.site.equation.params
        held, carry = params["num_consts"], params["num_consts"] + params["num_carry"]
        jaxpr, constants = bodies_of(node.site.equation)[0]
        return cls(
            *(jaxpr, constants, values[:held], values[held:carry], values[carry:]),
            params["length"],
            params["reverse"],
        )


_measure_now = jax.jit(measure)


def _bound(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an equation as it stands."""
    with equation.ctx.manager:
        results = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    return list(results) if equation.primitive.multiple_results else [results]


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """By equation the variables that are not needed after it."""
    kept = {variable for variable in jaxpr.outvars if not isinstance(variable, core.Literal)}
    found: dict[int, list[Any]] = {}
    seen: set[Any] = set()
    for equation in reversed(jaxpr.eqns):
        used = {v for v in (*equation.invars, *equation.outvars) if not isinstance(v, core.Literal)} - seen - kept
        found[id(equation)] = list(used)
        seen |= used
    return found
