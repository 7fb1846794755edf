"""What `inspect` says of a step's numbers, for people."""

import math
from typing import Any

from hayakuchi.tables import table

_MOST_CULPRITS = 5


def replay_text(result: dict[str, Any], top: int = 20) -> str:
    """The result of `replay`, the first culprit first, with the `top` modules that are nearest to float16's bounds."""
    head = f"step {result['step']} of {result['recipe']} in {result['precision']} on {result['platform']}: "
    if not result["bad"]:
        return (
            f"{head}all is finite when made again here. It came of the device then, or of what is different there "
            "(matmul precision, order of sums): run this on that machine"
        )
    lines = [f"{head}{', '.join(name.replace('_', ' ') for name in result['bad'])}: not finite"]
    return "\n".join([*lines, *numerics_lines(result, top)])


def numerics_lines(result: dict[str, Any], top: int) -> list[str]:
    """Culprits, what was bad before, cures and the table of modules."""
    lines = []
    for number, culprit in enumerate(result["culprits"][:_MOST_CULPRITS]):
        lines += _culprit(culprit, "first culprit" if number == 0 else f"culprit {number + 1}")
    if more := len(result["culprits"]) - _MOST_CULPRITS:
        lines += [f"and {more} more culprits (--json has them)"] if more > 0 else []
    if given := result["arguments"]:
        names = ", ".join(given[:_MOST_CULPRITS]) + (
            f" and {len(given) - _MOST_CULPRITS} more" if len(given) > _MOST_CULPRITS else ""
        )
        lines.append(f"not finite before it began: {names}")
    for name, cured in result.get("cures", {}).items():
        lines.append(f"{name}: {'cures it, the step is finite' if cured else 'does not cure it'}")
    if result["modules"]:
        lines += ["", *_modules(result["modules"], top)]
    return lines


def _culprit(culprit: dict[str, Any], title: str) -> list[str]:
    place = culprit["place"]
    where = f"{place['file']}:{place['line']} in {place['function']}" if place else "(no source line)"
    what = (
        f"{culprit['primitive']} gave {culprit['gave']} in {culprit['bad']:,} of {culprit['values']:,} numbers "
        f"({culprit['dtype']}, {culprit['direction']}"
        + (f", first in round {culprit['round']} of the loop" if culprit["round"] else "")
        + ")"
    )
    if culprit["operands"] is not None:
        what += f", from numbers up to {culprit['operands']:.4g}"
    callers = [f"{frame['file']}:{frame['line']}" for frame in culprit["stack"][:3]]
    return [
        f"{title}: {where}",
        *([f"  module  {culprit['module']}"] if culprit["module"] else []),
        f"  what    {what}",
        f"  cure    {culprit['cure']}",
        *([f"  called  from {', '.join(callers)}"] if callers else []),
    ]


def _modules(modules: list[dict[str, Any]], top: int) -> list[str]:
    columns = (
        *("module", "direction", "largest", "smallest", "RMS", "not finite", "over float16", "under float16"),
        "over bfloat16",
    )
    shares = ("bad_share", "float16_overflow_share", "float16_underflow_share", "bfloat16_overflow_share")
    ranked = sorted(modules, key=lambda row: (-row["bad_share"], -row["float16_overflow_share"], -row["largest"]))
    rows = [
        (
            row["module"],
            row["direction"],
            f"{row['largest']:.3g}",
            f"{row['smallest']:.3g}" if math.isfinite(row["smallest"]) else "-",
            f"{row['root_mean_square']:.3g}",
            *(f"{100 * row[name]:.3g}%" for name in shares),
        )
        for row in ranked[:top]
    ]
    return table(columns, rows, range(2, len(columns)))
