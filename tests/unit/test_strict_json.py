"""What every JSON file of ours is written with."""

import ast
import json
from pathlib import Path

import pytest

from hayakuchi import strict_json

PACKAGE = Path(strict_json.__file__).parent
# What the program alone reads again: requests, answers and keys of its own worker processes and caches; and settings,
# whose numbers are checked to be finite.
INTERNAL = {
    *("owner.py", "strict_json.py", "config/__init__.py", "plan/worker.py", "plan/compile.py", "plan/shares.py"),
    *("inspect/worker.py", "inspect/compiling.py", "corpora/embedded_voice.py"),
    *("data/speech_files.py", "data/speech_blocks.py", "data/verification.py"),
}


def test_numbers_that_are_not_finite_become_null_at_any_depth():
    value = {"a": [float("nan"), (1.5, {"b": float("-inf")})], "c": True, "d": "東京\ud800", "e": 10**30}
    text = strict_json.dumps(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [None, [1.5, {"b": None}]],
        "c": True,
        "d": "東京\ud800",
        "e": 10**30,
    }
    assert "\n" not in strict_json.dumps(value, indent=None)


def test_no_file_for_users_is_written_another_way():
    direct = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps"):
                owner = node.value
                if isinstance(owner, ast.Name) and owner.id.startswith("json"):
                    direct.add(path.relative_to(PACKAGE).as_posix())
    assert direct == INTERNAL
