"""Sources as they are written on the command line, "KIND:PATH[,key=value...]": what text and speech have in common."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hayakuchi.errors import UserError

_OPTION = re.compile(r"([A-Za-z_]+)=(.*)", re.DOTALL)

OptionParser = Callable[[str, str, str], Any]
"""(where, key, value) -> what the reader takes; raises UserError beginning with `where` for a value it cannot take."""


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    Attributes:
      reader: called with the path, if there is one, and the options by name.
      options: what takes the values of each.
      path: "none", "existing", or "any": it may be left out and need not exist.
    """

    reader: Callable[..., Any]
    options: Mapping[str, OptionParser] = field(default_factory=dict)
    path: Literal["none", "existing", "any"] = "existing"


def choice(values: Mapping[str, Any]) -> OptionParser:
    """Takes one of the keys and gives its value."""

    def parse(where: str, key: str, value: str) -> Any:
        if value not in values:
            raise UserError(f"{where}: {key}={value!r} is not one of {', '.join(values)}")
        return values[value]

    return parse


def parse_spec(spec: str, kinds: Mapping[str, Kind]) -> Any:
    """The reader of a source.

    Options are taken from the right for as long as they are options of the kind, so a path may hold commas.

    Raises:
      UserError: unknown kind or option, a value it cannot take, no such path.
    """
    where = f"source {spec!r}"
    name = re.split("[:,]", spec, maxsplit=1)[0]
    kind = kinds.get(name)
    if kind is None:
        raise UserError(f"{where}: unknown kind {name!r}; write KIND:PATH, where KIND is one of {', '.join(kinds)}")
    rest = spec.removeprefix(name)
    if kind.path == "existing" and not rest.startswith(":"):
        raise UserError(f"{where}: the path is missing; write {name}:PATH")
    rest, options = _take_options(rest, kind, where)
    if not rest and kind.path != "existing":
        return kind.reader(**options)
    path = Path(rest[1:]).expanduser() if rest.startswith(":~/") else Path(rest[1:])
    named = kind.path != "none" and rest.startswith(":") and rest != ":"
    if named and _exists(path):
        return kind.reader(path, **options)
    unknown = _OPTION.fullmatch(rest.rpartition(",")[2])
    if unknown and "," in rest:
        known = f"knows {', '.join(kind.options)}" if kind.options else "has none"
        raise UserError(f"{where}: unknown option {unknown[1]!r}; {name} {known}")
    if named and kind.path == "any":
        return kind.reader(path, **options)
    if kind.path == "none":
        raise UserError(f"{where}: {name} has no path; write {name} or {name},{next(iter(kind.options))}=...")
    if not rest.startswith(":"):
        raise UserError(f"{where}: write {name} or {name}:PATH")
    raise UserError(f"{where}: the path is empty" if rest == ":" else f"{where}: no such file or folder: {str(path)!r}")


def _take_options(rest: str, kind: Kind, where: str) -> tuple[str, dict[str, Any]]:
    """Splits ":PATH,key=value" into ":PATH" and the options."""
    options: dict[str, Any] = {}
    while True:
        head, comma, tail = rest.rpartition(",")
        match = _OPTION.fullmatch(tail)
        if not comma or match is None or match[1] not in kind.options:
            return rest, options
        key, value = match.groups()
        if key in options:
            raise UserError(f"{where}: the option {key!r} stands there twice")
        options[key] = kind.options[key](where, key, value)
        rest = head


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes
        return False
