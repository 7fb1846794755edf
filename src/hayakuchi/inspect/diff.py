"""What changed between two results of `inspect`."""

from typing import Any

_FIGURES = (
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
      equations; "new_findings" and "gone_findings".
    """
    figures = {
        name: [before[name], after[name]]
        for name in _FIGURES
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
        "new_findings": _missing(after, before),
        "gone_findings": _missing(before, after),
    }


def _by_text(lines: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        key = line["file"], line["function"], line["text"]
        known = found.setdefault(key, {**line, "equations": 0})
        known["equations"] += line["equations"]
    return found


def _missing(these: dict[str, Any], those: dict[str, Any]) -> list[dict[str, Any]]:
    def key(finding: dict[str, Any]) -> tuple[str, str, str]:
        return finding["kind"], finding["file"], finding["cure"]

    known = {key(each) for each in those.get("findings", [])}
    return [each for each in these.get("findings", []) if key(each) not in known]
