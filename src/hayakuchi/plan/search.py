"""Which model and settings make the most of a budget of time or money.

The rule is `scaling.predicted_loss`; a step's time is `shares.ideal_seconds` over the middle of the band; what fits is
by the estimate of `memory.py`. Cost and memory grow in straight lines with layers and rows, so that four small traces
give all depths and batches of a width.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hayakuchi.config import CtrlRecipe, Precision, Remat, Sharing
from hayakuchi.errors import UserError
from hayakuchi.plan.cost import Cost, cost_of
from hayakuchi.plan.devices import Devices, find_devices, find_price
from hayakuchi.plan.scaling import GOOD_EPOCHS, MOST_EPOCHS, predicted_loss
from hayakuchi.plan.shares import band, ideal_seconds

WIDTHS = (128, 256, 384, 512, 768, 1_024, 1_280, 1_536, 2_048)
DEPTHS = (2, 4, 6, 8, 12, 16, 24, 32, 48)
BATCHES = (64, 128, 256, 512, 1_024)
_ASPECTS = (24, 128)  # width to depth; outside of it models of one size are worse (arXiv 2001.08361, section 3.1)
_HEAD = 64
_LAYERS, _ROWS = (2, 4), (4, 8)  # of the traces
_DAY_SECONDS = 86_400
_ROOM = 0.85  # of the device's memory, since it is an estimate that fits in it
_UNITS = {"h": 3_600, "d": _DAY_SECONDS, "w": 7 * _DAY_SECONDS}
# The rates of ctrl-small (width 384) and ctrl-base (768) lie on this line.
_RATE, _RATE_WIDTH, _RATE_POWER = 6e-4, 768, -0.74


@dataclass(frozen=True)
class Candidate:
    """A model with settings, and what comes of it.

    Attributes:
      loss: predicted, nats a token.
      layers, width, parameters: of the model.
      device: with its number.
      batch, accumulate, precision, remat, sharing: settings of the recipe.
      step_seconds: the middle of its range.
      steps, tokens, epochs: that the budget allows, `MOST_EPOCHS` at most; epochs is None without a data set.
      days, usd: that it takes; usd is None without a price.
    """

    loss: float
    layers: int
    width: int
    parameters: int
    device: str
    batch: int
    accumulate: int
    precision: Precision
    remat: Remat
    sharing: Sharing
    step_seconds: float
    steps: int
    tokens: int
    epochs: float | None
    days: float
    usd: float | None


@dataclass(frozen=True)
class Budget:
    """What may be spent: `seconds`, `usd`, or both; and on how many `unique_tokens` of text (infinite: not known)."""

    seconds: float = math.inf
    usd: float = math.inf
    unique_tokens: float = math.inf

    def part(self, share: float) -> "Budget":
        """The budget with a share of its time and money."""
        return replace(self, seconds=share * self.seconds, usd=share * self.usd)


def parse_budget(text: str) -> float:
    """Seconds of "14d", "36h" or "2w".

    Raises:
      UserError: it is none of these, or nothing.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hdw])\s*", text)
    if match is None or not float(match[1]):
        raise UserError(f"--budget {text!r} must be a time such as 36h, 14d or 2w")
    return float(match[1]) * _UNITS[match[2]]


def choices(devices: Devices, most: int | None) -> list[Devices]:
    """The numbers of devices to choose from: powers of two up to `most`, and `most`.

    Raises:
      UserError: `most` is not 1 or more, or the devices are no GPUs, whose number can be chosen.
    """
    if most is None:
        return [devices]
    if most < 1:
        raise UserError(f"--max-devices {most} must be 1 or more")
    if devices.platform != "gpu":
        if devices.count > most:
            raise UserError(f"--max-devices {most}: {devices.name} has {devices.count} devices; name a smaller one")
        return [devices]
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    return [find_devices(f"{devices.kind}x{count}" if count > 1 else devices.kind) for count in counts]


def search(
    recipe: CtrlRecipe,
    devices: list[Devices],
    budget: Budget,
    *,
    batch: int | None = None,
    precision: Precision | None = None,
    prices: Path | None = None,
) -> list[Candidate]:
    """The best candidate of every width, the best of all first.

    Args:
      recipe: gives all that is not searched: vocabulary, length, optimiser.
      devices: to choose from.
      budget: what may be spent.
      batch: the user's, not searched then.
      precision: likewise.
      prices: the user's price table.

    Raises:
      UserError: money is to be counted and there is no price, or nothing fits the devices and the budget.
    """
    hourly = {each.name: find_price(each, prices).on_demand for each in devices}
    for name, price in hourly.items():
        if not price and budget.usd < math.inf:
            raise UserError(f"--usd: no price of {name} is known; give --prices FILE with one")
    found: list[Candidate] = []
    worse = 0
    for width in WIDTHS:
        here = [
            candidate
            for each in devices
            for candidate in _of_width(recipe, each, budget, width, batch, precision, hourly[each.name])
        ]
        if not here:
            continue
        best = min(here, key=lambda candidate: candidate.loss)
        worse = worse + 1 if found and best.loss > min(each.loss for each in found) else 0
        found.append(best)
        if worse == 2:  # wider ones would be worse still
            break
    if not found:
        raise UserError(
            "no model of the search fits the devices and the budget; give more of either, or another --batch"
        )
    return sorted(found, key=lambda candidate: candidate.loss)


def _of_width(
    recipe: CtrlRecipe,
    devices: Devices,
    budget: Budget,
    width: int,
    batch: int | None,
    wanted: Precision | None,
    price: float | None,
) -> Iterator[Candidate]:
    precision = devices.precision(wanted) if wanted else devices.precisions[0]
    likely = band(devices, "ctrl", precision)
    middle = math.sqrt(likely.low * likely.high)
    options: list[tuple[Remat, Sharing]] = [("none", "none"), ("full", "none"), ("full", "all")]
    left = [layers for layers in DEPTHS if _ASPECTS[0] <= width / layers <= _ASPECTS[1]]
    batches = [each for each in ((batch,) if batch else BATCHES) if each % devices.count == 0]
    seconds = min(budget.seconds, 3_600 * budget.usd / price if price else math.inf)
    for remat, sharing in options:
        if not left:
            return
        lines = _Lines.of(recipe, devices, width, precision, remat, sharing)
        for layers in tuple(left):
            for rows in batches:
                split = _split(lines, layers, rows, devices)
                if split is None:
                    continue
                if layers in left:
                    left.remove(layers)  # needs neither recomputation nor sharing to fit
                cost = lines.at(layers, rows // devices.count, split)
                step_seconds = ideal_seconds(cost, devices, precision) / middle
                tokens_a_step = rows * recipe.model.length
                steps = math.floor(min(seconds / step_seconds, MOST_EPOCHS * budget.unique_tokens / tokens_a_step))
                if steps < 100:  # no training to speak of
                    continue
                tokens = steps * tokens_a_step
                days = steps * step_seconds / _DAY_SECONDS
                yield Candidate(
                    loss=predicted_loss(cost.parameters, tokens, budget.unique_tokens, tokens_a_step),
                    layers=layers,
                    width=width,
                    parameters=cost.parameters,
                    device=devices.name,
                    batch=rows,
                    accumulate=split,
                    precision=precision,
                    remat=remat,
                    sharing=sharing,
                    step_seconds=step_seconds,
                    steps=steps,
                    tokens=tokens,
                    epochs=None if math.isinf(budget.unique_tokens) else tokens / budget.unique_tokens,
                    days=days,
                    usd=None if price is None else 24 * days * price,
                )


def _split(lines: "_Lines", layers: int, rows: int, devices: Devices) -> int | None:
    """The fewest micro-batches that make `rows` rows fit, or None."""
    whole = rows // devices.count
    for parts in (1 << power for power in range(whole.bit_length())):
        if (
            whole % parts == 0
            and lines.at(layers, whole // parts, 1).memory + (4 * lines.at(layers, 1, 1).parameters if parts > 1 else 0)
            <= _ROOM * devices.limit_bytes
        ):
            return parts
    return None


@dataclass(frozen=True)
class _Lines:
    """The cost of all depths and rows of a width, from four traces: each figure is a + b*L + c*R + d*L*R."""

    corners: tuple[tuple[Cost, Cost], tuple[Cost, Cost]]  # by layers, by rows

    @classmethod
    def of(
        cls, recipe: CtrlRecipe, devices: Devices, width: int, precision: Precision, remat: Remat, sharing: Sharing
    ) -> "_Lines":
        def corner(layers: int, rows: int) -> Cost:
            return cost_of(shaped(recipe, layers, width, rows * devices.count, 1, precision, remat, sharing), devices)

        first, second = (tuple(corner(layers, rows) for rows in _ROWS) for layers in _LAYERS)
        return cls(((first[0], first[1]), (second[0], second[1])))

    def at(self, layers: int, rows: int, parts: int) -> Cost:
        """The cost of a step of `rows` rows a device, in `parts` micro-batches."""
        down = (layers - _LAYERS[0]) / (_LAYERS[1] - _LAYERS[0])
        along = (rows - _ROWS[0]) / (_ROWS[1] - _ROWS[0])
        values: dict[str, Any] = {}
        table = [[asdict(cost) for cost in row] for row in self.corners]
        for name, start in table[0][0].items():
            if isinstance(start, str):
                values[name] = start
                continue
            ends = [row[0][name] + along * (row[1][name] - row[0][name]) for row in table]
            values[name] = max(round(ends[0] + down * (ends[1] - ends[0])), 0)
        # A micro-batch reads the parameters anew and adds to the gradients: 4 bytes each, read and written.
        values["moved"] += (parts - 1) * 12 * values["parameters"]
        return Cost(**values)


def shaped(
    recipe: CtrlRecipe,
    layers: int,
    width: int,
    batch: int,
    accumulate: int,
    precision: Precision,
    remat: Remat,
    sharing: Sharing,
) -> CtrlRecipe:
    """The recipe with another model and other settings; its learning rate follows the width."""
    model = replace(
        recipe.model,
        layers=layers,
        width=width,
        heads=max(width // _HEAD, 1),
        feed_forward=4 * width,
        sharing=sharing,
        sharing_groups=1,
        embedding_width=0,
        scan_layers=remat != "none",
    )
    rate = _RATE * (width / _RATE_WIDTH) ** _RATE_POWER
    optimizer = replace(recipe.optimizer, learning_rate=float(f"{rate:.2g}"))
    train = replace(recipe.train, batch=batch, accumulate=accumulate, precision=precision, remat=remat, mesh="")
    return replace(recipe, model=model, optimizer=optimizer, train=train)


def chosen_recipe(recipe: CtrlRecipe, best: Candidate) -> CtrlRecipe:
    """The recipe of a candidate, as `train` takes it."""
    made = shaped(
        recipe, best.layers, best.width, best.batch, best.accumulate, best.precision, best.remat, best.sharing
    )
    warmup = min(recipe.optimizer.warmup_steps, max(best.steps // 20, 1))
    return replace(
        made,
        name=f"{recipe.name}-{best.layers}x{best.width}",
        optimizer=replace(made.optimizer, warmup_steps=warmup),
        train=replace(made.train, steps=best.steps),
    )


def warnings_of(best: Candidate, budget: Budget) -> list[str]:
    """What to know of the chosen plan."""
    told = ["the loss ranks the plans by a rule fitted on English (arXiv 2305.16264); it is no forecast for your text"]
    if best.epochs is None:
        told.append("without --data every token counts as new: give the data set, since a small one is read many times")
    elif best.epochs >= 0.99 * MOST_EPOCHS:
        told.append(f"the text is used up: {MOST_EPOCHS} readings, after which more time teaches next to nothing")
    elif best.epochs > GOOD_EPOCHS:
        told.append(
            f"{best.epochs:.1f} readings of {budget.unique_tokens:,.0f} tokens: beyond {GOOD_EPOCHS} each is worth "
            "less than new text"
        )
    return told
