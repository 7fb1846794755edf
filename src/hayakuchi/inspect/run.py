"""The verb `inspect`: a program traced, told by source line, compiled, and compared with what it was."""

import inspect as python_inspect
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hayakuchi import progress
from hayakuchi.errors import UserError
from hayakuchi.inspect import findings
from hayakuchi.inspect.compiling import compile_apart, estimated_seconds
from hayakuchi.inspect.diff import FIGURES
from hayakuchi.inspect.lines import by_line, line_text
from hayakuchi.inspect.loops import find_loops
from hayakuchi.inspect.numerics import examine
from hayakuchi.inspect.target import Target, telling
from hayakuchi.plan.compile import CompilerError, compile_for
from hayakuchi.plan.devices import find_devices
from hayakuchi.tracing.walk import walk

_LARGEST_RESULT_BYTES = 256 << 20


def inspect_target(
    target: Target,
    *,
    device: str = "",
    compiled: bool = True,
    patience: float = 300.0,
    numerics: bool = False,
) -> dict[str, Any]:
    """Traces a target and tells what the compiler is given.

    Args:
      target: a recipe's step, or a user's function.
      device: compile for this TPU or GPU too, without it; recipes only.
      compiled: compile for the device of this machine.
      patience: seconds that this may take.
      numerics: run the function on its arguments and look for what is not finite; functions only.

    Returns:
      Plain values: "target", "equations" with "forward", "backward" and "other", "coverage" (share with a source line),
      "lines", "findings", "jaxpr_lines", "trace_seconds", "estimated_compile_seconds"; with `compiled` what
      `compile_traced` gives, of which "compile_seconds" is None where it did not end, or failed with "compile_error";
      "traces", how many the calls of a function cost; "device" and "numerics" as asked for.

    Raises:
      UserError: the target cannot be traced, or not for that device.
    """
    if device and target.recipe is None:
        raise UserError(f"--device {device}: compiles a recipe's step without the device; {target.name} is a function")
    if numerics and target.recipe is not None:
        raise UserError(
            f"--numerics: runs a function of a file; of {target.name} see `--replay`, or train with --watch"
        )
    devices = find_devices(device) if device else None
    with progress.bar(f"inspecting {target.name}", 3 + bool(device)) as bar:
        bar.update("tracing")
        started = time.monotonic()
        [traced, *_] = target.trace()
        trace_seconds = time.monotonic() - started
        bar.advance(1)
        bar.update("reading")
        result = {"target": target.name, "trace_seconds": round(trace_seconds, 3), **_read(target, traced)}
        bar.advance(1)
        if compiled:
            bar.update(f"compiling, {patience:.0f} s at most")
            try:
                found = compile_apart(target.request, patience)
            except RuntimeError as error:
                found = {"compile_seconds": None, "compile_error": str(error)}
            result |= found or {"compile_seconds": None, "patience_seconds": patience}
        bar.advance(1)
        if devices is not None and target.recipe is not None:
            bar.update(f"compiling for {devices.name}")
            result["device"] = _on_device(target, devices)
        if numerics:
            bar.update("running")
            result["numerics"] = _numerics(target)
    return result


def _read(target: Target, traced: Any) -> dict[str, Any]:
    closed = traced.jaxpr
    sites = list(walk(closed))
    lines, coverage = by_line(sites, target.is_own)
    directions, primitives = Counter(site.direction for site in sites), Counter(site.primitive for site in sites)
    found = [
        *findings.of_loops(find_loops(sites, target.is_own)),
        *findings.of_program(sites, closed, target.is_own),
    ]
    traces = 1
    if target.function is not None:
        names, call = _names(target), target.calls[0]
        static = findings.static_arguments(traced, call, names)
        traces, retraces = findings.of_calls(target.calls, names, target.place, static)
        positions = [at for at in range(len(call)) if at not in static]
        found += [*retraces, *findings.of_donation(traced, target.place, positions)]
    return {
        "equations": len(sites),
        **{name: directions[name] for name in ("forward", "backward", "other")},
        "coverage": coverage,
        "jaxpr_lines": str(closed).count("\n") + 1,
        "estimated_compile_seconds": estimated_seconds(len(sites), primitives["conv_general_dilated"]),
        "traces": traces,
        "lines": [asdict(line) for line in lines],
        "findings": [{**asdict(each), "text": line_text(each.file, each.line)} for each in found],
    }


def _names(target: Target) -> Sequence[str]:
    try:
        return list(python_inspect.signature(target.function).parameters)
    except (TypeError, ValueError):
        return ()


def _on_device(target: Target, devices: Any) -> dict[str, Any]:
    assert target.recipe is not None
    train = target.recipe.train
    recipe = replace(target.recipe, train=replace(train, precision=devices.precision(train.precision)))
    try:
        found = compile_for(recipe, devices)
    except CompilerError as error:
        raise UserError(f"--device {devices.name}: {error}") from error
    fits = found.has is None and found.needs <= devices.limit_bytes
    return {"name": devices.name, "fits": fits, "limit_bytes": devices.limit_bytes, **asdict(found)}


def _numerics(target: Target) -> dict[str, Any]:
    with telling(target.name):
        found = examine(target.function, target.calls[0], lambda result: result, target.is_own)
    return found.to_dict()


def tell_failure(result: dict[str, Any]) -> None:
    """Raises what the compiler said, once the rest has been told.

    Raises:
      RuntimeError: the program of this result did not compile.
    """
    if "compile_error" in result:
        raise RuntimeError(result["compile_error"])


def read_result(path: Path) -> dict[str, Any]:
    """A result that `--json` or `--out` wrote.

    Raises:
      UserError: it is none.
    """
    try:
        if path.stat().st_size > _LARGEST_RESULT_BYTES:
            raise UserError(f"{path}: over {_LARGEST_RESULT_BYTES:,} bytes; not a result of `hayakuchi inspect`")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not _is_result(found):
        raise UserError(f"{path}: not a result of `hayakuchi inspect --json`")
    result: dict[str, Any] = found
    return result


_LINE = {"file": str, "line": int, "function": str, "text": str, "equations": int}
_FINDING = {"kind": str, "file": str, "line": int, "what": str, "cure": str, "size": int | float}


def _is_result(found: Any) -> bool:
    """Whether a value has what `diff` reads."""
    return (
        isinstance(found, dict)
        and _has(found, {"equations": int, "lines": list})
        and isinstance(found.get("findings", []), list)
        and all(isinstance(found.get(name), int | float | None) for name in FIGURES)
        and all(_has(line, _LINE) for line in found["lines"])
        and all(_has(each, _FINDING) and isinstance(each.get("text", ""), str) for each in found.get("findings", []))
    )


def _has(value: Any, types: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in types.items())
