"""A jaxpr made ready to be run equation by equation: what to measure, and where each value comes from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend import core

from hayakuchi.tracing.walk import Site, inner_jaxprs, walk

# Equations whose body is run in their place. A recomputed block (checkpoint) is then kept, which costs memory alone.
_INLINE = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
# What only moves numbers: their values are those of what they move.
_MOVES = frozenset(
    (
        *("broadcast_in_dim", "concatenate", "copy", "copy_p", "dynamic_slice", "dynamic_update_slice", "expand_dims"),
        *("gather", "name", "optimization_barrier", "pad", "reshape", "rev", "slice", "squeeze", "stop_gradient"),
        "transpose",
    )
)


class Carried(NamedTuple):
    """A value that a loop hands from one round to the next: `loop`'s number `place`."""

    loop: int
    place: int


@dataclass
class Node:
    """An equation, and what stands inside it.

    Attributes:
      site: the equation in its place.
      index: its number in program order.
      bodies: of each jaxpr inside it the nodes; empty where it is run as it stands.
      measured: it gives floating numbers that are new.
      sources: numbers of the measured equations that its inputs come from; negative ones are arguments of the program
        (-1 the first), and what a loop carries stands for the round before.
    """

    site: Site
    index: int
    bodies: list[list["Node"]] = field(default_factory=list)
    measured: bool = False
    sources: frozenset[int | Carried] = frozenset()


@dataclass
class Program:
    """A jaxpr made ready to be measured.

    Attributes:
      nodes: all equations, in program order.
      carries: where the carried values of a loop come from in the round before.
      results: the sources of each result of the program.
    """

    jaxpr: Any
    body: list[Node]
    nodes: list[Node]
    carries: dict[Carried, frozenset[int | Carried]]
    results: list[frozenset[int | Carried]]

    def measured(self) -> list[Node]:
        return [node for node in self.nodes if node.measured]


def program_of(closed: Any, select: Callable[[list[Node]], Sequence[Node]] | None = None) -> Program:
    """Makes a `ClosedJaxpr` ready.

    Args:
      closed: from `jax.make_jaxpr`.
      select: of the equations that give new floating numbers those to measure; by default all.
    """
    nodes: list[Node] = []
    sites = list(walk(closed))
    body = _tree(sites, 0, len(sites), nodes)
    for node in nodes:
        floats = any(is_float(variable.aval) for variable in node.site.equation.outvars)
        node.measured = floats and not node.bodies and node.site.primitive not in _MOVES
    carries: dict[Carried, frozenset[int | Carried]] = {}
    arguments = [frozenset((-1 - place,)) for place, _ in enumerate(closed.jaxpr.invars)]
    results = _link(closed.jaxpr, body, arguments, carries)
    if select is not None:
        chosen = {node.index for node in select([node for node in nodes if node.measured])}
        for node in nodes:
            node.measured = node.index in chosen
    return Program(closed, body, nodes, carries, results)


def flat(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from flat(body)


def without_unused(closed: Any) -> Any:
    """A `ClosedJaxpr` without the equations that its results do not need; those inside loops and calls stay."""
    needed = {variable for variable in closed.jaxpr.outvars if not isinstance(variable, core.Literal)}
    kept = []
    for equation in reversed(closed.jaxpr.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            kept.append(equation)
            needed |= {variable for variable in equation.invars if not isinstance(variable, core.Literal)}
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=kept[::-1]))


def is_float(aval: Any) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.floating) and 0 not in aval.shape


def _tree(sites: list[Site], start: int, end: int, nodes: list[Node]) -> list[Node]:
    """The nodes of the equations that stand side by side in sites[start:end]."""
    found: list[Node] = []
    at = start
    while at < end:
        site = sites[at]
        below = at + 1
        while below < end and sites[below].depth > site.depth:
            below += 1
        node = Node(site, len(nodes))
        nodes.append(node)
        found.append(node)
        if site.primitive in _INLINE or site.primitive == "scan":
            [*jaxprs] = inner_jaxprs(site.equation)[:1]
            if len(jaxprs) == 1:
                node.bodies = [_tree(sites, at + 1, _end_of_first_body(sites, at + 1, below), nodes)]
        at = below
    return found


def _end_of_first_body(sites: list[Site], start: int, end: int) -> int:
    """Where the equations of the first jaxpr of an equation end: a rule for derivatives may follow it."""
    if start == end:
        return end
    depth, body = sites[start].depth, sites[start].body
    return next((at for at in range(start, end) if sites[at].depth == depth and sites[at].body != body), end)


Sources = frozenset[int | Carried]


def _link(jaxpr: Any, nodes: list[Node], inputs: Sequence[Sources], carries: dict[Carried, Sources]) -> list[Sources]:
    """Sets the sources of the nodes, and returns those of the jaxpr's results."""
    nothing: Sources = frozenset()
    known: dict[Any, Sources] = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(variable: Any) -> Sources:
        return nothing if isinstance(variable, core.Literal) else known.get(variable, nothing)

    for node, equation in zip(nodes, jaxpr.eqns, strict=True):
        given = [of(variable) for variable in equation.invars]
        node.sources = nothing.union(*given)
        if node.bodies:
            body = inner_jaxprs(equation)[0]
            results = _link_inner(node, body, given, carries)
        else:
            own: Sources = frozenset((node.index,)) if node.measured else node.sources
            results = [own] * len(equation.outvars)
        known.update(zip(equation.outvars, results, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _link_inner(node: Node, body: Any, given: list[Sources], carries: dict[Carried, Sources]) -> list[Sources]:
    params = node.site.equation.params
    if node.site.primitive != "scan":
        return _link(body, node.bodies[0], given, carries)
    constants, carry = params["num_consts"], params["num_carry"]
    handed = [frozenset((Carried(node.index, place),)) for place in range(carry)]
    before = given[constants : constants + carry]
    inside = [*given[:constants], *(a | b for a, b in zip(before, handed, strict=True)), *given[constants + carry :]]
    results = _link(body, node.bodies[0], inside, carries)
    carries |= {Carried(node.index, place): results[place] for place in range(carry)}
    return [
        a | b for a, b in zip(results, [*before, *[frozenset[int | Carried]()] * (len(results) - carry)], strict=True)
    ]
