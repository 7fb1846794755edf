"""Settings that every verb shares."""

import os
import subprocess
import sys

import pytest

from hayakuchi import runtime


def test_what_libraries_log_of_a_failed_save_is_not_shown():
    # asyncio tells of every write that failed beside the first, but only when the collector comes by.
    program = (
        "import logging; from hayakuchi.runtime import set_up_logging; set_up_logging();"
        "[logging.getLogger(name).error('failed') for name in ('asyncio', 'absl')];"
        "logging.getLogger('hayakuchi').warning('ours')"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stderr == "hayakuchi: ours\n"


def test_a_verb_that_computes_starts_with_huge_pages(monkeypatch, tmp_path):
    """Once, with the same words; not where the user has a setting, the system offers none or the C library is old."""
    started = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    monkeypatch.setattr(sys, "orig_argv", ["python", "hayakuchi", "train", "ctrl-nano", "--batch=8"])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(runtime, "_HUGE_PAGES", tmp_path / "enabled")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setenv("OTHER", "stays")

    def starts(verb="train", pages="always [madvise] never", library="glibc 2.36"):
        started.clear()
        (tmp_path / "enabled").write_text(pages, encoding="ascii")
        monkeypatch.setattr(os, "confstr", lambda _: library)
        runtime.restart_with_huge_pages(verb)
        return bool(started)

    assert starts()
    program, words, environment = started[0]
    assert [program, *words] == [sys.executable, sys.executable, *sys.orig_argv[1:]]
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert environment["OTHER"] == "stays"
    assert not starts(verb="prepare")
    assert not starts(verb="")
    assert not starts(pages="[always] madvise never")
    assert not starts(pages="always madvise [never]")
    assert not starts(library="glibc 2.31")
    assert not starts(library="musl 1.2")
    assert starts(library="glibc 3.0")
    monkeypatch.setenv("GLIBC_TUNABLES", environment["GLIBC_TUNABLES"])
    assert not starts(), "the process that was begun anew must not begin another"
    monkeypatch.delenv("GLIBC_TUNABLES")
    (tmp_path / "enabled").unlink()
    started.clear()
    runtime.restart_with_huge_pages("train")
    assert not started


def test_on_a_machine_without_an_accelerator_jax_is_told_so():
    """Or the drivers that lie there for `plan` alone would complain; whoever has set JAX_PLATFORMS knows better."""
    program = (
        "from hayakuchi import runtime; runtime._DEVICE_FILES = ({file!r},); runtime.set_up_jax();"
        "import jax; print(jax.config.jax_platforms)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}

    def platforms(file, **others):
        words = [sys.executable, "-c", program.format(file=file)]
        done = subprocess.run(words, env=environment | others, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert platforms("/dev/none of these") == "cpu"
    assert platforms(os.devnull) == "None"
    assert platforms("/dev/none of these", JAX_PLATFORMS="cpu,cuda") == "cpu,cuda"


@pytest.mark.parametrize("level", [None, "0"])
def test_banners_of_xla_are_not_shown_but_its_errors_are_raised(level):
    """Of the command's own process; whoever has set the level sees them."""
    program = """
import sys
from hayakuchi import __main__, cli

def compute():
    assert "jaxlib" not in sys.modules, "it is too late for the setting"
    import jax, jax.numpy as jnp, numpy as np
    jax.config.update("jax_enable_compilation_cache", False)
    row = np.arange(2_000, dtype=np.float32)
    # A constant that takes XLA seconds to fold, of which it complains.
    jax.jit(lambda: jax.lax.reduce_window(jnp.asarray(row), np.float32(0), jax.lax.add, (3_001,), (1,), "SAME"))()
    try:
        jnp.zeros(1 << 48, jnp.int8)
    except RuntimeError as error:
        print(error)

cli.main = compute
sys.argv = ["hayakuchi"]
__main__.main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    environment["JAX_PLATFORMS"] = "cpu"
    call = [sys.executable, "-c", program]
    said = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
    assert "RESOURCE_EXHAUSTED" in said.stdout
    if level is None:
        assert not said.stderr
    else:
        assert "file a bug" in said.stderr
