"""What a program becomes when it is compiled: how long that takes, how large it gets, which buffers it needs."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from hayakuchi.plan.account import memory_of
from hayakuchi.tracing.hlo import Instruction, instructions

# Fitted to the steps of five recipes in XLA:CPU on machine A (bench/LEDGER.md); other devices differ by several times.
_SECONDS_PER_EQUATION, _SECONDS_PER_CONVOLUTION = 0.0005, 0.064
_WORKER = [sys.executable, "-m", "hayakuchi.inspect.worker"]
_LONGEST_MESSAGE = 300
_MOST_BUFFERS = 10
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_INSIDE = ("fused", "wrapped", "parallel")  # computations of fusions: what is in them never lies in memory
# What is another's memory, or an argument's.
_NO_BUFFER = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "conditional", "call")


@dataclass(frozen=True)
class Buffer:
    """A large result of the compiled program.

    Attributes:
      bytes: its size.
      name: of the instruction.
      shape: as XLA writes it.
      file, line: of the source; "" and 0 where XLA lost it.
      operation: the path of scopes and the primitive.
    """

    bytes: int
    name: str
    shape: str
    file: str
    line: int
    operation: str


def estimated_seconds(equations: int, convolutions: int) -> float:
    """How long a program of so many equations, of these so many convolutions, takes to compile on a CPU, roughly."""
    return round(_SECONDS_PER_EQUATION * equations + _SECONDS_PER_CONVOLUTION * convolutions, 1)


def compile_apart(request: dict[str, Any], patience: float) -> dict[str, Any] | None:
    """What `compile_traced` says of a target, from a process of its own; None if it has not ended in time.

    What was compiled before is compiled again, to see how long it takes.

    Args:
      request: `Target.request`.
      patience: in seconds.

    Raises:
      RuntimeError: it cannot be compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answer, log = (Path(folder) / name for name in ("request.json", "answer.json", "log"))
        asked.write_text(json.dumps({**request, "answer": str(answer)}), encoding="utf-8")
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        try:
            with asked.open("rb") as told, log.open("wb") as said:
                done = subprocess.run(  # noqa: S603 - our own module
                    _WORKER, stdin=told, stdout=said, stderr=said, env=environment, timeout=patience, check=False
                )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode or not answer.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
            raise RuntimeError(f"the compiler failed with {done.returncode}: {lines[-1][:_LONGEST_MESSAGE]}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def compile_traced(traced: jax.stages.Traced) -> dict[str, Any]:
    """Lowers and compiles a program for the devices of this machine.

    Returns:
      "lower_seconds", "compile_seconds"; "stablehlo_bytes"; "hlo_instructions"; "memory" (see `plan.account.Memory`);
      "buffers", the largest ones.
    """
    started = time.monotonic()
    lowered = traced.lower()
    lowered_at = time.monotonic()
    stablehlo = len(lowered.as_text())
    compiling_at = time.monotonic()
    compiled = lowered.compile()
    compiled_at = time.monotonic()
    text = compiled.as_text() or ""
    parts = instructions(text)
    return {
        "lower_seconds": round(lowered_at - started, 3),
        "compile_seconds": round(compiled_at - compiling_at, 3),
        "stablehlo_bytes": stablehlo,
        "hlo_instructions": len(parts),
        "collectives": collectives(parts),
        "memory": memory_of([compiled]).to_dict(),
        "buffers": [asdict(buffer) for buffer in largest_buffers(parts)],
    }


def collectives(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How often the compiled program exchanges data between devices, by the operation."""
    counts = Counter(each.opcode.removesuffix("-start") for each in instructions)
    return {name: counts[name] for name in _COLLECTIVES if counts[name]}


def largest_buffers(instructions: Iterable[Instruction]) -> list[Buffer]:
    """The largest results of instructions outside of fusions."""
    found = [
        Buffer(each.bytes, each.name, each.short_shape, each.file, each.line, each.operation)
        for each in instructions
        if each.opcode not in _NO_BUFFER and not each.computation.startswith(_INSIDE)
    ]
    return sorted(found, key=lambda buffer: -buffer.bytes)[:_MOST_BUFFERS]
