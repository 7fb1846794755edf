"""`--profile N`: a profiler trace of some steps, and what took the time in them.

The files open in xprof, TensorBoard's profile page and Perfetto; the table is ours, and needs none of these.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from hayakuchi.errors import UserError
from hayakuchi.progress import Bar
from hayakuchi.tracing.hlo import Instruction, instructions, module_of

FOLDER, SINKS = "profile", "sinks.json"
_SKIPPED = 2  # steps at the start of a session, which still wake things up
_MODULE = "jit_step"
_DEPTH = 3
_TOLD = 10


class Event(Protocol):
    """As `jax.profiler.ProfileData` has it."""

    start_ns: float
    duration_ns: float
    stats: Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class Sink:
    """Something that took time.

    Attributes:
      name: of a module or an operation.
      direction: of the gradient's pass.
      milliseconds: a step, of all threads or devices together.
      share: of the time of all operations.
      file, line: of an operation's source; "" and 0 of a module.
    """

    name: str
    direction: str
    milliseconds: float
    share: float
    file: str = ""
    line: int = 0


class Profiler:
    """Takes a profile of `count` steps of a session into RUN/profile.

    Args:
      run: run directory; None takes none. Of several processes each would write what the first does, so it alone does.
      count: steps; 0 takes none.
      executables: the compiled steps.
      bar: where to say what was found.

    Raises:
      UserError: of `before` and `after`: it cannot be written there.
    """

    def __init__(self, run: Path | None, count: int, executables: Sequence[Any], bar: Bar) -> None:
        self._folder = run / FOLDER if run is not None and count else None
        self._count = count
        self._executables = executables
        self._bar = bar
        self._begun = self._ended = 0
        self._running = False

    def before(self) -> None:
        """To be called before a step."""
        if self._folder is not None and self._begun == _SKIPPED and not self._running:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it slows the host down, and says nothing of the device
            try:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir(parents=True)
                jax.profiler.start_trace(self._folder, create_perfetto_trace=True, profiler_options=options)
            except (OSError, RuntimeError) as error:
                raise UserError(f"{self._folder}: cannot take a profile there ({error})") from error
            self._running = True
        self._begun += 1

    def after(self, metrics: Any) -> None:
        """To be called after a step, with what it gave."""
        if not self._running:
            return
        self._ended += 1
        if self._ended == self._count:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Ends a profile that is being taken, and tells what took the time."""
        if not self._running or self._folder is None:
            return
        steps, self._running, folder, self._folder = self._ended, False, self._folder, None
        try:
            jax.profiler.stop_trace()
            found = read_sinks(folder, self._executables, steps)
            (folder / SINKS).write_text(json.dumps(found, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:
            raise UserError(f"{folder}: the profile cannot be written ({error})") from error
        self._bar.say(sinks_text(found, folder))


def read_sinks(folder: Path, executables: Sequence[Any], steps: int) -> dict[str, Any]:
    """What took the time of the profiled steps.

    Args:
      folder: of the profile.
      executables: the compiled steps, which say what the operations are.
      steps: how many were profiled.

    Returns:
      "steps"; "milliseconds" of all operations, a step; "modules" and "operations", the largest first (see `Sink`).
    """
    known: dict[str, Instruction] = {}
    for executable in executables:
        known |= {each.name: each for each in instructions(executable.as_text() or "")}
    seconds: dict[str, float] = defaultdict(float)
    for path in sorted(folder.rglob("*.xplane.pb")):
        for name, duration in operation_times(jax.profiler.ProfileData.from_file(str(path)).planes):
            seconds[name] += duration
    return summed(seconds, known, max(steps, 1))


def operation_times(planes: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Name and own nanoseconds of each operation of the step that was run: without those that ran inside it.

    A device has planes of its own; a CPU's operations are among the host's threads.
    """
    told = [(plane.name, line) for plane in planes for line in plane.lines]
    device = any(name.startswith("/device:") and _operations(line) for name, line in told)
    for name, line in told:
        if device and not name.startswith("/device:"):
            continue
        yield from _own_times(_operations(line))


def _operations(line: Any) -> list[tuple[float, float, str]]:
    """Start, end and name of the operations on a line, the outer before the inner."""
    found = []
    for event in line.events:
        stats = {key: value for key, value in event.stats if key in ("hlo_op", "hlo_module")}
        if "hlo_op" in stats and str(stats.get("hlo_module", "")).startswith(_MODULE):
            found.append((float(event.start_ns), float(event.start_ns + event.duration_ns), str(stats["hlo_op"])))
    return sorted(found, key=lambda each: (each[0], -each[1]))


def _own_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    open_: list[tuple[float, str, list[float]]] = []  # end, name, time of those inside

    def finish(until: float) -> Iterator[tuple[str, float]]:
        while open_ and open_[-1][0] <= until:
            _, name, times = open_.pop()
            yield name, times[0] - times[1]

    for start, end, name in events:
        yield from finish(start)
        if open_:
            open_[-1][2][1] += end - start
        open_.append((end, name, [end - start, 0.0]))
    yield from finish(float("inf"))


def summed(nanoseconds: dict[str, float], known: dict[str, Instruction], steps: int) -> dict[str, Any]:
    """The times of operations, and of the modules that they belong to (see `read_sinks`)."""
    total = sum(nanoseconds.values())
    modules: dict[tuple[str, str], float] = defaultdict(float)
    operations = []
    for name, spent in nanoseconds.items():
        instruction = known.get(name)
        scopes, direction = module_of(instruction.operation) if instruction else ((), "other")
        modules["/".join(scopes[:_DEPTH]) or "(no module)", direction] += spent
        told = f"{name} ({instruction.operation})" if instruction and instruction.operation else name
        place = (instruction.file, instruction.line) if instruction else ("", 0)
        operations.append(Sink(told, direction, spent / 1e6 / steps, spent / max(total, 1), *place))
    of_modules = [
        Sink(*key, milliseconds=spent / 1e6 / steps, share=spent / max(total, 1)) for key, spent in modules.items()
    ]
    return {
        "steps": steps,
        "milliseconds": total / 1e6 / steps,
        "modules": [asdict(sink) for sink in sorted(of_modules, key=lambda sink: -sink.share)],
        "operations": [asdict(sink) for sink in sorted(operations, key=lambda sink: -sink.share)],
    }


def sinks_text(found: dict[str, Any], folder: Path) -> str:
    """The largest sinks, for people."""
    threads = f"{found['milliseconds']:,.1f} ms of operations a step, on all threads together"
    lines = [f"profile of {found['steps']} steps in {folder}: {threads}"]
    lines += [f"{_figures(sink)}  {sink['direction']:8}  {sink['name']}" for sink in found["modules"][:_TOLD]]
    lines.append("  and by operation")
    for sink in found["operations"][:_TOLD]:
        place = f"  {Path(sink['file']).name}:{sink['line']}" if sink["file"] else ""
        lines.append(f"{_figures(sink)}  {sink['name']}{place}")
    return "\n".join(lines)


def _figures(sink: dict[str, Any]) -> str:
    return f"  {100 * sink['share']:5.1f}%  {sink['milliseconds']:9.2f} ms"
