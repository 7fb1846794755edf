"""Recipes of all tasks, told apart by what they say of themselves."""

from pathlib import Path

from hayakuchi.config import CtrlRecipe, from_dict, load_json
from hayakuchi.config.vits import VitsRecipe
from hayakuchi.errors import UserError

RECIPE_FILE = "recipe.json"
"""Name of the recipe in a run directory; a folder with it is one."""

Recipe = CtrlRecipe | VitsRecipe
_KINDS: dict[str, type[Recipe]] = {"ctrl": CtrlRecipe, "vits": VitsRecipe}


def read_recipe(path: Path) -> Recipe:
    """Reads the recipe file of a run, or one of the user's own.

    Raises:
      UserError: the file is missing, is not JSON, or is no recipe.
    """
    return recipe_from_dict(load_json(path), str(path))


def recipe_file(run: Path) -> Path:
    """The recipe of a run directory; UserError where there is none."""
    path = run / RECIPE_FILE
    if not path.is_file():
        raise UserError(f"{run}: not a run directory (no {RECIPE_FILE}); make one with `hayakuchi train`")
    return path


def recipe_from_dict(values: object, where: str) -> Recipe:
    """The recipe of plain values.

    Args:
      values: as `to_dict` gives them.
      where: they are from, for messages.

    Raises:
      UserError: they are no recipe.
    """
    task = values.get("task", "ctrl") if isinstance(values, dict) else "ctrl"
    if not isinstance(task, str) or task not in _KINDS:
        raise UserError(f"{where}: not a recipe; its task is {task!r}, known are {', '.join(_KINDS)}")
    return from_dict(_KINDS[task], values, where)
