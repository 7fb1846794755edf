"""The result of `bench` as a table for a terminal, and as files."""

from pathlib import Path
from typing import Any

from hayakuchi import strict_json, tables
from hayakuchi.errors import UserError
from hayakuchi.evaluate import charts

RESULT_FILE, PICTURE_FILE = "bench.json", "bench.png"
_BAR_COLOUR = "#a6cee3"  # light enough to be written on


def table(result: dict[str, Any]) -> str:
    """The figures as a table, one row a variant."""
    unit = result["unit"]
    ran = _ran(result)
    voice = any(row["audio_seconds_per_second"] for row in ran)
    waited = any(row["data_wait_share"] is not None for row in ran)
    sought = any(row["largest_batch"] for row in ran)
    columns = [
        *("variant", "ms a step", f"{unit}/s", *(["audio s/s"] if voice else []), "steps/s", "speed", "memory"),
        *("GFLOP/s", "of peak", *(["data wait"] if waited else []), "compile s"),
        *(["largest batch"] if sought else []),
    ]
    rows = []
    for row in ran:
        step, speed = row["step_seconds"], row["throughput_ratio"]
        rows.append(
            (
                row["label"],
                f"{1e3 * step['median']:.4g} ({1e3 * step['least']:.4g}-{1e3 * step['most']:.4g})",
                f"{row['units_per_second']['median']:,.0f}",
                *([f"{row['audio_seconds_per_second']['median']:.3g}"] if voice else []),
                f"{row['steps_per_second']['median']:.3g}",
                f"{speed['median']:.2f} x",
                _size(row["memory_bytes"]["peak"]),
                f"{row['flops_per_second'] / 1e9:,.1f}",
                f"{100 * row['share_of_peak']:.0f}%",
                *([f"{100 * row['data_wait_share']:.1f}%"] if waited else []),
                f"{row['compile_seconds']:.1f}",
                *([_largest(row["largest_batch"])] if sought else []),
            )
        )
    device = result["device"]
    peaks = [f"{rate / 1e9:,.0f} GFLOP/s {name}" for name, rate in result["matmul_flops_per_second"].items()]
    lines = [
        f"{result['recipe']} on {device['count']} x {device['kind']}; matrix products here: {', '.join(peaks)}",
        *tables.table(columns, rows, range(1, len(columns))),
        *(f"{row['label']}: cannot run: {row['failure']}" for row in result["variants"] if row["failure"]),
        *(f"note: {note}" for note in result["notes"]),
    ]
    return "\n".join(lines)


def write_report(result: dict[str, Any], out: Path) -> None:
    """Writes `bench.json` and the picture `bench.png` into a folder that exists.

    Raises:
      UserError: one of them cannot be written.
    """
    text = strict_json.dumps(result) + "\n"
    try:
        (out / RESULT_FILE).write_text(text, encoding="utf-8", errors="replace")
        _draw(out / PICTURE_FILE, result)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot write it ({error.strerror or error})") from error


def _draw(path: Path, result: dict[str, Any]) -> None:
    """Step time and throughput with their spread, and memory; a variant that cannot run has no bar."""
    # Of an optional extra.
    from matplotlib.figure import Figure

    rows = result["variants"]
    ran = {index: row for index, row in enumerate(rows) if not row["failure"]}
    labels = [row["label"] if index in ran else f"{row['label']}: cannot run" for index, row in enumerate(rows)]
    panels: list[tuple[str, list[tuple[float, float, float]], str]] = [
        ("a step, in ms", [_parts(row["step_seconds"], 1e3) for row in ran.values()], "%.4g"),
        (f"1,000 {result['unit']}/s", [_parts(row["units_per_second"], 1e-3) for row in ran.values()], "%.3g"),
        ("memory a device, in MiB", [(row["memory_bytes"]["peak"] / 2**20, 0, 0) for row in ran.values()], "%.0f"),
    ]
    with charts.drawing():
        figure = Figure(figsize=(13, 1.6 + 0.4 * len(rows)), layout="constrained")
        for axes, (name, parts, form) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            median, below, above = zip(*parts, strict=True)
            spread = (below, above) if any(above) or any(below) else None
            axes.barh(list(ran), median, color=_BAR_COLOUR, xerr=spread, ecolor="0.35", capsize=3)
            for index, value in zip(ran, median, strict=True):
                # At the foot of the bar, clear of its spread.
                axes.annotate(form % value, (0, index), (4, 0), textcoords="offset points", va="center")
            axes.set_xlabel(name)
            axes.set_xlim(left=0)
            axes.set_yticks(range(len(rows)), labels)
            axes.set_ylim(len(rows) - 0.5, -0.5)
        kind = result["device"]["kind"]
        figure.suptitle(f"{result['recipe']} on {kind}: median, least and most; {result['rounds']} rounds")
        figure.savefig(path, dpi=150)


def _parts(spread: dict[str, float], scale: float) -> tuple[float, float, float]:
    """Median, and how far the least is below and the most above it."""
    median = spread["median"]
    return scale * median, scale * (median - spread["least"]), scale * (spread["most"] - median)


def _ran(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in result["variants"] if not row["failure"]]


def _largest(found: dict[str, Any]) -> str:
    return f"{found['batch']:,} ({_size(found['memory_bytes'])})" if found["batch"] else "none has room"


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
