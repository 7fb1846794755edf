"""What a compiler says of the memory of a step."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Memory:
    """What a compiled step needs on each device, in bytes, as the compiler accounts for it.

    Attributes:
      arguments: state and batch.
      temporaries: what comes and goes in between.
      outputs: the new state and the metrics.
      aliased: outputs that take the place of donated arguments.
    """

    arguments: int
    temporaries: int
    outputs: int
    aliased: int

    @property
    def peak(self) -> int:
        return self.arguments + self.temporaries + self.outputs - self.aliased

    def to_dict(self) -> dict[str, int]:
        return {**asdict(self), "peak": self.peak}


def memory_of(executables: Iterable[Any]) -> Memory:
    """The memory of the executable that needs most; each is the step in another shape of batch."""
    found = []
    for executable in executables:
        told = executable.memory_analysis()
        sizes = (
            *(told.argument_size_in_bytes, told.temp_size_in_bytes),
            *(told.output_size_in_bytes, told.alias_size_in_bytes),
        )
        found.append(Memory(*sizes))
    return max(found, key=lambda memory: memory.peak)
