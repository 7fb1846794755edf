"""`--profile N`: a profiler trace of some steps, and what took the time in them.

The files open in xprof, TensorBoard's profile page and Perfetto; the table is ours, and needs none of these.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from hayakuchi import strict_json
from hayakuchi.errors import UserError
from hayakuchi.progress import Bar
from hayakuchi.tracing.hlo import Instruction, instructions, module_of

FOLDER, SINKS = "profile", "sinks.json"
_SKIPPED = 2  # steps at the start of a session, which still wake things up
_MODULE = "jit_step"
_DEPTH = 3
_TOLD = 10
_CONTROL = ("while", "conditional", "call")  # what runs others


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
    """Takes a profile of `count` steps of a session into RUN/profile, in place of the last session's.

    Args:
      run: run directory; None takes none. Of several processes each would write what the first does, so it alone does.
      count: steps; 0 takes none.
      executables: the compiled steps.
      bar: where to say what was found.

    Raises:
      UserError: of `before` and `close`: it cannot be written there.
    """

    def __init__(self, run: Path | None, count: int, executables: Sequence[Any], bar: Bar) -> None:
        self._folder = run / FOLDER if run is not None and count else None
        self._count = count
        self._executables = executables
        self._bar = bar
        self._begun = self._profiled = 0
        self._running = False
        self._last: Any = None

    def before(self) -> None:
        """To be called before a step."""
        if self._folder is not None and self._begun == _SKIPPED and not self._running:
            jax.block_until_ready(self._last)  # else the end of the step before would be seen too
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

    def after(self, metrics: Any) -> bool:
        """To be called after a step, with what it gave; whether it was the last one to profile: then call `close`."""
        self._last = metrics
        if not self._running:
            return False
        self._profiled += 1
        if self._profiled < self._count:
            return False
        jax.block_until_ready(metrics)
        return True

    def close(self) -> None:
        """Ends the profile, and tells what took the time; nothing where none is being taken."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        if not self._running:
            self._bar.say(f"no profile: it begins with step {_SKIPPED + 1} of a session, this one had {self._begun}")
            return
        self._running = False
        try:
            jax.block_until_ready(self._last)
            jax.profiler.stop_trace()
            found = read_sinks(folder, self._executables, self._profiled)
            (folder / SINKS).write_text(strict_json.dumps(found) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:
            raise UserError(f"{folder}: the profile cannot be written ({error})") from error
        self._bar.say(sinks_text(found, folder, self._count))

    def abandon(self) -> None:
        """Ends the profile of a session that failed."""
        if self._running:
            self._running, self._folder = False, None
            with suppress(OSError, RuntimeError):
                jax.profiler.stop_trace()


def read_sinks(folder: Path, executables: Sequence[Any], steps: int) -> dict[str, Any]:
    """What took the time of the profiled steps.

    Args:
      folder: of the profile.
      executables: the compiled steps, which say what the operations are.
      steps: how many were profiled.

    Returns:
      "steps"; "milliseconds" of all operations, a step; "modules" and "operations", the largest first (see `Sink`).
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for path in sorted(folder.rglob("*.xplane.pb")):
        for program, name, duration in operation_times(jax.profiler.ProfileData.from_file(str(path)).planes):
            seconds[program, name] += duration
    texts = [{each.name: each for each in instructions(executable.as_text() or "")} for executable in executables]
    return summed(seconds, texts, max(steps, 1))


def operation_times(planes: Iterable[Any]) -> Iterator[tuple[str, str, float]]:
    """Program, name and own nanoseconds of each operation of the step that was run: without those that ran inside it.

    A device has planes of its own; a CPU's operations are among the host's threads.
    """
    found = [(plane.name.startswith("/device:"), _operations(plane)) for plane in planes]
    device = any(of_device and any(lines) for of_device, lines in found)
    for of_device, lines in found:
        if of_device or not device:
            for line in lines:
                yield from _own_times(line)


_Operation = tuple[float, float, str, str]


def _operations(plane: Any) -> list[list[_Operation]]:
    """By line the start, end, program and name of the operations, the outer before the inner.

    On a CPU some begin work that goes on when their event is over; another event then tells the end.
    """
    lines, ends = [], {}
    for line in plane.lines:
        found = []
        for event in line.events:
            stats = dict(event.stats)
            end = float(event.start_ns + event.duration_ns)
            if "hlo_op" in stats and str(stats.get("hlo_module", "")).startswith(_MODULE):
                name = str(stats["hlo_op"])
                found.append((float(event.start_ns), end, str(stats.get("program_id", "")), name, stats.get("_p")))
            elif event.name.startswith("end: ") and "_c" in stats:
                ends[stats["_c"]] = end
        lines.append(found)
    joined = [
        [(start, max(end, ends.get(flow, 0.0)), program, name) for start, end, program, name, flow in line]
        for line in lines
    ]
    return [sorted(line, key=lambda each: (each[0], -each[1])) for line in joined]


def _own_times(operations: list[_Operation]) -> Iterator[tuple[str, str, float]]:
    open_: list[tuple[float, str, str, list[float]]] = []  # end, program, name; its time, and that of those inside

    def finish(until: float) -> Iterator[tuple[str, str, float]]:
        while open_ and open_[-1][0] <= until:
            _, program, name, times = open_.pop()
            yield program, name, max(times[0] - times[1], 0.0)

    for start, end, program, name in operations:
        yield from finish(start)
        if open_:
            open_[-1][3][1] += min(end, open_[-1][0]) - start
        open_.append((end, program, name, [end - start, 0.0]))
    yield from finish(float("inf"))


def summed(
    nanoseconds: dict[tuple[str, str], float], texts: Sequence[dict[str, Instruction]], steps: int
) -> dict[str, Any]:
    """The times of operations, and of the modules that they belong to (see `read_sinks`).

    Args:
      nanoseconds: by program and operation.
      texts: of each compiled step its instructions by name; a program is the one that has most of its operations.
      steps: that were profiled.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for program, name in nanoseconds:
        names[program].add(name)
    known = {program: _text_of(these, texts) for program, these in names.items()}
    modules: dict[tuple[str, str], float] = defaultdict(float)
    operations: dict[tuple[str, str, str, int], float] = defaultdict(float)
    for (program, name), spent in nanoseconds.items():
        instruction = known[program].get(name)
        if instruction is None:
            modules["(no module)", "other"] += spent
            operations[name, "other", "", 0] += spent
        elif instruction.opcode not in _CONTROL:
            scopes, direction = module_of(instruction.operation)
            modules["/".join(scopes[:_DEPTH]) or "(no module)", direction] += spent
            told = f"{name} ({instruction.operation})" if instruction.operation else name
            operations[told, direction, instruction.file, instruction.line] += spent
    total = max(sum(modules.values()), 1.0)
    of_modules = [Sink(*key, spent / 1e6 / steps, spent / total) for key, spent in modules.items()]
    of_operations = [
        Sink(name, direction, spent / 1e6 / steps, spent / total, file, line)
        for (name, direction, file, line), spent in operations.items()
    ]
    return {
        "steps": steps,
        "milliseconds": sum(modules.values()) / 1e6 / steps,
        "modules": [asdict(sink) for sink in sorted(of_modules, key=lambda sink: -sink.share)],
        "operations": [asdict(sink) for sink in sorted(of_operations, key=lambda sink: -sink.share)],
    }


def _text_of(names: set[str], texts: Sequence[dict[str, Instruction]]) -> dict[str, Instruction]:
    """The compiled step that has most of the names."""
    return max(texts, key=lambda text: len(names & text.keys()), default={})


def sinks_text(found: dict[str, Any], folder: Path, asked: int) -> str:
    """The largest sinks, for people."""
    threads = f"{found['milliseconds']:,.1f} ms of operations a step, on all threads together"
    of = f" of the {asked} asked for" if asked != found["steps"] else ""
    lines = [f"profile of {found['steps']} steps{of} in {folder}: {threads}"]
    lines += [f"{_figures(sink)}  {sink['direction']:8}  {sink['name']}" for sink in found["modules"][:_TOLD]]
    lines.append("  and by operation")
    for sink in found["operations"][:_TOLD]:
        place = f"  {Path(sink['file']).name}:{sink['line']}" if sink["file"] else ""
        lines.append(f"{_figures(sink)}  {sink['name']}{place}")
    return "\n".join(lines)


def _figures(sink: dict[str, Any]) -> str:
    return f"  {100 * sink['share']:5.1f}%  {sink['milliseconds']:9.2f} ms"
