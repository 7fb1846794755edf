"""The result of `inspect` for people: as text, and as files."""

from pathlib import Path
from typing import Any

from hayakuchi import strict_json
from hayakuchi.errors import UserError
from hayakuchi.inspect.html import page
from hayakuchi.inspect.numerics_text import numerics_lines
from hayakuchi.tables import table

RESULT_FILE, PAGE_FILE = "inspect.json", "inspect.html"
_LONGEST_TEXT = 72
_MIB = 1 << 20


def text(result: dict[str, Any], top: int) -> str:
    """Figures, findings, and the `top` lines and buffers."""
    parts = [
        "\n".join(_figures(result)),
        "\n".join(_findings(result["findings"], top)),
        _lines(result, top),
        _buffers(result.get("buffers", []), min(top, 5)),
        "\n".join(numerics_lines(result["numerics"], top)) if "numerics" in result else "",
        "\n".join(_differences(result["diff"], top)) if "diff" in result else "",
    ]
    return "\n\n".join(filter(None, parts))


def write_report(result: dict[str, Any], out: Path) -> None:
    """Writes inspect.json and inspect.html, a page that needs nothing else, into `out`.

    Raises:
      UserError: it cannot be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RESULT_FILE).write_text(strict_json.dumps(result) + "\n", encoding="utf-8")
        (out / PAGE_FILE).write_text(page(result), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--out {out}: cannot write it ({error.strerror})") from error


def _figures(result: dict[str, Any]) -> list[str]:
    directions = ", ".join(f"{result[name]:,} {name}" for name in ("forward", "backward", "other"))
    covered = f"{100 * result['coverage']:.1f}% with a source line"
    seconds = f"trace {result['trace_seconds']:.1f} s"
    if "compile_error" in result:
        seconds += ", not compiled"
    elif result.get("compile_seconds", 0) is None:
        seconds += f", not compiled within {result['patience_seconds']:.0f} s"
    elif "compile_seconds" in result:
        seconds += f", lower {result['lower_seconds']:.1f} s, compile {result['compile_seconds']:.1f} s"
    lines = [
        f"{result['target']}: {result['equations']:,} equations ({directions}), {covered}",
        f"{result['jaxpr_lines']:,} lines of jaxpr; {seconds} ({result['estimated_compile_seconds']} s by equations)",
    ]
    if "memory" in result:
        parts = {name: f"{size / _MIB:,.0f}" for name, size in result["memory"].items()}
        size = f"StableHLO {result['stablehlo_bytes'] / 1e6:,.1f} MB, {result['hlo_instructions']:,} HLO instructions"
        memory = f"{parts['peak']} MiB (arguments {parts['arguments']}, temporaries {parts['temporaries']})"
        lines.append(f"{size}; memory {memory}")
    if exchanged := result.get("collectives"):
        lines.append("compiled: " + ", ".join(f"{name} x {count}" for name, count in exchanged.items()))
    if result["traces"] > 1:
        lines.append(f"its calls cost {result['traces']} traces")
    if "device" in result:
        lines += _device(result["device"])
    return lines


def _device(device: dict[str, Any]) -> list[str]:
    fits = "fits" if device["fits"] else "does not fit"
    needs = f"needs {device['needs'] / 2**30:,.2f} of {device['limit_bytes'] / 2**30:,.2f} GiB"
    known = " (known from before)" if device["cached"] else ""
    head = f"{device['name']}: {fits}, {needs}; compiled in {device['seconds']} s{known}"
    return [head, *(f"  {each}" for each in device["largest"])]


def _findings(findings: list[dict[str, Any]], top: int) -> list[str]:
    lines = []
    for each in findings[:top]:
        where = f"{each['file']}:{each['line']}" if each["file"] else "(no source line)"
        lines += [f"{each['kind']}: {where}", f"  {each['what']}", f"  cure: {each['cure']}"]
    if len(findings) > top:
        lines.append(f"and {len(findings) - top} more findings (--top)")
    return lines


def _lines(result: dict[str, Any], top: int) -> str:
    rows = [
        (
            f"{Path(line['file']).name}:{line['line']}",
            f"{line['equations']:,}",
            f"{100 * line['share']:.1f}%",
            f"{line['forward']:,}",
            f"{line['backward']:,}",
            f"{line['repeats']:,} x {line['equations'] / line['repeats']:.3g}" if line["repeats"] > 1 else "",
            ", ".join(list(line["primitives"])[:3]),
            line["text"][:_LONGEST_TEXT],
        )
        for line in result["lines"][:top]
    ]
    columns = ("line", "equations", "share", "forward", "backward", "repeats", "primitives", "source")
    return "\n".join(table(columns, rows, range(1, 6)))


def _buffers(buffers: list[dict[str, Any]], top: int) -> str:
    rows = [
        (
            f"{buffer['bytes'] / _MIB:,.1f} MiB",
            buffer["shape"],
            f"{Path(buffer['file']).name}:{buffer['line']}" if buffer["file"] else "-",
            buffer["operation"],
        )
        for buffer in buffers[:top]
    ]
    return "\n".join(table(("largest buffers", "shape", "line", "operation"), rows, range(1))) if rows else ""


def _differences(diff: dict[str, Any], top: int) -> list[str]:
    lines = [f"against {diff['other']}:"]
    lines += [
        f"  {name.replace('_', ' ')} {before:,} -> {after:,}" for name, (before, after) in diff["figures"].items()
    ]
    for line in diff["lines"][:top]:
        where = f"{Path(line['file']).name}:{line['line']}"
        lines.append(f"  {where} {line['before']:,} -> {line['after']:,} equations: {line['text'][:_LONGEST_TEXT]}")
    for each in diff["changed_findings"]:
        lines.append(
            f"  changed {each['kind']}: {each['file']}:{each['line']} {each['what']}; before: {each['before']}"
        )
    lines += [f"  new {each['kind']}: {each['file']}:{each['line']} {each['what']}" for each in diff["new_findings"]]
    lines += [f"  gone {each['kind']}: {each['file']}:{each['line']} {each['what']}" for each in diff["gone_findings"]]
    return lines if len(lines) > 1 else [f"no difference to {diff['other']}"]
