"""How often the same equations come again: which Python loops were unrolled, and how often."""

import ast
import tokenize
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hayakuchi.tracing.source import Frame
from hayakuchi.tracing.walk import Site

_LARGEST_FILE_BYTES = 4 << 20
_FEWEST_REPEATS = 4
_FEWEST_EQUATIONS = 24
_LEAST_SHARE = 0.01
# Of the equations under a loop these must fit its number of rounds: the first and the last one are often special.
_FITTING_SHARE = 0.8
_PADDING = ("pad", "concatenate", "dynamic_update_slice")

_SCAN = "use jax.lax.scan or fori_loop, or compute all rounds at once (jax.vmap, one batched operation)"
_PAD = "; in place of padding each by itself, pad once and mask: jnp.arange(length) < lengths[:, None]"
_SHAPES = (
    "the shapes differ from round to round, so jax.lax.scan cannot take it as it is: pad or stack them to one shape, "
    "or join small arrays into one"
)


@dataclass(frozen=True)
class Statement:
    """A `for`, a `while` or a comprehension in a file.

    Attributes:
      line: its first line.
      text: that line.
    """

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Loop:
    """A loop that Python ran while the program was traced.

    Attributes:
      statement: the loop.
      repeats: how many rounds it made each time.
      times: how often it was come to.
      equations: of all its rounds.
      forward, backward, other: the same by direction.
      cure: what to do.
    """

    statement: Statement
    repeats: int
    times: int
    equations: int
    forward: int
    backward: int
    other: int
    cure: str


class _Member(NamedTuple):
    """An equation under a loop: what is equal in each round, and whether this is the innermost loop around it."""

    token: Hashable
    site: Site
    inner: bool


def repeats_of(tokens: Iterable[Hashable]) -> int:
    """How often a pattern comes again: the largest number that divides how often most of the tokens come."""
    counts = Counter(tokens)
    sizes = Counter(counts.values())
    total = sum(size * number for size, number in sizes.items())

    def fits(count: int, repeats: int) -> bool:
        off = abs(count - max(round(count / repeats), 1) * repeats)
        return off <= max(1 if repeats >= 8 else 0, 0.02 * repeats)

    for repeats in sorted(sizes, reverse=True):
        fitting = sum(size * number for size, number in sizes.items() if fits(size, repeats))
        if fitting >= _FITTING_SHARE * total:
            return repeats
    return 1


def find_loops(sites: Iterable[Site], is_own: Callable[[str], bool]) -> list[Loop]:
    """The loops of the user's own code that were unrolled, the largest first."""
    groups: dict[tuple[Statement, str, tuple[Frame, ...]], list[_Member]] = {}
    total = 0
    for site in sites:
        total += 1
        inner = True
        for at, frame in enumerate(site.frames):
            if not is_own(frame.file):
                continue
            token = (site.frames[:at], frame, site.primitive, site.direction)
            for statement in statements_around(frame):
                if _is_inside(frame, site.frames[at + 1 :], statement):
                    continue  # told of the function around it
                key = (statement, frame.function, site.frames[at + 1 :])
                groups.setdefault(key, []).append(_Member(token, site, inner))
                inner = False
    found: dict[tuple[Statement, int], list[list[Site]]] = {}
    for (statement, _, _), members in groups.items():
        # What stands in a loop of its own inside of this one comes more often than this one's rounds.
        plain = [member.token for member in members if member.inner] or [member.token for member in members]
        repeats = repeats_of(plain)
        if repeats >= _FEWEST_REPEATS:
            found.setdefault((statement, repeats), []).append([member.site for member in members])
    loops = [_loop(statement, repeats, parts) for (statement, repeats), parts in found.items()]
    loops = [loop for loop in loops if loop.equations >= max(_FEWEST_EQUATIONS, _LEAST_SHARE * total)]
    return sorted(loops, key=lambda loop: -loop.equations)


def _is_inside(frame: Frame, outer: Sequence[Frame], statement: Statement) -> bool:
    """Whether a frame is of a lambda, comprehension or function inside of the loop, that the loop itself called.

    The loop's own frame is then further out; without this its equations would count once for each of the two.
    """
    return any(
        each.file == frame.file
        and frame.function.startswith(f"{each.function}.")
        and statement in statements_around(each)
        for each in outer
    )


def _loop(statement: Statement, repeats: int, parts: list[list[Site]]) -> Loop:
    sites = [site for members in parts for site in members]
    directions = Counter(site.direction for site in sites)
    primitives = Counter(site.primitive for site in sites)
    shapes: dict[Hashable, Counter[Hashable]] = {}
    for site in sites:
        result = tuple(str(variable.aval) for variable in site.equation.outvars)
        shapes.setdefault((site.frames, site.primitive, site.direction), Counter())[result] += 1
    usual = sum(counts.most_common(1)[0][1] for counts in shapes.values())
    one_shape = usual >= _FITTING_SHARE * len(sites)
    cure = _SCAN if one_shape else _SHAPES
    if one_shape and any(primitives[name] >= repeats for name in _PADDING):
        cure += _PAD
    return Loop(
        statement,
        repeats,
        len(parts),
        len(sites),
        directions["forward"],
        directions["backward"],
        directions["other"],
        cure,
    )


def statements_around(frame: Frame) -> list[Statement]:
    """The loops of a file that a place in it lies in, the innermost first."""
    return [
        Statement(frame.file, line, text)
        for line, text, start, end in _statements(frame.file)
        if start <= (frame.line, frame.column) < end
    ]


@cache
def source_of(file: str) -> tuple[str, ...]:
    """The lines of a source file as Python counts and decodes them; none where it cannot be read."""
    try:
        path = Path(file)
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            return ()
        with path.open("rb") as stream:
            encoding, _ = tokenize.detect_encoding(stream.readline)
        # Not splitlines: a form feed ends no line of Python's.
        return tuple(path.read_text(encoding=encoding, errors="replace").removesuffix("\n").split("\n"))
    except (OSError, SyntaxError):
        return ()


Place = tuple[int, int]


@cache
def _statements(file: str) -> list[tuple[int, str, Place, Place]]:
    """Line, text, and where the body begins and ends, of each loop of a file, the innermost first."""
    lines = source_of(file)
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            body, last = node.body[0], node.body[-1]
            start, end = (
                (body.lineno, body.col_offset),
                (last.end_lineno or last.lineno, (last.end_col_offset or 0) + 1),
            )
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            start, end = (
                (node.lineno, node.col_offset),
                (node.end_lineno or node.lineno, (node.end_col_offset or 0) + 1),
            )
        else:
            continue
        found.append((node.lineno, lines[node.lineno - 1].strip(), start, end))
    return sorted(found, key=lambda each: (-each[2][0], -each[2][1]))
