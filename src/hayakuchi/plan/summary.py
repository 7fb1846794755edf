"""A plan as people read it."""

from typing import Any

GIB = 1 << 30


def summary(plan: dict[str, Any]) -> str:
    """The plan of `make_plan` as a table of two columns, and its notes below."""
    times = f"{plan['devices']} x {plan['title']}" if plan["devices"] > 1 else plan["title"]
    micro = f", {plan['accumulate']} micro-batches" if plan["accumulate"] > 1 else ""
    unit = next(name for name in plan if name.endswith("_per_second")).removesuffix("_per_second")
    rows = [
        ("device", f"{plan['device']}: {times}"),
        ("batch", f"{plan['batch']}{micro}, {plan['precision']}"),
        ("parameters", f"{plan['parameters']:,}"),
        ("a step", f"{plan['flops_per_step']:.3g} operations, {_gib(plan['bytes_per_step'])} moved on each device"),
        ("memory", _memory(plan)),
        *(("", f"largest: {line}") for line in plan["largest_buffers"]),
        ("largest batch", _largest(plan)),
        *((f"batch of {wanted}", _parts(parts)) for wanted, parts in plan["accumulation"].items()),
        ("step time", f"{_range(plan['step_seconds'])} s, {_range(plan[f'{unit}_per_second'])} {unit}/s"),
        ("", _share(plan["share"])),
        ("days", f"{_range(plan['days'])} for {plan['steps']:,} steps"),
        *_costs(plan),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    return "\n".join([f"{plan['recipe']} on {plan['device']}", *lines, *(f"note: {note}" for note in plan["notes"])])


def _memory(plan: dict[str, Any]) -> str:
    parts = f"state and batch {_gib(plan['argument_bytes'])}, temporaries {_gib(plan['temporary_bytes'])}"
    source = f"{parts}; {plan['memory_source']}"
    needs, has = plan["memory_bytes"], plan["limit_bytes"]
    if plan["fits"]:
        return f"fits: needs {_gib(needs)} of {_gib(has)} a device ({source})"
    return f"does not fit: needs {_gib(needs)}, has {_gib(has)} a device: {_gib(needs - has)} too many ({source})"


def _largest(plan: dict[str, Any]) -> str:
    if plan["largest_batch"] == 0:
        return "not even one row a device fits"
    return f"{plan['largest_batch']:,} at once ({plan['largest_batch'] // plan['devices']:,} a device), estimated"


def _parts(parts: int | None) -> str:
    if parts is None:
        return "cannot be made of what fits"
    return "fits at once" if parts == 1 else f"--accumulate {parts}"


def _share(share: dict[str, Any]) -> str:
    basis = f"from {share['measurements']} measurements" if share["measurements"] else "assumed, see --calibrate"
    return f"at {100 * share['low']:.0f}-{100 * share['high']:.0f}% of what the device can do ({basis})"


def _costs(plan: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for kind, words in (("on_demand", "on demand"), ("spot", "spot")):
        if plan["usd"][kind] is not None:
            rows.append((f"US$ {words}", _range(plan["usd"][kind])))
    if rows:
        rows.append(("", f"prices of {plan['price']['date']}: {plan['price']['source']}"))
    return rows


def _range(ends: list[float]) -> str:
    low, high = (f"{end:,.0f}" if end >= 1_000 else f"{end:.3g}" for end in ends)
    return f"{low} to {high}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f} GiB"
