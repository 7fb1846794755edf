"""The equations of a program by the source line that made them."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from hayakuchi.inspect.loops import repeats_of, source_of
from hayakuchi.tracing.source import Frame
from hayakuchi.tracing.walk import Site

NARROW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Line:
    """What a line of source became.

    Attributes:
      file, line, function: where.
      text: the line.
      equations: of the jaxpr, bodies of loops counted once.
      share: of all equations.
      forward, backward, other: equations by direction.
      repeats: how often the same equations come again.
      widened_bytes: what it makes float32 or float64 of bfloat16 and float16.
      primitives: by frequency.
    """

    file: str
    line: int
    function: str
    text: str
    equations: int
    share: float
    forward: int
    backward: int
    other: int
    repeats: int
    widened_bytes: int
    primitives: dict[str, int]


def own_frame(site: Site, is_own: Callable[[str], bool]) -> Frame | None:
    """The line an equation is told of: the innermost of the user's own, else the innermost there is."""
    return next((frame for frame in site.frames if is_own(frame.file)), site.frames[0] if site.frames else None)


def by_line(sites: Iterable[Site], is_own: Callable[[str], bool]) -> tuple[list[Line], float]:
    """The lines, the one with most equations first; and the share of the equations that have one."""
    groups: dict[tuple[str, int], list[tuple[Frame, Site]]] = {}
    total = 0
    for site in sites:
        total += 1
        frame = own_frame(site, is_own)
        if frame is not None:
            groups.setdefault((frame.file, frame.line), []).append((frame, site))
    lines = [_line(file, line, members, total) for (file, line), members in groups.items()]
    told = sum(line.equations for line in lines)
    return sorted(lines, key=lambda line: (-line.equations, line.file, line.line)), told / max(total, 1)


def _line(file: str, number: int, members: list[tuple[Frame, Site]], total: int) -> Line:
    directions = Counter(site.direction for _, site in members)
    return Line(
        file,
        number,
        members[0][0].function,
        line_text(file, number),
        len(members),
        len(members) / total,
        directions["forward"],
        directions["backward"],
        directions["other"],
        repeats_of(_token(frame, site) for frame, site in members),
        sum(widened_bytes(site) for _, site in members),
        dict(Counter(site.primitive for _, site in members).most_common()),
    )


def line_text(file: str, number: int) -> str:
    """A line of a file without its indent; "" where there is none."""
    source = source_of(file)
    return source[number - 1].strip() if 1 <= number <= len(source) else ""


def widened_bytes(site: Site) -> int:
    """The size of what an equation makes float32 or float64 of bfloat16 or float16; 0 of another equation."""
    if site.primitive != "convert_element_type":
        return 0
    before, after = site.equation.invars[0].aval, site.equation.outvars[0].aval
    if str(before.dtype) not in NARROW or str(after.dtype) not in ("float32", "float64"):
        return 0
    size: int = math.prod(after.shape) * after.dtype.itemsize
    return size


def _token(frame: Frame, site: Site) -> Hashable:
    """What is equal in each round of a loop: the way from the line to the equation."""
    return (site.frames[: site.frames.index(frame) + 1], site.primitive, site.direction)
