"""Two CPU devices, warnings as errors, array shapes checked; nothing written outside the test's own folders."""

import os
import sys
import warnings
from pathlib import Path

# Before JAX is imported anywhere.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["HF_HUB_OFFLINE"] = "1"

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
