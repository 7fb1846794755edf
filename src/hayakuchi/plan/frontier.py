"""The result of a search: a table, a picture, and the chosen plan as a recipe file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hayakuchi import config, strict_json
from hayakuchi.config import CtrlRecipe
from hayakuchi.config.recipe import RECIPE_FILE
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.plan.search import Candidate

PICTURE, TABLE = "frontier.png", "plan.json"


def table(candidates: Sequence[Candidate]) -> str:
    """The candidates as lines, the best first."""
    head = (
        "loss",
        "layers",
        "width",
        "parameters",
        "device",
        "batch",
        "precision",
        "steps",
        "tokens",
        "epochs",
        "days",
        "US$",
    )
    rows = [head]
    for each in candidates:
        batch = f"{each.batch}/{each.accumulate}" if each.accumulate > 1 else f"{each.batch}"
        extras = "".join(
            f" {name}" for name in (f"remat={each.remat}", f"sharing={each.sharing}") if "none" not in name
        )
        rows.append(
            (
                *(f"{each.loss:.4f}", f"{each.layers}", f"{each.width}", f"{each.parameters / 1e6:.1f}M", each.device),
                *(batch, each.precision + extras, f"{each.steps:,}", f"{each.tokens:.3g}"),
                *("-" if each.epochs is None else f"{each.epochs:.2f}", f"{each.days:.1f}"),
                "-" if each.usd is None else f"{each.usd:,.0f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def write_search(out: Path, recipe: CtrlRecipe, result: dict[str, Any], curves: dict[str, list[Candidate]]) -> None:
    """Writes recipe.json, plan.json and the picture into `out`.

    Args:
      out: directory, made if missing.
      recipe: the chosen one.
      result: what the verb gives as JSON.
      curves: candidates by the name of their budget, one line of the picture each.

    Raises:
      UserError: it cannot be written there.
      MissingExtraError: matplotlib is not installed; the other files are written then.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RECIPE_FILE).write_text(config.to_json(recipe), encoding="utf-8")
        (out / TABLE).write_text(strict_json.dumps(result) + "\n", encoding="utf-8")
        _draw(out / PICTURE, curves)
    except OSError as error:
        raise UserError(f"--out {out}: cannot write it ({error.strerror})") from error


def _draw(path: Path, curves: dict[str, list[Candidate]]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "drawing the frontier") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, candidates in curves.items():
        ordered = sorted(candidates, key=lambda each: each.parameters)
        own = [each for each in ordered if each.sharing == "none"]
        shared = [each for each in ordered if each.sharing != "none"]
        best = min(candidates, key=lambda each: each.loss)
        label = f"{name}: {best.layers} x {best.width}"
        [line] = axes.plot([each.parameters for each in own], [each.loss for each in own], "o-", label=label)
        # Beside the line: they compute as much as models of many times their parameters.
        axes.plot([each.parameters for each in shared], [each.loss for each in shared], "x", color=line.get_color())
        axes.plot(best.parameters, best.loss, "o", color=line.get_color(), markersize=14, fillstyle="none")
    axes.set_xscale("log")
    axes.set_xlabel("parameters (crosses: layers shared)")
    axes.set_ylabel("predicted loss, nats a token")
    axes.legend()
    figure.savefig(path, dpi=150)


def search_result(candidates: Sequence[Candidate], notes: list[str]) -> dict[str, Any]:
    """The search as plain values."""
    best = candidates[0]
    return {
        "chosen": asdict(best),
        "candidates": [asdict(each) for each in candidates],
        "notes": notes,
    }
