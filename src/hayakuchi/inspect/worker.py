"""Compiles what `inspect` looks at in a process of its own: `python -m hayakuchi.inspect.worker`.

A compile can take for ever and cannot be interrupted, a process can. It reads one JSON request from standard input and
writes one JSON answer to the file that is named there.
"""

import json
import sys
from pathlib import Path
from typing import Any

from hayakuchi.config.recipe import recipe_from_dict
from hayakuchi.inspect.compiling import compile_traced
from hayakuchi.inspect.target import of_file, of_recipe
from hayakuchi.runtime import set_up_jax


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """What `compile_traced` says of a target's first program; `request` is `Target.request`."""
    target = of_file(request["file"]) if "file" in request else of_recipe(recipe_from_dict(request["recipe"], ""))
    return compile_traced(target.trace()[0])


def main() -> None:
    set_up_jax()
    request = json.load(sys.stdin)
    Path(request["answer"]).write_text(json.dumps(compile_request(request)), encoding="utf-8")


if __name__ == "__main__":
    main()
