"""Settings of JAX and of logging that every verb shares; called before the first computation."""

import ctypes
import logging
import os
import platform
import sys
import warnings
from pathlib import Path

# M_MMAP_MAX, M_TRIM_THRESHOLD and M_ARENA_MAX of malloc.h: no block is a mapping of its own, nothing is given back,
# all threads share the one heap that can grow.
_MALLOC_OPTIONS = ((-4, 0), (-1, -1), (-8, 1))
_PLENTY_BYTES = 12 << 30
_SHORTEST_CACHED_COMPILE_SECONDS = 0.2


def cache_folder() -> Path:
    """Where compiled programs are kept: HAYAKUCHI_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("HAYAKUCHI_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hayakuchi"


def set_up_jax(*, keep_memory: bool = True) -> None:
    """Keeps compiled programs on disk, so that a second start compiles nothing that took a noticeable time.

    Args:
      keep_memory: see `keep_freed_memory`.
    """
    if keep_memory:
        keep_freed_memory()
    import jax

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_CACHED_COMPILE_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def keep_freed_memory() -> bool:
    """Makes the C library keep what is freed for the next allocation; to be called before JAX starts its threads.

    XLA:CPU allocates the temporaries of a program anew for every call. glibc gives such large blocks back to the system
    at once, which then has to clear each page again: a fifth of the time of a training step (bench/LEDGER.md). The
    process stays as large as it was at its largest, and may grow to twice what it needs: so only where memory is
    plenty. Whoever has set GLIBC_TUNABLES or MALLOC_* knows better.

    Returns:
      Whether it was done: there is nothing to do outside Linux with glibc.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return False
    if platform.libc_ver()[0] != "glibc" or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < _PLENTY_BYTES:
        return False
    library = ctypes.CDLL(None)
    set_options = [library.mallopt(option, value) for option, value in _MALLOC_OPTIONS]
    return all(set_options)


def set_up_logging() -> None:
    """One line a warning, ours only: the libraries tell their own business at that level."""
    logging.basicConfig(format="hayakuchi: %(message)s", level=logging.WARNING)
    for name in ("orbax", "jax", "grain"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Orbax logs to absl. A failed save is raised too, and told in one line; the log adds 200 of tracebacks, and
    # asyncio one for every other write of the save that failed with it, whenever the collector comes by.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    told = sys.unraisablehook

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        # After one write of a save has failed, Orbax closes the event loop on the others, and each complains of that.
        if str(unraisable.exc_value) != "Event loop is closed":
            told(unraisable)

    sys.unraisablehook = tell
    warnings.filterwarnings("ignore", module=r"(orbax|grain|flax|jax)(\.|$)")
