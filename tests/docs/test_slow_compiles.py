"""The example of docs/guides/slow-compiles.md does the same in all its forms, at the sizes that the page tells."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from hayakuchi.inspect.run import inspect_target
from hayakuchi.inspect.target import of_file

EXAMPLE = Path(__file__).parents[2] / "docs" / "guides" / "slow_compiles.py"
sys.path.insert(0, str(EXAMPLE.parent))
import slow_compiles  # noqa: E402 - found there only


def test_all_forms_give_the_same():
    arguments = slow_compiles.example_args(rows=2, frames=40)
    slow = slow_compiles.as_first_written(*arguments)  # not compiled, for the reason that the page tells
    for function in (slow_compiles.rows_at_once, slow_compiles.scanned):
        for one, other in zip(jax.tree.leaves(slow), jax.tree.leaves(function(*arguments)), strict=True):
            np.testing.assert_array_equal(one, other)
    symbols = np.asarray(slow[0])
    assert (np.diff(symbols, axis=1) >= 0).all()
    assert (np.diff(symbols, axis=1) <= 1).all()


@pytest.mark.parametrize(("function", "equations"), [("rows_at_once", 7_192), ("scanned", 40)])
def test_the_page_tells_the_number_of_equations(function, equations):
    result = inspect_target(of_file(f"{EXAMPLE}:{function}"), compiled=False)
    assert result["equations"] == equations
    page = EXAMPLE.with_name("slow-compiles.md").read_text(encoding="utf-8")
    assert f"{equations:,} equations" in page
