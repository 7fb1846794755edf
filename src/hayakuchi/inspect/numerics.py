"""Where numbers stop being numbers: the equation of a step that gave the first NaN or infinity, and what cures it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hayakuchi.tracing.evaluate import Told, interpret
from hayakuchi.tracing.measures import FLOAT16_LARGEST, Measures
from hayakuchi.tracing.program import Carried, Program, program_of, without_unused
from hayakuchi.tracing.source import Frame

# What each dtype can hold at most.
_LARGEST = {"float16": FLOAT16_LARGEST, "bfloat16": 3.3895e38, "float32": 3.4028e38}
_BY_ZERO = "a division by 0 or by too small a number: add an epsilon, or choose the divisor with jnp.where first"
_ROOT = "the root of a negative number, or of 0, where its derivative is infinite: add an epsilon under the root"
_LOG = "the logarithm of 0 or of a negative number: add an epsilon, or choose the argument with jnp.where first"
_EXP = "the exponential of too large a number: subtract the maximum first, or clip the argument"
_WIDE = "a result beyond what its dtype holds: let it be float32 (preferred_element_type), or scale down its operands"
_CURES = {
    "div": _BY_ZERO,
    "integer_pow": "a power of 0 or of too large a number: add an epsilon, or clip it",
    "pow": "a power of a negative number, or of 0, where its derivative is infinite: clip the base above 0",
    "rsqrt": _ROOT,
    "sqrt": _ROOT,
    "log": _LOG,
    "log1p": _LOG,
    "exp": _EXP,
    "exp2": _EXP,
    "reduce_sum": "a sum beyond what its dtype holds: sum in float32",
    "dot_general": _WIDE,
    "conv_general_dilated": _WIDE,
    "convert_element_type": "a number that the narrower dtype cannot hold: keep it in float32, or scale it down",
}


@dataclass(frozen=True)
class Culprit:
    """An equation that gave something not finite of finite operands.

    Attributes:
      place: where it stands, in the user's own code.
      stack: the frames above that, to its callers.
      module: path of scopes.
      direction: "forward", "backward" or "other".
      primitive: the operation.
      dtype: of its result.
      gave: "NaN" or "infinity".
      values: of so many in all, over the rounds of loops.
      bad: how many were not finite.
      operands: the largest absolute value that went in; None where it is a constant or a number as it was given.
      round: of the loop around it, at which it happened first.
      cure: what to do.
    """

    place: Frame | None
    stack: tuple[Frame, ...]
    module: str
    direction: str
    primitive: str
    dtype: str
    gave: str
    values: int
    bad: int
    operands: float | None
    round: int
    cure: str


@dataclass(frozen=True)
class ModuleRange:
    """The numbers of one module, in one direction.

    Attributes:
      module: path of scopes.
      direction: "forward", "backward" or "other".
      largest: absolute value.
      smallest: absolute value that is not 0; infinity where all are.
      root_mean_square: over all its equations.
      bad_share: of all values, those not finite.
      float16_overflow_share: those that float16 cannot hold.
      float16_underflow_share: those that float16 holds with less than full precision, or as 0.
      bfloat16_overflow_share: those that bfloat16 cannot hold: what is infinite already.
    """

    module: str
    direction: str
    largest: float
    smallest: float
    root_mean_square: float
    bad_share: float
    float16_overflow_share: float
    float16_underflow_share: float
    bfloat16_overflow_share: float


@dataclass(frozen=True)
class Numerics:
    """What a step's numbers are like.

    Attributes:
      culprits: the first one first.
      arguments: names of what was not finite before the step began, as far as the bad results come from it.
      modules: in the order of the program.
      equations: how many were measured.
    """

    culprits: list[Culprit]
    arguments: list[str]
    modules: list[ModuleRange]
    equations: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        culprits = [
            asdict(each)
            | {
                "place": each.place and each.place._asdict(),
                "stack": [frame._asdict() for frame in each.stack],
            }
            for each in self.culprits
        ]
        return asdict(self) | {"culprits": culprits}


def examine(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Callable[[Any], Any],
    is_own: Callable[[str], bool],
    depth: int = 4,
) -> Numerics:
    """Runs a function equation by equation and tells where its numbers stop being finite.

    Args:
      function: pure, of arrays.
      arguments: of the call to look at.
      wanted: of the function's result the part whose numbers ought to be finite.
      is_own: whether a file is the user's own.
      depth: parts of a module's path that are told apart.
    """
    arguments = [jax.tree.map(jnp.asarray, argument) for argument in arguments]
    closed = jax.make_jaxpr(lambda *values: wanted(function(*values)))(*arguments)
    program = program_of(without_unused(closed))
    leaves = jax.tree_util.tree_leaves_with_path(tuple(arguments))
    results, told = interpret(program, *(leaf for _, leaf in leaves))
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    bad_arguments = {-1 - at for at, (_, leaf) in enumerate(leaves) if not _finite(leaf)}
    bad_results = [at for at, result in enumerate(results) if not _finite(result)]
    found, given = _first_bad(program, told, bad_results, bad_arguments)
    by_index = {each.node.index: each for each in told}
    return Numerics(
        [_culprit(each, program, by_index, is_own) for each in found],
        [names[-1 - at] for at in given],
        list(_ranges(told, depth)),
        len(told),
    )


def _finite(value: Any) -> bool:
    return not jnp.issubdtype(value.dtype, jnp.floating) or bool(jnp.all(jnp.isfinite(value)))


def _first_bad(
    program: Program, told: list[Told], results: list[int], bad_arguments: set[int]
) -> tuple[list[Told], list[int]]:
    """Of what the bad results come from, the equations that were the first to be bad, and the bad arguments."""
    bad = {each.node.index: each for each in told if each.order is not None}
    reached: set[int] = set()
    waiting = [index for at in results for index in _resolved(program, program.results[at])]
    culprits: list[Told] = []
    given: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index in bad_arguments:
            given.add(index)
        if index in reached or index not in bad:
            continue
        reached.add(index)
        each = bad[index]
        sources = _resolved(program, each.node.sources)
        # Who was bad later, in a later round of the same loop, is no cause.
        earlier = [at for at in sources if at in bad_arguments or (at in bad and _order(bad[at]) < _order(each))]
        waiting += earlier
        if not earlier:
            culprits.append(each)
    return sorted(culprits, key=_order), sorted(given, reverse=True)


def _order(told: Told) -> float:
    return math.inf if told.order is None else told.order


def _resolved(program: Program, sources: Iterable[int | Carried]) -> set[int]:
    """Numbers of equations and arguments, with what loops carry traced to what made it."""
    found: set[int] = set()
    seen: set[Carried] = set()
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        if isinstance(source, int):
            found.add(source)
        elif source not in seen:
            seen.add(source)
            waiting += program.carries[source]
    return found


def _culprit(told: Told, program: Program, by_index: dict[int, Told], is_own: Callable[[str], bool]) -> Culprit:
    site = told.node.site
    own = [frame for frame in site.frames if is_own(frame.file)] or list(site.frames)
    operands = [by_index[at].measures.largest for at in _resolved(program, told.node.sources) if at in by_index]
    largest = max(operands, default=None)
    dtype = str(site.equation.outvars[0].aval.dtype)
    gave = "NaN" if told.measures.nan else "infinity"
    return Culprit(
        place=own[0] if own else None,
        stack=tuple(own[1:]),
        module="/".join(site.modules),
        direction=site.direction,
        primitive=site.primitive,
        dtype=dtype,
        gave=gave,
        values=int(told.measures.values),
        bad=int(told.measures.nan + told.measures.infinite),
        operands=largest,
        round=told.round,
        cure=_cure(site.primitive, dtype, gave),
    )


def _cure(primitive: str, dtype: str, gave: str) -> str:
    if dtype in ("float16", "bfloat16") and gave == "infinity" and primitive not in ("div", "log", "rsqrt"):
        return f"beyond what {dtype} holds ({_LARGEST[dtype]:.4g}): compute this in float32, or scale its operands down"
    return _CURES.get(primitive, "look at what its operands can be; jnp.where or an epsilon keeps them in range")


def _ranges(told: list[Told], depth: int) -> Iterable[ModuleRange]:
    groups: dict[tuple[str, str], list[Measures]] = {}
    for each in told:
        name = "/".join(each.node.site.modules[:depth]) or "(no module)"
        groups.setdefault((name, each.node.site.direction), []).append(each.measures)
    for (name, direction), measures in groups.items():
        columns = Measures(*(np.array(column) for column in zip(*measures, strict=True)))
        values = float(columns.values.sum())
        infinite = float(columns.infinite.sum())
        bad = infinite + float(columns.nan.sum())
        yield ModuleRange(
            name,
            direction,
            float(columns.largest.max()),
            float(columns.smallest.min()),
            math.sqrt(float(columns.squares.sum()) / max(values - bad, 1)),
            bad / values,
            (float(columns.beyond.sum()) + infinite) / values,
            float(columns.below.sum()) / values,
            infinite / values,
        )
