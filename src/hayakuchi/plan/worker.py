"""Compiles a training step for devices that are not there, in a process of its own: `python -m hayakuchi.plan.worker`.

libtpu prints as it likes, keeps a gigabyte and may not share a process with another platform; hence the process. It
reads one JSON request from standard input and writes one JSON answer to the file that is named there.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

_TOLD_BUFFERS = 5
_SIZE = r"([\d.]+)([KMGT]?)"
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def compile_step(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles the step of a recipe for a topology.

    Args:
      request: "recipe" as plain values; "platform" "tpu" or "gpu"; "kind", a name for the devices; "topology", how they
        lie; "target", a GPU in its compiler's words; "devices", how many of them.

    Returns:
      "arguments", "temporaries", "outputs", "aliased" and "peak" in bytes a device; or, where the compiler says that
      it does not fit, "needs" and "has" in bytes and "largest", the largest buffers as the compiler tells them. Always
      "seconds" and "kind", what the compiler calls the device.
    """
    import jax
    from jax.experimental import topologies

    from hayakuchi.config.recipe import recipe_from_dict
    from hayakuchi.models.ops import traced_for
    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.plan.account import memory_of
    from hayakuchi.train.loop import lower_steps
    from hayakuchi.train.tasks import make_task

    recipe = recipe_from_dict(request["recipe"], "")
    if request["platform"] == "tpu":
        topology = topologies.get_topology_desc(request["topology"], platform="tpu")
    else:
        options = {"topology": request["topology"], "target_config": request["target"]}
        topology = topologies.get_topology_desc(request["kind"], platform="cuda", **options)
    devices = topology.devices[: request["devices"]]
    started = time.monotonic()
    answer: dict[str, Any] = {"kind": str(getattr(devices[0], "device_kind", ""))}
    with traced_for(request["platform"]):
        try:
            [(_, lowered)] = lower_steps(make_task(recipe), make_mesh(recipe.train.mesh, devices))
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            answer |= read_exhausted(str(error))
        else:
            answer |= memory_of([compiled]).to_dict()
    return answer | {"seconds": round(time.monotonic() - started, 1)}


def read_exhausted(message: str) -> dict[str, Any]:
    """What the compiler says of a step that does not fit: "needs", "has", "arguments", "temporaries", "largest".

    It says so in one of two ways. Where even the temporaries are too many it tells nothing else, and "needs" is them
    alone.
    """
    used = re.search(rf"Used {_SIZE} of {_SIZE}", message)
    short = re.search(rf"temporaries \({_SIZE}\) exceeds available \w+ \({_SIZE}\)", message)
    match = used or short
    if match is None:
        raise ValueError(f"not understood: {message[:300]}")
    needs, has = (_bytes(*match.groups()[at : at + 2]) for at in (0, 2))
    arguments = re.search(rf"\barguments\s+{_SIZE}\b", message)
    temporaries = re.search(rf"\bHLO temp\s+{_SIZE}\b", message)
    return {
        "needs": needs,
        "has": has,
        "arguments": _bytes(*arguments.groups()) if arguments else None,
        "temporaries": needs if short else _bytes(*temporaries.groups()) if temporaries else None,
        "largest": [
            f"{size} {shape}"
            for size, shape in re.findall(r"Size: ([\d.]+[KMGT]?)\b.*?Shape: (\w+\[[\d,]*\])", message, re.DOTALL)
        ][:_TOLD_BUFFERS],
    }


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _FACTORS[unit])


def main() -> None:
    request = json.load(sys.stdin)
    answer = compile_step(request)
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
