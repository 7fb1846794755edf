"""Where an equation of a jaxpr comes from: the one place that reads JAX's private source information.

JAX keeps the Python stack of every equation, but offers no public way to read it. tests/unit/test_tracing.py holds this
module to what the rest relies on, so that a release of JAX that moves it is found there.
"""

from typing import Any, Literal, NamedTuple

from jax._src import source_info_util

Direction = Literal["forward", "backward", "other"]

# Scopes that JAX itself puts around what is computed anew; those of einsum have an arrow.
_MARKS = ("checkpoint", "rematted_computation")


class Frame(NamedTuple):
    """A place in somebody's Python code.

    Attributes:
      file: path of the file.
      function: name of the function, with those that it lies in.
      line: from 1.
      column: from 0, where the expression begins.
      end_column: where it ends.
    """

    file: str
    function: str
    line: int
    column: int
    end_column: int


def leave_out(file: str) -> None:
    """Leaves the frames of a file out of all stacks, as JAX does with its own: for what only calls others."""
    source_info_util.register_exclusion(file)


def frames_of(equation: Any) -> tuple[Frame, ...]:
    """The stack an equation was traced under without the frames of JAX and the standard library, innermost first."""
    found = source_info_util.user_frames(equation.source_info.traceback)
    return tuple(
        Frame(f.file_name, f.function_name, f.start_line, f.start_column, f.end_column)
        for f in found
        if not f.file_name.startswith("<")
    )


def names_of(equation: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The `jax.named_scope`s an equation lies in, outermost first, and the transformations it was made by."""
    scopes: list[str] = []
    transforms: set[str] = set()
    anew = 0  # where the path begins again, as it does for what is computed anew
    for element in equation.source_info.name_stack.stack:
        if isinstance(element, source_info_util.Transform):
            transforms.add(element.name)
            anew = len(scopes)
        else:
            scopes += [name for name in element.name.split("/") if name not in _MARKS and "->" not in name]
    if scopes[:anew] == scopes[anew : 2 * anew]:
        scopes = scopes[anew:]
    return tuple(scopes), frozenset(transforms)


def direction_of(transforms: frozenset[str]) -> Direction:
    """Whether an equation is of a gradient's forward or backward pass; "other" is of neither."""
    if "transpose" in transforms:
        return "backward"
    return "forward" if "jvp" in transforms else "other"


def function_of(jaxpr: Any) -> tuple[str, str]:
    """File and name of the Python function that a jaxpr was traced from; empty where JAX does not know."""
    told = jaxpr.debug_info
    return told.func_filename or "", (told.func_name or "").rpartition(".")[2]
