"""Measuring several processes in strict turns: one computes while the others wait, so that load from outside meets all.

A case is a script. With `--side NAME` it is one of the sides: it warms up, tells its facts in a line of JSON and then
works once for every line of standard input, each answered with a line of JSON. Without, it is the one that starts the
sides (`Side`), lets them measure in turns (`in_turns`) and prints one JSON object. Answers go through a pipe of their
own, since libraries print what they like.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS_PYTHON = ROOT / ".peers" / "bin" / "python"
_ANSWERS = "HAYAKUCHI_BENCH_ANSWERS"  # number of the file to write them to

# Settings of glibc: pages of 2 MiB, as runtime.restart_with_huge_pages asks for; or no block is a mapping of its own
# and the one heap never shrinks, so that what is freed serves the next allocation.
_ALLOCATORS = {
    "default": "",
    "huge": "glibc.malloc.hugetlb=1",
    "keep": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.arena_max=1",
}
MALLOC = (*_ALLOCATORS, "shipped")
"""glibc's allocator: one setting for all sides alike, or each as its users get it (ours with huge pages)."""

Work = Callable[[str], dict[str, float]]
"""Does what is timed, given a line of the asker; gives figures to be told besides the time."""


class Side:
    """One of the processes. It starts at once; `wait` until it is ready.

    Args:
      python: its interpreter.
      words: further words of its command line, the name of the side among them ("--side", "ours").
      environment: variables it has besides ours.
    """

    def __init__(self, python: str | Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        command = [str(python), str(Path(sys.argv[0]).resolve()), *sys.argv[1:], *words]
        # Only `--malloc` decides on the allocator. Nothing is fetched: all weights are random.
        inherited = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES" and not k.startswith("MALLOC_")}
        variables = {**inherited, "HF_HUB_OFFLINE": "1", **(environment or {})}
        reading, writing = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            command,
            stdin=subprocess.PIPE,
            stdout=2,  # what it prints by itself is no part of our result
            text=True,
            env=variables | {_ANSWERS: str(writing)},
            pass_fds=(writing,),
        )
        os.close(writing)
        self._answers = os.fdopen(reading, encoding="utf-8")
        self._started = time.perf_counter()
        self.facts: dict[str, Any] = {}
        self.warm_up_seconds = 0.0

    def wait(self) -> "Side":
        """Until it is warm."""
        self.facts = self.answer()
        self.warm_up_seconds = time.perf_counter() - self._started
        return self

    def measure(self, line: str = "") -> dict[str, Any]:
        """Lets it work once, alone; gives "seconds", "processor_seconds", "peak_bytes" and "told"."""
        self.ask(line)
        return self.answer()

    def ask(self, line: str = "") -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            sys.exit(f"{self._process.args[0]}: the process ended early; see above")
        return json.loads(line)

    def end(self) -> None:
        """Tells it that nothing comes any more."""
        self._process.stdin.close()

    def close(self) -> None:
        self.end()
        self._process.wait()
        self._answers.close()


def in_turns(sides: Mapping[str, Side], rounds: int, lines: Iterable[str] = ("",)) -> dict[str, list[dict[str, Any]]]:
    """Measures every side `rounds` times with each of `lines`, in turns.

    Gives, by line, one dict a round of what each side answered. Closes the sides.
    """
    found = {line: [] for line in lines}
    for _ in range(rounds):
        for line, answers in found.items():
            answers.append({name: side.measure(line) for name, side in sides.items()})
    for side in sides.values():
        side.close()
    return found


def serve(work: Work, facts: dict[str, Any], warm_ups: Sequence[str] = ("",)) -> None:
    """The other end: works once for every line of standard input.

    Before, it works once for each of `warm_ups`, and then once more: what compiling has freed was given back to the
    system, so that the peak does not count it, and has to be had again.

    Of each turn the first piece of work is not timed: while the others had their turns, a virtual machine's host took
    the pages that this process had freed, and hands them out anew one fault at a time. Training has no such pauses.
    """
    for line in warm_ups:
        work(line)
    facts["peak_megabytes_of_start"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    _forget_peak()
    told = work(warm_ups[-1])
    _tell({**facts, "after_warm_up": {name: float(f"{value:.6g}") for name, value in told.items()}})
    for line in sys.stdin:
        work(line.strip())
        start, used = time.perf_counter(), time.process_time()
        told = work(line.strip())
        seconds, used = time.perf_counter() - start, time.process_time() - used
        _tell({"seconds": seconds, "processor_seconds": used, "peak_bytes": _peak_bytes(), "told": told})


def _tell(answer: dict[str, Any]) -> None:
    os.write(int(os.environ[_ANSWERS]), f"{json.dumps(answer)}\n".encode())


def _forget_peak() -> None:
    """Makes the kernel count the peak of resident memory anew, without what compiling has freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def allocator(choice: str, *, ours: bool) -> dict[str, str]:
    """The variables that give a side the allocator of `--malloc`."""
    if choice == "shipped":
        choice = "huge" if ours else "default"
    return {"GLIBC_TUNABLES": _ALLOCATORS[choice]} if _ALLOCATORS[choice] else {}


def summary(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    values = list(values)
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def seconds_of(rounds: Iterable[Mapping[str, Any]], what: str = "seconds") -> dict[str, dict[str, float]]:
    """Summary by side."""
    rounds = list(rounds)
    return {name: summary(one[name][what] for one in rounds) for name in rounds[0]}


def ratio(rounds: Iterable[Mapping[str, Any]], ours: str, theirs: str) -> dict[str, float]:
    """Summary of our time over theirs of the same round: below 1 we are faster."""
    return summary(one[ours]["seconds"] / one[theirs]["seconds"] for one in rounds)


def peak_megabytes(rounds: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    rounds = list(rounds)
    return {name: round(max(one[name]["peak_bytes"] for one in rounds) / 1e6) for name in rounds[0]}


def machine() -> dict[str, Any]:
    """What the figures depend on, and what else ran."""
    about = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    named = [line.split(":", 1)[1].strip() for line in about.splitlines() if line.startswith("model name")]
    flags = next((line for line in about.splitlines() if line.startswith("flags")), "").split()
    return {
        "processor": named[0] if named else platform.processor(),
        "processors": len(os.sched_getaffinity(0)),
        "vectors": [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags],
        "memory_gigabytes": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        "system": platform.system(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
    }


def parser(about: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every case against a peer has."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--torch", default=default_python(), metavar="PYTHON", help="its interpreter; that of .peers")
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--malloc", default="default", choices=MALLOC, help="allocator of all sides, or as shipped")
    made.add_argument("--tiny", action="store_true", help="another, tiny model: only to see that all runs")
    made.add_argument("--side", help=argparse.SUPPRESS)
    return made


def default_python() -> str:
    """The peers' interpreter, once `make peers` has made it."""
    return str(PEERS_PYTHON) if PEERS_PYTHON.exists() else ""


def torch_versions() -> dict[str, Any]:
    """PyTorch with all the threads there are, and what it is."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    return {
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def jax_versions() -> dict[str, Any]:
    import flax
    import jax

    return {"versions": {"jax": jax.__version__, "flax": flax.__version__}}


def versions(sides: Iterable[Side]) -> dict[str, str]:
    return {name: value for side in sides for name, value in side.facts.pop("versions", {}).items()}
