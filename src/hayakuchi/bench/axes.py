"""The grid of a comparison: which fields of the recipe take which values."""

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hayakuchi import config
from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError

MOST_VARIANTS = 64
# A step is timed without a teacher, so that nothing there would change it.
_LEFT_OUT = ("distillation",)


@dataclass(frozen=True)
class Axis:
    """One field of a recipe and the values it takes.

    Attributes:
      name: of the field.
      path: where it is, section by section.
      texts: the values as they were written.
      values: the same, of the field's type.
    """

    name: str
    path: tuple[str, ...]
    texts: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Variant:
    """One cell of the grid.

    Attributes:
      settings: value of every axis, as written.
      recipe: the recipe with these settings; None where they do not go together.
      failure: why they do not; "" where they do.
    """

    settings: dict[str, str]
    recipe: Recipe | None
    failure: str = ""


def parse_axes(recipe: Recipe, words: Sequence[str]) -> list[Axis]:
    """Reads "FIELD=V1,V2" for any field of the recipe's sections.

    In a value that holds commas itself, of `mesh` or a list, a plus stands for each.

    Raises:
      UserError: an unknown field, no value or one that the field does not take, a field named twice.
    """
    fields = dict(_fields(type(recipe), ()))
    axes: list[Axis] = []
    for word in words:
        name, _, listed = word.partition("=")
        name = name.strip().replace("-", "_")
        if name not in fields:
            near = _near(name, fields) or f"`hayakuchi train {recipe.name} --help` lists them"
            raise UserError(f"--compare {word}: {recipe.name} has no field {name!r}; {near}")
        if not listed:
            raise UserError(f"--compare {word}: no value; write {name}=V1,V2")
        if any(axis.name == name for axis in axes):
            raise UserError(f"--compare {word}: {name} is named twice; give all its values at once, {name}=V1,V2")
        texts = tuple(text.strip() for text in listed.split(","))
        path, hint = fields[name]
        axes.append(Axis(name, path, texts, tuple(_value(hint, text, f"--compare {word}") for text in texts)))
    return axes


def variants(recipe: Recipe, axes: Sequence[Axis]) -> list[Variant]:
    """All combinations of the axes' values, the last axis changing fastest.

    Raises:
      UserError: more than 64 of them.
    """
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_VARIANTS:
        sizes = " x ".join(str(len(axis.values)) for axis in axes)
        raise UserError(f"--compare: {sizes} = {count} variants, {MOST_VARIANTS} at most; compare fewer values at once")
    grid = itertools.product(*(zip(axis.texts, axis.values, strict=True) for axis in axes))
    return [_variant(recipe, axes, cell) for cell in grid]


def label(variant: Variant, axes: Sequence[Axis]) -> str:
    """What sets a variant apart: its settings of the axes with more than one value."""
    told = [f"{axis.name}={variant.settings[axis.name]}" for axis in axes if len(axis.values) > 1]
    return " ".join(told) or "the recipe"


def with_settings(recipe: Recipe, settings: dict[tuple[str, ...], Any]) -> Recipe:
    """The recipe with other values at these paths, checked as a recipe file is.

    Raises:
      UserError: the values do not go together.
    """
    values = config.to_dict(recipe)
    for path, value in settings.items():
        section = values
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    return config.from_dict(type(recipe), values, recipe.name)


def _variant(recipe: Recipe, axes: Sequence[Axis], cell: Sequence[tuple[str, Any]]) -> Variant:
    settings = {axis.name: text for axis, (text, _) in zip(axes, cell, strict=True)}
    try:
        made = with_settings(recipe, {axis.path: value for axis, (_, value) in zip(axes, cell, strict=True)})
    except UserError as error:
        return Variant(settings, None, str(error))
    return Variant(settings, made)


def _fields(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[str, tuple[tuple[str, ...], Any]]]:
    """(name, (path, type)) of the fields in the sections of a recipe, and in what those hold."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, here = hints[field.name], (*path, field.name)
        if dataclasses.is_dataclass(hint):
            if field.name not in _LEFT_OUT:
                yield from _fields(hint, here)
        elif path:
            yield field.name, (here, hint)


def _value(hint: Any, text: str, where: str) -> Any:
    """`text` as a value of type `hint`."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if text not in options:
            near = _near(text, options) or f"known are {', '.join(map(str, options))}"
            raise UserError(f"{where}: {text!r} is not one of its values; {near}")
        return text
    if origin is tuple and options[0] in (int, float):
        return [_value(options[0], part, where) for part in text.split("+")]
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{where}: {text!r} is neither true nor false")
        return text.lower() == "true"
    if hint is str:
        return text.replace("+", ",")
    if hint not in (int, float):
        raise UserError(f"{where}: this field holds lists of lists, which cannot be compared; use a recipe file")
    try:
        return hint(text)
    except ValueError:
        raise UserError(f"{where}: {text!r} is not {'a whole number' if hint is int else 'a number'}") from None


def _near(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else ""
