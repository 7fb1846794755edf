"""The result of `inspect` as one page that needs no network: a treemap of the equations, and the source."""

import html
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.inspect.loops import source_of

_WIDTH, _HEIGHT = 1_120.0, 520.0
_FEWEST_PIXELS = 3.0  # narrower boxes are left out
_LABELLED_WIDTH, _LABELLED_HEIGHT = 60.0, 15.0
_LARGEST_SOURCE = 1 << 20  # characters of a file
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: 2px 10px; text-align: right; }
td.l, th.l { text-align: left; } tr:nth-child(even) { background: #f6f6f6; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } .cure { color: #065; } .what { color: #333; }
.map { position: relative; width: 1120px; height: 520px; max-width: 100%; overflow: hidden; background: #eee; }
.map div { position: absolute; overflow: hidden; box-sizing: border-box; border: 1px solid #fff; font-size: 11px;
  line-height: 14px; padding: 0 3px; white-space: nowrap; }
summary { cursor: pointer; } pre.source { margin: 0; } pre.source span { display: block; white-space: pre; }
pre.source i { display: inline-block; width: 13em; color: #777; font-style: normal; }
pre.source .hot { background: #fff3d6; }
.forward { background: #9ecae1; } .backward { background: #fdae6b; } .other { background: #c7c7c7; }
"""


@dataclass(frozen=True)
class Box:
    """A rectangle of the treemap."""

    x: float
    y: float
    width: float
    height: float


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Divides a rectangle into those of the given areas' shares, as near to squares as may be.

    Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).

    Args:
      sizes: above 0, the largest first.
      box: the whole.
    """
    total = sum(sizes)
    areas = [size / total * box.width * box.height for size in sizes] if total else []
    boxes: list[Box] = []
    while areas:
        side = min(box.width, box.height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
            count += 1
        row, areas = areas[:count], areas[count:]
        depth = sum(row) / side if side else 0.0
        at = 0.0
        for area in row:
            length = area / depth if depth else 0.0
            if box.width >= box.height:
                boxes.append(Box(box.x, box.y + at, depth, length))
            else:
                boxes.append(Box(box.x + at, box.y, length, depth))
            at += length
        if box.width >= box.height:
            box = Box(box.x + depth, box.y, max(box.width - depth, 0.0), box.height)
        else:
            box = Box(box.x, box.y + depth, box.width, max(box.height - depth, 0.0))
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The least square of a row's rectangles: its ratio of sides."""
    total = sum(row)
    if not total or not side:
        return float("inf")
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) for area in row if area)


def page(result: dict[str, Any]) -> str:
    """The whole page, nothing of it from elsewhere."""
    title = f"hayakuchi inspect {result['target']}"
    parts = [
        f"<h1>{_e(title)}</h1>",
        _figures(result),
        _findings(result["findings"]),
        "<h2>Equations by line</h2><p>The area of a box is its number of equations; ",
        '<span class="forward">&nbsp;forward&nbsp;</span> <span class="backward">&nbsp;backward&nbsp;</span> ',
        '<span class="other">&nbsp;of neither&nbsp;</span>, whichever is most. Point at one to read it.</p>',
        _treemap(result["lines"]),
        "<h2>Source</h2>",
        *_sources(result["lines"]),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def _figures(result: dict[str, Any]) -> str:
    memory, patience = result.get("memory", {}), result.get("patience_seconds", 0.0)
    rows = [
        ("equations", f"{result['equations']:,}"),
        ("of the forward and backward pass", f"{result['forward']:,} and {result['backward']:,}"),
        ("lines of jaxpr", f"{result['jaxpr_lines']:,}"),
        ("with a source line", f"{100 * result['coverage']:.1f}%"),
        ("seconds to trace", f"{result['trace_seconds']:.1f}"),
        *([("seconds to lower", f"{result['lower_seconds']:.1f}")] if memory else []),
        *([("seconds to compile", f"{result['compile_seconds']:.1f}")] if memory else []),
        *([("seconds, and still not compiled", f"{patience:.0f}")] if patience else []),
        *([("not compiled", result["compile_error"])] if "compile_error" in result else []),
        *([("HLO instructions", f"{result['hlo_instructions']:,}")] if memory else []),
        *([("memory, MiB", f"{memory['peak'] / 2**20:,.0f}")] if memory else []),
        *([("traces of its calls", f"{result['traces']}")] if result["traces"] > 1 else []),
    ]
    return "<table>" + "".join(f'<tr><td class="l">{_e(a)}</td><td>{_e(b)}</td></tr>' for a, b in rows) + "</table>"


def _findings(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "<h2>Findings</h2><p>None.</p>"
    rows = [
        f"<li><b>{_e(each['kind'])}</b> <code>{_e(each['file'])}:{each['line']}</code><br>"
        f'<span class="what">{_e(each["what"])}</span><br><span class="cure">Cure: {_e(each["cure"])}</span></li>'
        for each in findings
    ]
    return f"<h2>Findings</h2><ol>{''.join(rows)}</ol>"


def _treemap(lines: list[dict[str, Any]]) -> str:
    """Files, in them their functions, in these their lines."""
    boxes: list[str] = []
    tree: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        tree[line["file"]][line["function"]].append(line)

    def count(lines: list[dict[str, Any]]) -> int:
        return sum(line["equations"] for line in lines)

    files = sorted(tree.items(), key=lambda item: -sum(map(count, item[1].values())))
    sizes = [float(sum(map(count, functions.values()))) for _, functions in files]
    for (_, functions), outer in zip(files, squarify(sizes, Box(0, 0, _WIDTH, _HEIGHT)), strict=True):
        ordered = sorted(functions.values(), key=lambda each: -count(each))
        inner = squarify([float(count(each)) for each in ordered], outer)
        for members, middle in zip(ordered, inner, strict=True):
            ranked = sorted(members, key=lambda line: -line["equations"])
            shares = squarify([float(line["equations"]) for line in ranked], middle)
            boxes += [_box(line, box) for line, box in zip(ranked, shares, strict=True)]
    return f'<div class="map">{"".join(filter(None, boxes))}</div>'


def _box(line: dict[str, Any], box: Box) -> str:
    if box.width < _FEWEST_PIXELS or box.height < _FEWEST_PIXELS:
        return ""
    kind = max(("forward", "backward", "other"), key=lambda name: line[name])
    name = f"{Path(line['file']).name}:{line['line']}"
    tip = (
        f"{line['file']}:{line['line']} in {line['function']}\n{line['text']}\n{line['equations']:,} equations "
        f"({line['forward']:,} forward, {line['backward']:,} backward), {100 * line['share']:.1f}%"
    )
    if line["widened_bytes"]:
        tip += f"\n{line['widened_bytes'] / 1e6:,.1f} MB widened to float32 or float64"
    label = f"{name} {line['equations']:,}" if box.width > _LABELLED_WIDTH and box.height > _LABELLED_HEIGHT else ""
    place = f"left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.width:.1f}px;height:{box.height:.1f}px"
    return f'<div class="{kind}" style="{place}" title="{_e(tip)}">{_e(label)}</div>'


def _sources(lines: list[dict[str, Any]]) -> list[str]:
    """Each file folded, with the equations beside its lines; lines far from any equation are left out."""
    files: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        files[line["file"]][line["line"]] = line
    found = []
    for file, counted in sorted(files.items(), key=lambda item: -sum(line["equations"] for line in item[1].values())):
        total = sum(line["equations"] for line in counted.values())
        source = source_of(file)
        if sum(map(len, source)) > _LARGEST_SOURCE:
            source, missing = (), "the file is too large to show"
        else:
            missing = "the file cannot be read"
        rows = [_row(number, text, counted.get(number)) for number, text in enumerate(source, 1)]
        body = "".join(rows) or f"<span>({missing})</span>"
        found.append(
            f"<details><summary><code>{_e(file)}</code>: {total:,} equations</summary>"
            f'<pre class="source">{body}</pre></details>'
        )
    return found


def _row(number: int, text: str, line: dict[str, Any] | None) -> str:
    if line is None:
        return f"<span><i>{number:>5}</i>{_e(text)}</span>"
    repeats = f" ({line['repeats']:,} x)" if line["repeats"] > 1 else ""
    return f'<span class="hot"><i>{number:>5} {line["equations"]:,}{repeats}</i>{_e(text)}</span>'
