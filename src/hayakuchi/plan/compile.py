"""The real step compiled for devices that are not there: the compiler's own account of its memory.

The compiler runs in a process of its own (`worker.py`). What it said is kept on disk, by a hash of all that the answer
depends on: settings, sizes, our own code and the versions of the libraries.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hayakuchi import config, progress
from hayakuchi.config.recipe import Recipe
from hayakuchi.plan.devices import Devices
from hayakuchi.runtime import cache_folder

_PATIENCE_SECONDS = 3_600
_WORKER = [sys.executable, "-m", "hayakuchi.plan.worker"]
# Settings that change no program.
_IDLE = {
    "train": ("steps", "seed", "checkpoint_every", "keep_checkpoints", "log_every", "retrace", "watch", "profile"),
    "data": None,
    "name": None,
}
# Where each platform's compiler comes from.
_LIBRARIES = {"tpu": ("libtpu",), "gpu": ("jax_cuda12_plugin",)}


@dataclass(frozen=True)
class Compilation:
    """What the compiler says of a step, in bytes on one device.

    Attributes:
      arguments: state and batch; None where the compiler gave up before it told.
      temporaries: what comes and goes in between; None as above.
      needs: all of it.
      has: what the device has, where the compiler said so.
      largest: the largest buffers, as the compiler tells them; of a step that does not fit.
      seconds: the compiling took.
      cached: it was known from before.
    """

    arguments: int | None
    temporaries: int | None
    needs: int
    has: int | None = None
    largest: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cached: bool = False


class CompilerError(Exception):
    """The compiler is not there, or failed for another reason than memory; the message says which in one line."""


def digest(recipe: Recipe, *others: object) -> str:
    """A name of all that a compiled step, or a count of it, depends on; `others` are what it is made for."""
    values = config.to_dict(recipe)
    for section, names in _IDLE.items():
        for name in names or ():
            values[section].pop(name)
        if names is None:
            values.pop(section)
    told = json.dumps([values, list(map(str, others)), _versions(), _source()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:24]


def remembered(name: str) -> dict[str, Any] | None:
    """What was kept under a name; None where nothing is, or nothing that can be read."""
    try:
        found = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def remember(name: str, values: dict[str, Any]) -> None:
    """Keeps values under a name; a folder that cannot be written costs the next call its time, and no more."""
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_folder(), delete=False, encoding="utf-8") as file:
            json.dump(values, file)
        Path(file.name).replace(_folder() / f"{name}.json")
    except OSError:
        return


def compile_for(recipe: Recipe, devices: Devices) -> Compilation:
    """Compiles a recipe's step for devices, or reads what was said when that was done before.

    Raises:
      CompilerError: this machine has no compiler for them, or it failed.
    """
    name = digest(recipe, devices.kind, devices.count, devices.topology, devices.target)
    answer, cached = remembered(name), True
    if answer is None:
        answer, cached = _ask(recipe, devices), False
        remember(name, answer)
    if "needs" in answer:
        parts = answer.get("arguments"), answer.get("temporaries")
        return Compilation(*parts, answer["needs"], answer["has"], answer["largest"], answer["seconds"], cached)
    arguments, temporaries = answer["arguments"], answer["temporaries"]
    needs = arguments + temporaries + answer["outputs"] - answer["aliased"]
    return Compilation(arguments, temporaries, needs, seconds=answer["seconds"], cached=cached)


def _ask(recipe: Recipe, devices: Devices) -> dict[str, Any]:
    if not devices.topology:
        raise CompilerError(f"no compiler for {devices.kind} can be asked without one")
    missing = [each for each in _LIBRARIES[devices.platform] if importlib.util.find_spec(each) is None]
    if missing:
        raise CompilerError(
            f"{missing[0]} is not installed (`pip install 'hayakuchi[plan-{devices.platform}]'` asks the compiler)"
        )
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        request = {
            "recipe": config.to_dict(recipe),
            "platform": devices.platform,
            "kind": devices.title,
            "topology": devices.topology,
            "target": devices.target,
            "devices": devices.count,
            "answer": str(answer),
        }
        (Path(folder) / "request.json").write_text(json.dumps(request), encoding="utf-8")
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is held, so two plans may be made at once
        }
        with (
            progress.bar(f"compiling {recipe.name} for {devices.name}", None) as bar,
            (Path(folder) / "request.json").open("rb") as asked,
            log.open("wb") as said,
        ):
            bar.update("1 to 3 minutes on 2 cores; kept for the next time")
            with subprocess.Popen(  # noqa: S603 - our own module
                _WORKER, stdin=asked, stdout=said, stderr=said, env=environment
            ) as process:
                _wait(process)
        if process.returncode or not answer.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
            raise CompilerError(f"the compiler for {devices.kind} failed with {process.returncode}: {lines[-1][:300]}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _wait(process: "subprocess.Popen[bytes]") -> None:
    """Waits for a process; one that is interrupted, or takes an hour, is ended."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    try:
        process.wait(max(ends - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        process.kill()
    except BaseException:
        process.kill()
        raise


def _folder() -> Path:
    return cache_folder() / "plan"


@cache
def _versions() -> list[str]:
    found = []
    for library in ("jax", "jaxlib", "flax", "optax", "libtpu", "jax-cuda12-plugin"):
        try:
            found.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{library} none")
    return found


@cache
def _source() -> str:
    """A hash of the code that a step and its cost are made of."""
    package = Path(__file__).parents[1]
    made = hashlib.sha256()
    for part in ("config", "models", "train", "plan"):
        for path in sorted((package / part).rglob("*.py")):
            made.update(path.read_bytes())
    return made.hexdigest()
