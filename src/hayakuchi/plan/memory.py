"""An estimate of a step's memory without any compiler: which values of its jaxpr live at the same time.

A jaxpr has far more values than a compiled program, since a compiler fuses elementwise operations into those that use
them. The rules here are XLA's own of what is fused (xla/service/instruction_fusion.cc), as far as they decide memory:

- a value that is used once, by an operation that reads number by number, never lies in memory;
- one that is used more often does, unless it is computed from one array of its size alone: then each user computes it
  anew, and keeps that array alive in place of it;
- random numbers and what a product gives are never computed twice.

bench/LEDGER.md holds the estimates to the compiler's figures.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# What reads number by number and can be fused into what follows.
_ELEMENTWISE = frozenset(
    (
        *("abs", "add", "add_any", "and", "acos", "asin", "atan", "atan2", "broadcast_in_dim", "ceil", "clamp", "cos"),
        *("convert_element_type", "cosh", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge"),
        *("gt", "imag", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min"),
        *("mul", "ne", "neg", "not", "or", "pad", "pow", "real", "rem", "rev", "round", "rsqrt", "select_n"),
        *("shift_left", "shift_right_logical", "sign", "sin", "sinh", "slice", "sqrt", "square", "sub", "tan", "tanh"),
        *("transpose", "xor", "dynamic_slice", "copy_p", "bitcast_convert_type", "complex"),
    )
)
# What is another name of the same numbers.
_SAME = frozenset(
    ("reshape", "squeeze", "expand_dims", "stop_gradient", "optimization_barrier", "name", "copy", "pvary")
)
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"))
_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
_RANDOM = frozenset(("random_bits", "threefry2x32", "random_gamma"))
_LOOPS = ("scan", "while", "cond")


@dataclass(eq=False)
class _Value:
    """An array of the program: how large it is, and what must lie in memory to have it."""

    bytes: int  # that it adds to the memory of the jaxpr it is in
    size: int  # that are read or written where it is used
    elements: int
    wide: bool  # float32
    users: list["_Operation"] = field(default_factory=list)
    roots: frozenset["_Value"] = frozenset()
    dear: bool = False  # a product or random numbers are still to be computed for it
    kept: bool = False  # lies in memory


@dataclass(eq=False)
class _Operation:
    name: str
    inputs: list[_Value]
    outputs: list[_Value]
    inner: int = 0  # bytes that a loop needs inside
    moved: int = 0  # bytes that a loop reads and writes, all its rounds together


@dataclass(frozen=True)
class Estimate:
    """Memory of a step on one device, in bytes.

    Attributes:
      arguments: state and batch.
      temporaries: what lives besides at the worst moment.
      moved: what the step reads and writes in all.
    """

    arguments: int
    temporaries: int
    moved: int

    @property
    def peak(self) -> int:
        return self.arguments + self.temporaries


def padded_bytes(aval: Any, platform: str) -> int:
    """Bytes of an array, with what a TPU lays between its rows: tiles of 8 by 128 numbers, turned as they pad least."""
    dtype = getattr(aval, "dtype", None)
    try:
        item = np.dtype(dtype).itemsize
    except TypeError:  # a key: two words
        item = 8
    shape = tuple(aval.shape)
    if platform != "tpu" or not shape:
        return int(item * math.prod(shape))
    if len(shape) == 1:
        return item * _up(shape[0], 128 if shape[0] <= 1_024 else 1_024)
    size = math.prod(shape)
    pairs = itertools.permutations(range(len(shape)), 2)
    least = min(
        size // max(shape[a] * shape[b], 1) * _up(shape[a], min(8, _power(shape[a]))) * _up(shape[b], 128)
        for a, b in pairs
    )
    return int(item * least)


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _power(size: int) -> int:
    """The power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def estimate_memory(jaxpr: Any, platform: str, shares: dict[tuple[int, ...], int] | None = None) -> Estimate:
    """The memory of a step that was traced with the batch of one device.

    Args:
      jaxpr: from `jax.make_jaxpr(task.step)(state, batch, key)`; the state is donated.
      platform: "cpu", "gpu" or "tpu".
      shares: among how many devices the arrays of a shape are split: the parameters, their gradients and moments.
    """
    counter = _Counter(platform, shares or {})
    inner = jaxpr.jaxpr
    arguments = sum(counter.size(variable.aval) for variable in inner.invars)
    return Estimate(arguments, *counter.weigh(inner))


class _Counter:
    def __init__(self, platform: str, shares: dict[tuple[int, ...], int]) -> None:
        self.platform = platform
        self.shares = shares

    def size(self, aval: Any) -> int:
        return padded_bytes(aval, self.platform) // self.shares.get(tuple(aval.shape), 1)

    def weigh(self, jaxpr: Any, own: Iterable[Any] = ()) -> tuple[int, int]:
        """Most bytes that live at once among the values computed in a jaxpr, and all that is read and written.

        Its arguments and results belong to the caller, but for `own`, the arguments that are made anew for it.
        """
        names: dict[Any, _Value] = {}
        for variable in (*jaxpr.invars, *jaxpr.constvars):
            names[variable] = self._value(variable.aval, 0)
        mine = list(own)
        for variable in mine:
            names[variable].bytes = self.size(variable.aval)
        operations = list(self._flat(jaxpr, names))
        for value in set(names.values()):
            value.kept, value.roots = True, frozenset((value,))
        for operation in operations:
            for value in set(operation.inputs):
                value.users.append(operation)
        results = {names[variable] for variable in jaxpr.outvars if variable in names}
        for value in results:
            # A result lies where the caller wants it: in the place of a donated argument, or of the last round's carry.
            value.users.append(_Operation("result", [value], []))
        return self._sweep(operations, results, [names[variable] for variable in mine])

    def _value(self, aval: Any, size: int | None = None) -> _Value:
        elements = math.prod(getattr(aval, "shape", ()))
        true = self.size(aval)
        wide = getattr(aval, "dtype", None) == np.float32
        return _Value(true if size is None else size, true, elements, wide)

    def _flat(self, jaxpr: Any, names: dict[Any, _Value]) -> Iterator[_Operation]:
        """The operations of a jaxpr with those it calls in their places; `names` learns where the values are."""
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            inputs = [names[v] for v in equation.invars if not hasattr(v, "val")]
            body = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
            if name not in _LOOPS and body is not None:
                body = getattr(body, "jaxpr", body)
                inner = {
                    inside: self._value(inside.aval, 0) if hasattr(outside, "val") else names[outside]
                    for inside, outside in zip(body.invars, equation.invars, strict=True)
                }
                inner |= {variable: self._value(variable.aval, 0) for variable in body.constvars}
                for variable in body.constvars:
                    inner[variable].kept, inner[variable].roots = True, frozenset((inner[variable],))
                yield from self._flat(body, inner)
                for outside, inside in zip(equation.outvars, body.outvars, strict=True):
                    names[outside] = self._value(outside.aval, 0) if hasattr(inside, "val") else inner[inside]
                continue
            if name in _SAME and len(inputs) == len(equation.outvars):
                names.update(zip(equation.outvars, inputs, strict=True))
                continue
            outputs = [self._value(variable.aval) for variable in equation.outvars]
            names.update(zip(equation.outvars, outputs, strict=True))
            yield _Operation(name, inputs, outputs, *self._inside(name, params))

    def _inside(self, name: str, params: dict[str, Any]) -> tuple[int, int]:
        """Bytes of a round of a loop, beside its carry and what it stacks; and those that all rounds move."""
        if name == "scan":
            body = params["jaxpr"].jaxpr
            inner, moved = self.weigh(body, body.invars[params["num_consts"] + params["num_carry"] :])
            return inner, moved * params["length"]
        if name == "while":
            return self.weigh(params["body_jaxpr"].jaxpr)
        if name == "cond":
            return max(self.weigh(branch.jaxpr) for branch in params["branches"])
        return 0, 0

    def _sweep(self, operations: list[_Operation], results: set[_Value], own: list[_Value]) -> tuple[int, int]:
        uses: list[set[_Value]] = []
        for operation in operations:
            roots = frozenset().union(*(value.roots for value in operation.inputs)) if operation.inputs else frozenset()
            waiting = any(value.dear and not value.kept for value in operation.inputs)
            here = False
            for value in operation.outputs:
                value.dear = waiting or operation.name not in _ELEMENTWISE
                value.kept = value in results or not self._fused(operation, value)
                if self.platform == "tpu" and value.wide and all(user.name in _PRODUCTS for user in value.users):
                    value.bytes //= 2  # a TPU multiplies in bfloat16, and keeps what is only multiplied as such
                value.roots = frozenset((value,)) if value.kept else roots
                here = here or value.kept
            uses.append(set(roots) if here or not operation.outputs else set())
        last: dict[_Value, int] = dict.fromkeys(own, -1)
        for index, used in enumerate(uses):
            for value in used:
                last[value] = index
        live = most = sum(value.bytes for value in own)
        for index, operation in enumerate(operations):
            ending = sum(value.bytes for value in uses[index] if last[value] == index and value not in results)
            made = sum(value.bytes for value in operation.outputs if value.kept and value not in results)
            in_place = operation.name in _ELEMENTWISE
            most = max(most, live + made + operation.inner - (ending if in_place else 0))
            unused = sum(v.bytes for v in operation.outputs if v.kept and v not in last and v not in results)
            live += made - ending - unused
        moved = sum(
            operation.moved
            or sum(value.size for value in roots) + sum(value.size for value in operation.outputs if value.kept)
            for operation, roots in zip(operations, uses, strict=True)
        )
        return most, moved

    def _fused(self, operation: _Operation, value: _Value) -> bool:
        """Whether a value is computed where it is used, and never lies in memory."""
        if operation.name in _LOOPS or operation.name in ("scatter-add", "sort", "dynamic_update_slice"):
            return False
        if operation.name in _PRODUCTS and self.platform != "tpu":
            return False  # a library writes it
        if not all(self._reads_through(user) for user in value.users):
            return False
        if value.dear or operation.name in _RANDOM:
            return len(value.users) == 1
        large = {each for each in operation.inputs if each.elements * 2 > value.elements}
        return len(value.users) <= 1 or len(large) <= 1

    def _reads_through(self, user: _Operation) -> bool:
        """Whether what it reads may be computed as it reads."""
        if user.name in _ELEMENTWISE or user.name in _REDUCTIONS or user.name == "result":
            return True
        return self.platform == "tpu" and user.name in _PRODUCTS
