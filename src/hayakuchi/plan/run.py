"""The verb `plan`: a plan of one recipe, or a search for the best one."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.config.recipe import Recipe
from hayakuchi.directories import check_output
from hayakuchi.errors import UserError
from hayakuchi.plan.devices import Devices, find_devices
from hayakuchi.plan.plan import make_plan, with_settings
from hayakuchi.plan.summary import summary

_VERIFY_SECONDS = 10.0
# Lines of the picture: shares of the budget.
_SHARES = {"the budget": 1.0, "half of it": 0.5, "a quarter": 0.25}


@dataclass(frozen=True)
class PlanOptions:
    """Options of the verb as the command line has them; "" and None are not given.

    Attributes:
      settings: of the recipe's section `train`.
      data: data set directory.
      budget: time, such as "14d".
      usd: money.
      max_devices: most GPUs of a search.
      out: folder of a search's files.
      prices: the user's price table.
      compiler: ask the compiler for the memory.
      verify: run some steps and compare.
      calibrate: run 30 seconds, to narrow later plans.
    """

    settings: dict[str, Any]
    data: Path | None = None
    budget: str = ""
    usd: float | None = None
    max_devices: int | None = None
    out: Path | None = None
    prices: Path | None = None
    compiler: bool = True
    verify: bool = False
    calibrate: bool = False


def run_plan(recipe: Recipe, device: str, options: PlanOptions) -> tuple[dict[str, Any], str]:
    """The result as plain values, and as text.

    Raises:
      UserError: an unknown device, or options that do not go together.
    """
    devices = find_devices(device)
    if options.budget or options.usd is not None:
        if options.verify or options.calibrate:
            raise UserError("--verify and --calibrate run a recipe as it is: leave out --budget and --usd")
        return _search(recipe, devices, options)
    for name, value in (("--max-devices", options.max_devices), ("--out", options.out)):
        if value is not None:
            raise UserError(f"{name} is for a search: give --budget or --usd too")
    recipe = with_settings(_sized(recipe, options.data)[0], **options.settings)
    plan = make_plan(recipe, devices, prices=options.prices, compiler=options.compiler)
    text = summary(plan)
    if options.verify or options.calibrate:
        from hayakuchi.plan import measure as measuring

        seconds = measuring.CALIBRATION_SECONDS if options.calibrate else _VERIFY_SECONDS
        plan["actual"] = measuring.measure(recipe, devices, seconds)
        text += "\n" + measuring.measured_text(plan["actual"], plan)
    return plan, text


def _sized(recipe: Recipe, data: Path | None) -> tuple[Recipe, float]:
    """The recipe with the sizes that a data set decides, and the data set's tokens; those of a voice do not count."""
    if data is None:
        return recipe, math.inf
    if recipe.task == "vits":
        from hayakuchi.data.speech_shards import INFO_FILE, SpeechInfo

        info = SpeechInfo.load(data / INFO_FILE)
        speakers = len(info.speakers) if len(info.speakers) > 1 else 0
        voice = dataclasses.replace(recipe.model, vocabulary_size=info.inventory.size, speakers=speakers)
        return dataclasses.replace(recipe, model=voice), math.inf
    from hayakuchi.data.shards import DatasetInfo

    text = DatasetInfo.load(data / "dataset.json")
    model = dataclasses.replace(recipe.model, vocabulary_size=text.vocabulary_size)
    tokens = sum(counts.tokens for counts in text.counts["train"].values())
    return dataclasses.replace(recipe, model=model), float(tokens)


def _search(recipe: Recipe, devices: Devices, options: PlanOptions) -> tuple[dict[str, Any], str]:
    from hayakuchi.plan.frontier import search_result, table, write_search
    from hayakuchi.plan.search import Budget, choices, chosen_recipe, parse_budget, search, warnings_of

    if recipe.task == "vits":
        raise UserError(
            f"{recipe.name}: a search is for language models; of a voice `plan` without --budget tells the days"
        )
    for name in ("accumulate", "remat", "mesh", "steps"):
        if options.settings.get(name) is not None:
            raise UserError(f"--{name}: the search finds it; leave it out, or leave out --budget and --usd")
    if options.usd is not None and not options.usd > 0:
        raise UserError(f"--usd {options.usd} must be above 0")
    out = options.out or Path(f"{recipe.name}-{devices.name}-plan")
    check_output("--out", out)
    sized, tokens = _sized(recipe, options.data)
    assert sized.task == "ctrl"
    budget = Budget(
        parse_budget(options.budget) if options.budget else math.inf,
        math.inf if options.usd is None else options.usd,
        tokens,
    )
    fixed = {name: options.settings.get(name) for name in ("batch", "precision")}
    among = choices(devices, options.max_devices)
    curves = {
        name: search(sized, among, budget.part(share), **fixed, prices=options.prices)
        for name, share in _SHARES.items()
    }
    found = curves["the budget"]
    chosen = chosen_recipe(sized, found[0])
    notes = warnings_of(found[0], budget)
    result = search_result(found, notes)
    write_search(out, chosen, result, curves)
    told = [table(found), *(f"note: {note}" for note in notes), f"{out}/recipe.json: train it with"]
    told.append(f"  hayakuchi train {out}/recipe.json RUN --data {options.data or 'DIR'}")
    return {**result, "recipe": str(out / "recipe.json")}, "\n".join(told)
