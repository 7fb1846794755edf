"""What changed between two results of `inspect`."""

from pathlib import Path
from typing import Any

FIGURES = (
    *("equations", "forward", "backward", "other", "jaxpr_lines", "stablehlo_bytes", "hlo_instructions"),
    *("trace_seconds", "compile_seconds"),
)
# Fewer equations than this share of a line's is no news.
_LEAST_CHANGE = 0.01


def diff(before: dict[str, Any], after: dict[str, Any], other: str) -> dict[str, Any]:
    """Figures, lines and findings that differ.

    A line is the same one where file, function and text are: others above it may have moved it.

    Args:
      before: a former result.
      after: the one of now.
      other: what to call the former.

    Returns:
      "other"; "figures", name to [before, after]; "lines", the largest change first, with "before" and "after" in
      equations; "new_findings" and "gone_findings"; "changed_findings", those now, with "before" in words.
    """
    figures = {
        name: [before[name], after[name]]
        for name in FIGURES
        if None not in (before.get(name), after.get(name)) and before[name] != after[name]
    }
    old, new = _by_text(before["lines"]), _by_text(after["lines"])
    lines = []
    for key in {**old, **new}:
        was, now = old.get(key, {}).get("equations", 0), new.get(key, {}).get("equations", 0)
        if abs(was - now) > _LEAST_CHANGE * max(was, now):
            at = new.get(key) or old[key]
            place = {name: at[name] for name in ("file", "line", "function", "text")}
            lines.append({**place, "before": was, "after": now})
    lines.sort(key=lambda line: -abs(line["after"] - line["before"]))
    return {
        "other": other,
        "figures": figures,
        "lines": lines,
        **_findings(before.get("findings", []), after.get("findings", [])),
    }


def _by_text(lines: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        key = _file(line), line["function"], line["text"]
        known = found.setdefault(key, {**line, "equations": 0})
        known["equations"] += line["equations"]
    return found


def _file(place: dict[str, Any]) -> str:
    """A file as two checkouts have it in common: its name. Function and text tell those of one name apart."""
    return Path(place["file"]).name


def _findings(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The findings that are new, gone, or of another size; equal lines of a file are paired in their order."""
    old, new = _by_place(before), _by_place(after)
    found: dict[str, list[dict[str, Any]]] = {"new_findings": [], "gone_findings": [], "changed_findings": []}
    for key in {**old, **new}:
        was, now = old.get(key, []), new.get(key, [])
        found["gone_findings"] += was[len(now) :]
        found["new_findings"] += now[len(was) :]
        for one, other in zip(was, now, strict=False):
            if abs(one["size"] - other["size"]) > _LEAST_CHANGE * max(one["size"], other["size"]):
                found["changed_findings"].append({**other, "before": one["what"]})
    return found


def _by_place(findings: list[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in sorted(findings, key=lambda each: int(each["line"])):
        # What made a trace is all that tells one from another; a loop or a constant is told by its line.
        told = each["what"] if each["kind"] == "retrace" else ""
        found.setdefault((each["kind"], _file(each), each.get("text", ""), told), []).append(each)
    return found
