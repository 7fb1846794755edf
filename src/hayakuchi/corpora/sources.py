"""Sources as they are written on the command line: "KIND:PATH[,code=NAME][,key=value...]"."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hayakuchi.corpora.aozora import AozoraReader
from hayakuchi.corpora.cirrus import CirrusReader
from hayakuchi.corpora.document import Reader
from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.corpora.jsonl import JsonlReader
from hayakuchi.corpora.plain import PlainReader
from hayakuchi.corpora.wikipedia import WikipediaReader
from hayakuchi.errors import UserError
from hayakuchi.text.codes import check_code_name


@dataclass(frozen=True)
class _Kind:
    """A kind of source: its reader, whether it has a path, and the values that each of its own options can take."""

    reader: Callable[..., Any]
    has_path: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_KINDS = {
    "aozora": _Kind(
        AozoraReader,
        options={
            "ruby": {"drop": "drop", "keep": "keep", "inline": "inline"},
            "in_copyright": {"true": True, "false": False},
        },
    ),
    "wikipedia": _Kind(WikipediaReader),
    "cirrus": _Kind(CirrusReader),
    "jsonl": _Kind(JsonlReader),
    "plain": _Kind(PlainReader),
    "embedded": _Kind(EmbeddedReader, has_path=False),
}
_OPTION = re.compile(r"([A-Za-z_]+)=(.*)", re.DOTALL)


def parse_source(spec: str) -> Reader:
    """The reader of a source such as "aozora:works.zip,ruby=keep,code=novel" or "embedded".

    Options are taken from the right for as long as they are options of the kind, so a path may hold commas.

    Raises:
      UserError: unknown kind or option, a value it cannot take, no such path, a malformed code name.
    """
    where = f"source {spec!r}"
    name = re.split("[:,]", spec, maxsplit=1)[0]
    kind = _KINDS.get(name)
    if kind is None:
        raise UserError(f"{where}: unknown kind {name!r}; write KIND:PATH, where KIND is one of {', '.join(_KINDS)}")
    rest = spec.removeprefix(name)
    if kind.has_path and not rest.startswith(":"):
        raise UserError(f"{where}: the path is missing; write {name}:PATH")
    rest, options = _take_options(rest, kind, where)
    path = Path(rest[1:]).expanduser() if rest.startswith(":~/") else Path(rest[1:])
    if kind.has_path and rest != ":" and _exists(path):
        return cast("Reader", kind.reader(path, **options))
    if not kind.has_path and not rest:
        return cast("Reader", kind.reader(**options))
    unknown = _OPTION.fullmatch(rest.rpartition(",")[2])
    if unknown and "," in rest:
        raise UserError(f"{where}: unknown option {unknown[1]!r}; {name} knows {', '.join(['code', *kind.options])}")
    if not kind.has_path:
        raise UserError(f"{where}: {name} has no path; write {name} or {name},code=NAME")
    raise UserError(f"{where}: no such file or folder: {str(path)!r}" if rest != ":" else f"{where}: the path is empty")


def _take_options(rest: str, kind: _Kind, where: str) -> tuple[str, dict[str, Any]]:
    """Splits ":PATH,key=value" into ":PATH" and the options."""
    options: dict[str, Any] = {}
    while True:
        head, comma, tail = rest.rpartition(",")
        match = _OPTION.fullmatch(tail)
        if not comma or match is None or match[1] not in ("code", *kind.options):
            return rest, options
        key, value = match.groups()
        if key in options:
            raise UserError(f"{where}: the option {key!r} stands there twice")
        if key == "code":
            options[key] = check_code_name(value, where)
        elif value in kind.options[key]:
            options[key] = kind.options[key][value]
        else:
            raise UserError(f"{where}: {key}={value!r} is not one of {', '.join(kind.options[key])}")
        rest = head


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes
        return False
