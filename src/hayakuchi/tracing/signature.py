"""By what JAX tells one call of a compiled function from another: a difference is a new trace and a new compile."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LONGEST_STATIC = 80


def signature(arguments: Sequence[Any], names: Sequence[str] = (), static: Container[int] = ()) -> dict[str, str]:
    """What is traced anew if it changes, by the path of each leaf: "int32[8,256]", "float32[] (weak type)".

    Args:
      arguments: positional ones; arrays, abstract arrays (ShapeDtypeStruct) and Python numbers in any tree. Another
        leaf, such as a string, stands for itself.
      names: of the arguments; by default their numbers.
      static: numbers of the arguments that are compiled in by their values.
    """
    found: dict[str, str] = {}
    for at, argument in enumerate(arguments):
        name = names[at] if at < len(names) else str(at)
        if at in static:
            found[name] = _static(argument)
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            inner = jax.tree_util.keystr(path, simple=True, separator=".")
            found[f"{name}.{inner}" if inner else name] = _described(leaf)
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What differs between two signatures: "batch.tokens: int32[8,256] -> int32[8,300]"."""
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name, "absent"), after.get(name, "absent")) for name in names)
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new]


def _described(leaf: Any) -> str:
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        leaf = jax.typeof(leaf)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        # Of NumPy's dtypes JAX takes what it computes in: int64 counts as int32 by default.
        extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        dtype = leaf.dtype if extended else jax.dtypes.canonicalize_dtype(leaf.dtype)
        weak = " (weak type)" if getattr(leaf, "weak_type", False) else ""
        return f"{dtype}[{','.join(map(str, leaf.shape))}]{weak}"
    return _static(leaf)


def _static(value: Any) -> str:
    told = repr(value)
    return f"static {told[:_LONGEST_STATIC]}{'...' if len(told) > _LONGEST_STATIC else ''}"
