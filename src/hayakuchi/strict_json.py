"""JSON as RFC 8259 has it: numbers that are not finite, which it cannot write, become null."""

import json
import math
from typing import Any


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """The JSON text of plain values, without a line feed at the end.

    Args:
      value: dictionaries, lists, tuples, strings, numbers, None.
      indent: spaces of a level; None writes one line.
    """
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
