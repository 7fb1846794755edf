"""Settings of JAX and of logging that every verb shares; called before the first computation."""

import logging
import os
import sys
import warnings
from pathlib import Path

_COMPUTING = ("attribute", "bench", "convert", "demo", "evaluate", "generate", "inspect", "plan", "speak", "train")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST_WITH_HUGE_PAGES = [2, 35]
# Of which a machine with an accelerator has one: NVIDIA's, those of WSL and AMD, a TPU's.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/accel0", "/dev/vfio")
_SHORTEST_CACHED_COMPILE_SECONDS = 0.2


def cache_folder() -> Path:
    """Where compiled programs are kept: HAYAKUCHI_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("HAYAKUCHI_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hayakuchi"


def set_up_jax() -> None:
    """Keeps compiled programs on disk, so that a second start compiles nothing that took a noticeable time.

    On a machine without any accelerator JAX is told so.
    """
    import jax

    if "JAX_PLATFORMS" not in os.environ and sys.platform == "linux" and not any(map(os.path.exists, _DEVICE_FILES)):
        # The compilers that `plan` asks come with the drivers' halves of JAX: without a device these fail, at length.
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_CACHED_COMPILE_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def quiet_xla() -> None:
    """Keeps the log of XLA's C++ code, such as its remarks on slow compilation, off standard error.

    What fails there is raised as an exception with its text all the same, and a fatal error is still printed. The
    library reads the setting once, as it is loaded; a user's own value stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def restart_with_huge_pages(verb: str) -> None:
    """Begins the process anew with a C library that asks for huge pages, where that helps; else returns.

    XLA:CPU allocates the temporaries of a program anew for every call, and glibc gives such large blocks back to the
    system at once, which then has to clear each page of 4 KiB again: a tenth to a fifth of a training step
    (bench/LEDGER.md). Pages of 2 MiB are cleared faster, and the memory a process takes stays the same. glibc reads the
    setting at the start of a process only; whoever has set GLIBC_TUNABLES knows better.
    """
    if verb not in _COMPUTING or sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    try:
        library, _, release = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        offered = "[madvise]" in _HUGE_PAGES.read_text(encoding="ascii")
    except (OSError, ValueError):
        return
    if library != "glibc" or [int(part) for part in release.split(".")[:2]] < _FIRST_WITH_HUGE_PAGES or not offered:
        return
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this very command


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
