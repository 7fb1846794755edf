"""What in a traced program is likely not meant: unrolled loops, constants, dtypes, callbacks, memory not given back."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from hayakuchi.inspect.lines import NARROW, own_frame, widened_bytes
from hayakuchi.inspect.loops import Loop
from hayakuchi.tracing.signature import differences, signature
from hayakuchi.tracing.source import Frame
from hayakuchi.tracing.walk import Site, bodies_of, inner_jaxprs

_LARGE_BYTES = 1 << 20
_PRODUCTS = ("dot_general", "conv_general_dilated")
# Through these a widened array stays what it was: moved, or computed with number by number.
_KEEPING = frozenset(
    (
        *("abs", "add", "clamp", "copy", "div", "erf", "exp", "expm1", "integer_pow", "log", "log1p", "logistic"),
        *("max", "min", "mul", "neg", "pow", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh"),
        *("broadcast_in_dim", "concatenate", "dynamic_slice", "expand_dims", "pad", "reshape", "rev", "slice"),
        *("name", "optimization_barrier", "squeeze", "stop_gradient", "transpose"),
    )
)
# Primitives to name, with what they do and what to do.
_NAMED = {
    "callback": (
        ("pure_callback", "io_callback", "debug_callback", "debug_print"),
        "calls back into Python while it runs: the device waits for the host",
        "leave it out of the step, or read the values from what the step returns",
    ),
    "collective": (
        (
            *("psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "all_to_all", "ppermute"),
            *("reduce_scatter", "psum_scatter", "pbroadcast", "ragged_all_to_all"),
        ),
        "exchanges data between the devices",
        "nothing, where it is meant; else see how the operands lie over the devices",
    ),
}


@dataclass(frozen=True)
class Finding:
    """Something to look at.

    Attributes:
      kind: "loop", "constant", "float64", "upcast", "callback", "collective", "donation" or "retrace".
      file, line: where; "" and 0 where no line is to blame.
      what: in words.
      cure: what to do.
      size: equations, bytes or traces, as the kind has it, to sort by.
    """

    kind: str
    file: str
    line: int
    what: str
    cure: str
    size: float


def of_loops(loops: Iterable[Loop]) -> list[Finding]:
    """Loops that Python unrolled."""
    return [_of_loop(loop) for loop in loops]


def _of_loop(loop: Loop) -> Finding:
    rounds = loop.repeats * loop.times
    parts = (("", loop.other), (" forward", loop.forward), (" backward", loop.backward))
    each = " + ".join(f"{rounds} x {count / rounds:.3g} equations{name}" for name, count in parts if count)
    times = f", each of the {loop.times} times that it is come to" if loop.times > 1 else ""
    return Finding(
        "loop",
        loop.statement.file,
        loop.statement.line,
        f"{each}: a Python loop unrolled {loop.repeats} times{times}: {loop.statement.text}",
        loop.cure,
        loop.equations,
    )


def of_program(sites: Sequence[Site], closed: Any, is_own: Callable[[str], bool]) -> list[Finding]:
    """What one pass over the equations shows."""
    return [
        *_constants(sites, closed, is_own),
        *_doubles(sites, is_own),
        *_upcasts(sites, is_own),
        *_named(sites, is_own, "callback"),
        *_named(sites, is_own, "collective"),
    ]


def _place(frame: Frame | None) -> tuple[str, int]:
    return (frame.file, frame.line) if frame else ("", 0)


def _constants(sites: Sequence[Site], closed: Any, is_own: Callable[[str], bool]) -> Iterator[Finding]:
    first: dict[Any, Site] = {}
    for site in sites:
        for variable in site.equation.invars:
            if not isinstance(variable, core.Literal):
                first.setdefault(variable, site)
    seen: set[int] = set()
    bodies = (body for site in sites for body in bodies_of(site.equation))
    for jaxpr, constants in ((closed.jaxpr, closed.consts), *bodies):
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            size = math.prod(value.shape) * jnp.dtype(value.dtype).itemsize if hasattr(value, "shape") else 0
            if size < _LARGE_BYTES or id(value) in seen:
                continue
            seen.add(id(value))
            user = first.get(variable)
            file, line = _place(own_frame(user, is_own) if user else None)
            yield Finding(
                "constant",
                file,
                line,
                f"a constant of {size / 1e6:,.1f} MB ({value.dtype}{list(value.shape)}) is captured: it becomes part "
                "of the program",
                "pass it to the function as an argument: else it is stored twice, and compiled each time it changes",
                size,
            )


def _doubles(sites: Sequence[Site], is_own: Callable[[str], bool]) -> Iterator[Finding]:
    counts: Counter[tuple[str, int]] = Counter()
    for site in sites:
        if any(
            str(getattr(variable.aval, "dtype", "")) in ("float64", "complex128") for variable in site.equation.outvars
        ):
            counts[_place(own_frame(site, is_own))] += 1
    for (file, line), count in counts.items():
        yield Finding(
            "float64",
            file,
            line,
            f"{count} equations compute in float64",
            "give the dtype where the number begins (jnp.float32(x), dtype=jnp.float32), or leave jax_enable_x64 off",
            count,
        )


def _upcasts(sites: Sequence[Site], is_own: Callable[[str], bool]) -> Iterator[Finding]:
    """Matrix products in float32 of what was bfloat16 or float16 before."""
    sizes: dict[tuple[str, int, str], tuple[int, str]] = {}
    for site, operands in _widened_operands(sites):
        is_mixed = any(_dtype(variable) in NARROW for variable, _ in operands)
        for variable, dtype in operands:
            told = (
                f"a product of {dtype} with float32" if is_mixed else f"a product in float32 of what was {dtype} before"
            )
            key = *_place(own_frame(site, is_own)), told
            sizes[key] = sizes.get(key, (0, ""))[0] + 4 * math.prod(variable.aval.shape), dtype
    for (file, line, told), (size, dtype) in sizes.items():
        yield Finding(
            "upcast",
            file,
            line,
            f"{told} ({size / 1e6:,.1f} MB of operands)",
            f"have both operands in {dtype} and ask for the result: preferred_element_type=jnp.float32",
            size,
        )


def _widened_operands(sites: Sequence[Site]) -> Iterator[tuple[Site, list[tuple[Any, str]]]]:
    """The products in float32, with those of their operands that were or are narrow, and their narrow dtype."""
    origins = _Origins()
    open_calls: list[tuple[Site, Any]] = []
    for site in sites:
        while open_calls and open_calls[-1][0].depth >= site.depth:
            call, body = open_calls.pop()
            origins.pass_on(body.outvars, call.equation.outvars)
        equation = site.equation
        bodies = [
            body
            for body in inner_jaxprs(equation)[:1]
            if len(body.invars) == len(equation.invars) and len(body.outvars) == len(equation.outvars)
        ]
        for body in bodies:
            origins.pass_on(equation.invars, body.invars)
            open_calls.append((site, body))
        if not bodies:
            origins.meet(site)
        pair = equation.invars[:2] if site.primitive in _PRODUCTS else ()
        if "float32" in map(_dtype, pair):
            # The gradient of a product with a float32 result is one of float32 with what is narrow, as it should be.
            mixed = NARROW if site.direction != "backward" else ()
            told = [(each, _dtype(each) if _dtype(each) in mixed else origins.of(each)) for each in pair]
            yield site, [(each, dtype) for each, dtype in told if dtype]


class _Origins:
    """Of the float32 variables that were widened, the narrow dtype that they come from."""

    def __init__(self) -> None:
        self._dtypes: dict[int, str] = {}  # by the variable's identity: a literal cannot be a key

    def of(self, variable: Any) -> str:
        """The narrow dtype; "" of what was float32 from the start."""
        return self._dtypes.get(id(variable), "")

    def pass_on(self, given: Sequence[Any], taken: Sequence[Any]) -> None:
        """Arguments become those of a body, or its results those of the call."""
        for one, other in zip(given, taken, strict=True):
            self._dtypes[id(other)] = self.of(one)  # a body is shared by its calls: the one before is forgotten

    def meet(self, site: Site) -> None:
        """Follows an equation."""
        equation = site.equation
        if widened_bytes(site) and _dtype(equation.outvars[0]) == "float32":
            self._dtypes[id(equation.outvars[0])] = _dtype(equation.invars[0])
            return
        # What is mixed with a true float32 array is meant to be float32.
        wide = [self.of(each) for each in equation.invars if _dtype(each) == "float32" and each.aval.shape]
        kept = wide[0] if site.primitive in _KEEPING and wide and all(wide) else ""
        for each in equation.outvars:
            self._dtypes[id(each)] = kept


def _dtype(variable: Any) -> str:
    return str(getattr(getattr(variable, "aval", None), "dtype", ""))


def _named(sites: Sequence[Site], is_own: Callable[[str], bool], kind: str) -> Iterator[Finding]:
    names, what, cure = _NAMED[kind]
    counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for site in sites:
        if site.primitive in names:
            counts[_place(own_frame(site, is_own))][site.primitive] += 1
    for (file, line), primitives in counts.items():
        told = ", ".join(f"{name} x {count}" if count > 1 else name for name, count in primitives.items())
        yield Finding(kind, file, line, f"{told}: {what}", cure, sum(primitives.values()))


def static_arguments(traced: jax.stages.Traced, call: Sequence[Any], names: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the arguments of a call that are compiled in by their values: JAX tells how many, and which it has.

    Args:
      traced: the program of the call.
      call: its arguments.
      names: of the function's parameters.
    """
    if len(traced.args_info[0]) == len(call):
        return ()
    told = traced.jaxpr.jaxpr.debug_info.arg_names or ()
    roots = {re.split(r"\W", str(each), maxsplit=1)[0] for each in told}
    named = [at for at, argument in enumerate(call) if jax.tree.leaves(argument) and _named_at(names, at) not in roots]
    plain = [at for at, argument in enumerate(call) if not any(map(_is_array, jax.tree.leaves(argument)))]
    missing = len(call) - len(traced.args_info[0])
    return next((tuple(found) for found in (named, plain) if len(found) == missing), ())


def _named_at(names: Sequence[str], at: int) -> str:
    return names[at] if at < len(names) else ""


def of_donation(traced: jax.stages.Traced, place: str, positions: Sequence[int]) -> list[Finding]:
    """Large arguments that are not donated, where a result of the same shape could have their memory.

    Args:
      traced: the program of a call.
      place: "FILE:LINE" of the function.
      positions: of the traced arguments among all, static ones too, as `donate_argnums` counts them.
    """
    given = jax.tree_util.tree_leaves_with_path(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
    results = Counter((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(traced.out_info))
    for _, info in given:
        if info.donated:
            results[info.shape, str(info.dtype)] -= 1
    missed: dict[int, int] = {}
    for path, info in given:
        key = info.shape, str(info.dtype)
        size = math.prod(info.shape) * jnp.dtype(info.dtype).itemsize if jnp.issubdtype(info.dtype, jnp.number) else 0
        if info.donated or size < _LARGE_BYTES or results[key] <= 0:
            continue
        results[key] -= 1
        at = positions[path[1].idx]
        missed[at] = missed.get(at, 0) + size
    file, _, line = place.rpartition(":")
    return [
        Finding(
            "donation",
            file,
            int(line) if line.isdigit() else 0,
            f"argument {name} ({size / 1e6:,.1f} MB) has the shapes of results, and is not donated: it lies in memory "
            "beside them",
            f"jax.jit(..., donate_argnums={name}), if it is not needed after the call",
            size,
        )
        for name, size in missed.items()
    ]


def of_calls(
    calls: Sequence[tuple[Any, ...]], names: Sequence[str], place: str, static: Sequence[int] = ()
) -> tuple[int, list[Finding]]:
    """How many traces the calls of a function cost, and for each after the first what made it.

    Args:
      calls: arguments of each.
      names: of the arguments.
      place: "FILE:LINE" of the function.
      static: numbers of the arguments that are compiled in by their values.
    """
    file, _, line = place.rpartition(":")
    seen: list[dict[str, str]] = []
    found = []
    for call in calls:
        now = signature(call, names, static)
        if now in seen:
            continue
        if seen:
            changed = min((differences(before, now) for before in seen), key=len)
            found.append(
                Finding(
                    "retrace",
                    file,
                    int(line) if line.isdigit() else 0,
                    f"call {len(seen) + 1} of another kind is traced and compiled anew: {', '.join(changed[:5])}",
                    _retrace_cure(changed),
                    len(changed),
                )
            )
        seen.append(now)
    return len(seen), found


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def _retrace_cure(changed: Sequence[str]) -> str:
    told = " ".join(changed)
    if "static" in told:
        return "a static value is compiled in: pass it as an array, or keep to few values"
    if any(_only_weak(each) for each in changed):
        return "give the number a dtype at every call, such as jnp.float32(x) or jnp.asarray(x, jnp.float32)"
    if "absent" in told:
        return "give the same tree of arguments at every call"
    return "pad to one of a few shapes and keep dtypes"


def _only_weak(change: str) -> bool:
    before, _, after = change.partition(": ")[2].partition(" -> ")
    return before != after and before.removesuffix(" (weak type)") == after.removesuffix(" (weak type)")
