"""Two CPU devices, warnings as errors, array shapes checked; nothing written outside the test's own folders."""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

# Before JAX is imported anywhere.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import pytest
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning
from hypothesis import settings
from jaxtyping import install_import_hook

from hayakuchi.runtime import set_up_jax

# Loaded machines are slow; and CI judges a change by the same examples each time, while here new ones are looked for.
settings.register_profile("hayakuchi", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("hayakuchi")

# Annotations such as Float[Array, "B T D"] are checked at run time, under pytest only, where arrays are handled.
ARRAY_MODULES = [
    *("hayakuchi.models", "hayakuchi.train.ctrl_task", "hayakuchi.train.vits_task", "hayakuchi.infer.sampling"),
]
warnings.filterwarnings("ignore", category=BeartypeDecorHintPep585DeprecationWarning)  # the hints are Flax's
install_import_hook(ARRAY_MODULES, "beartype.beartype")

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled programs are shared by the tests of a session, and by no one else."""
    os.environ["HAYAKUCHI_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    set_up_jax()
    # Most programs here run once or twice: their compilation is the time of the suite, and this halves it. The programs
    # that tests start as users do (tests/e2e, the sessions of several processes) are optimised all the same.
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def _programs_of_one_file() -> Iterator[None]:
    """Compiled programs go when a file's tests are done: each takes a few of the 65,530 memory maps of a process.

    A worker that keeps those of the whole suite dies of a segmentation fault in the compiler.
    """
    yield
    jax.clear_caches()
    gc.collect()
