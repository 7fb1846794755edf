"""Sources of text as they are written on the command line: "KIND:PATH[,code=NAME][,key=value...]"."""

from typing import cast

from hayakuchi.corpora.aozora import AozoraReader
from hayakuchi.corpora.cirrus import CirrusReader
from hayakuchi.corpora.document import Reader
from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.corpora.jsonl import JsonlReader
from hayakuchi.corpora.plain import PlainReader
from hayakuchi.corpora.specs import Kind, choice, parse_spec
from hayakuchi.corpora.wikipedia import WikipediaReader
from hayakuchi.text.codes import check_code_name


def _code(where: str, _key: str, value: str) -> str:
    return check_code_name(value, where)


_KINDS = {
    "aozora": Kind(
        AozoraReader,
        {
            "code": _code,
            "ruby": choice({"drop": "drop", "keep": "keep", "inline": "inline"}),
            "in_copyright": choice({"true": True, "false": False}),
        },
    ),
    "wikipedia": Kind(WikipediaReader, {"code": _code}),
    "cirrus": Kind(CirrusReader, {"code": _code}),
    "jsonl": Kind(JsonlReader, {"code": _code}),
    "plain": Kind(PlainReader, {"code": _code}),
    "embedded": Kind(EmbeddedReader, {"code": _code}, path="none"),
}


def parse_source(spec: str) -> Reader:
    """The reader of a source such as "aozora:works.zip,ruby=keep,code=novel" or "embedded" (see `parse_spec`).

    Raises:
      UserError: unknown kind or option, a value it cannot take, no such path, a malformed code name.
    """
    return cast("Reader", parse_spec(spec, _KINDS))
