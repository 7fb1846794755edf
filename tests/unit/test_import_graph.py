"""Imports point one way (ARCHITECTURE.md), and what should start fast does not load JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "hayakuchi"

# A module may import modules of its own layer's package and of lower layers only.
LAYERS = (
    {"errors"},
    {"owner"},
    {"config", "directories", "progress", "runtime", "strict_json", "tables", "tracing"},
    {"text", "speech"},
    {"corpora", "data", "models"},
    {"train", "infer"},
    {"plan"},
    {"inspect"},
    {"evaluate", "export"},
    {"bench"},
    {"recipes"},
    {"demo"},
    {"cli", "__main__"},
)
FORBIDDEN = {
    ("models", "text"),
    ("models", "speech"),
    ("models", "corpora"),
    ("models", "data"),
    ("corpora", "data"),
    ("text", "corpora"),
    ("text", "speech"),
}
HEAVY = {"jax", "flax", "optax", "orbax", "grain", "numpy.testing", "matplotlib", "transformers"}


def layer(name: str) -> int:
    return next(index for index, names in enumerate(LAYERS) if name in names)


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path, *, inner: bool) -> set[str]:
    """Dotted names that a file imports; with `inner` those inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if inner else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "hayakuchi" else {base}
    return found


def owner(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    mine = owner(path)
    if mine == "__init__":
        return
    for name in imports(path, inner=True):
        if not name.startswith("hayakuchi."):
            continue
        theirs = name.split(".")[1]
        if theirs == mine:
            continue
        assert layer(theirs) <= layer(mine), f"{mine} must not import {theirs}"
        assert (mine, theirs) not in FORBIDDEN, f"{mine} must not import {theirs}"


@pytest.mark.parametrize("owner_name", ["errors", "config", "text", "speech", "corpora", "recipes", "cli"])
def test_light_parts_do_not_load_jax(owner_name):
    for path in modules():
        if owner(path) == owner_name:
            heavy = {name.split(".")[0] for name in imports(path, inner=False)} & HEAVY
            assert not heavy, f"{path} imports {heavy} at module level"


def test_the_command_line_starts_without_jax():
    loaded = "[name for name in ('jax', 'flax', 'grain', 'orbax') if name in sys.modules]"
    code = f"import sys, hayakuchi.cli; sys.exit(' '.join({loaded}) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_is_in_a_layer():
    for path in modules():
        if owner(path) != "__init__":
            layer(owner(path))
